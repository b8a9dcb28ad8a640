//! [`RedisBackendBuilder`].

use std::{fmt, sync::Arc, time::Duration};

use lockcore::{BackendError, BackendErrorKind, Diagnosis, backend::Replicas};
use redis::{Client, ConnectionInfo};

use crate::{
    CredentialsProvider, RedisBackend,
    cluster::{
        Cluster, ClusterMessages,
        url::{self as cluster_url, ClusterSeeds},
    },
    credentials::Login,
    diagnosis::{self, Patient},
    sentinel::{
        SentinelAddress, SentinelGroup,
        url::{self as sentinel_url, SentinelUrl},
    },
    server::{
        Server,
        address::FixedAddress,
        opener::{ConnectOptions, Opener},
    },
    url,
};

/// The options of a connection. Created by [`RedisBackend::builder`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use lockcore::Locks;
/// use lockcore_redis::RedisBackend;
///
/// # async fn connect() -> Result<(), lockcore::LockError> {
/// let backend = RedisBackend::builder()
///     .url("rediss://worker:secret@redis.internal:6380/2")
///     .response_timeout(Duration::from_secs(2))
///     .key_prefix("shop:")
///     .connect()
///     .await?;
/// let locks = Locks::new(backend);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing before `connect()` is called"]
pub struct RedisBackendBuilder {
    source: ConnectionSource,
    sentinels: Option<SentinelSource>,
    sentinel_client: Option<Box<Client>>,
    sentinel_login: Login,
    options: ConnectOptions,
    key_prefix: String,
    cluster_messages: ClusterMessages,
    replicas: Option<Replicas>,
}

enum ConnectionSource {
    Url(String),
    Client(Box<Client>),
    Cluster(Vec<String>),
}

/// The Sentinels as the user gave them.
struct SentinelSource {
    addresses: Vec<String>,
    name: String,
}

/// The servers to connect to.
enum Target {
    Server(ConnectionInfo),
    Sentinels(SentinelUrl),
    /// Some nodes of a cluster; at least one.
    Cluster(ClusterSeeds),
}

impl RedisBackendBuilder {
    pub(crate) fn new() -> Self {
        Self {
            source: ConnectionSource::Url("redis://127.0.0.1:6379".into()),
            sentinels: None,
            sentinel_client: None,
            sentinel_login: Login::default(),
            options: ConnectOptions {
                login: Login::default(),
                response_timeout: Duration::from_secs(3),
                connect_timeout: Duration::from_secs(5),
                eviction_allowed: false,
            },
            key_prefix: String::new(),
            cluster_messages: ClusterMessages::Auto,
            replicas: None,
        }
    }

    /// Sets the URL of the server. The default is `redis://127.0.0.1:6379`. A host name is looked
    /// up for every connection that is opened.
    ///
    /// - `redis://[user][:password@]host[:port][/database]`
    /// - `rediss://...`: the same over TLS, with the root certificates of the system. There is no
    ///   fallback to plain text. Needs the feature `tls`.
    /// - `unix:///path/to/socket[?db=1&user=...&pass=...]`
    /// - `redis+sentinel://[user][:password@]host[:port],host[:port]/name[/database]`: the
    ///   [Sentinels](Self::sentinel) of the primary `name`, and the credentials and the database of
    ///   the primary itself
    /// - `rediss+sentinel://...`: the same over TLS, to the Sentinels and to the primary
    /// - `redis+cluster://[user][:password@]host[:port],host[:port]`: some nodes of a
    ///   [Redis Cluster](Self::cluster), and the credentials of all nodes
    /// - `rediss+cluster://...`: the same over TLS
    ///
    /// The URL of one node of a cluster leads to the cluster as well.
    ///
    /// `valkey://` and `valkeys://` work like `redis://` and `rediss://`. Percent-encode characters
    /// that are special in URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = ConnectionSource::Url(url.into());
        self
    }

    /// Connects to the Redis Cluster of `nodes`, each `host` or `host:port`; the default port is
    /// 6379. See [`RedisBackend::cluster`]. This replaces [`url`](Self::url) and
    /// [`client`](Self::client).
    ///
    /// All nodes have the same [`credentials`](Self::credentials). TLS needs a URL
    /// `rediss+cluster://`, or a [`client`](Self::client) that leads to one of the nodes.
    pub fn cluster<A: Into<String>>(mut self, nodes: impl IntoIterator<Item = A>) -> Self {
        self.source = ConnectionSource::Cluster(nodes.into_iter().map(Into::into).collect());
        self
    }

    /// Sets how waiters are woken on a cluster: [`ClusterMessages::Auto`] by default, as Redisson
    /// chooses. It has no effect without a cluster.
    pub fn cluster_messages(mut self, messages: ClusterMessages) -> Self {
        self.cluster_messages = messages;
        self
    }

    /// Uses the settings of `client` instead of a URL. This allows client certificates and a
    /// private certificate authority; see `redis::Client::build_with_tls`, which exists with the
    /// feature `tls`. The backend opens its own connections, with RESP3 and with the timeouts set
    /// here.
    pub fn client(mut self, client: Client) -> Self {
        self.source = ConnectionSource::Client(Box::new(client));
        self
    }

    /// Connects to the primary `name` that Sentinels monitor, wherever it is at the time. The
    /// addresses of the Sentinels are `host`, `host:port`, or URLs; the default port is 26379. See
    /// [`RedisBackend::sentinel`].
    ///
    /// [`url`](Self::url) and [`client`](Self::client) then say how the primary is reached, with
    /// credentials, database and TLS, and their host and port are not used. A Sentinel is reached
    /// over TLS if its address is a `rediss://` URL, with the root certificates of the system, or
    /// if [`sentinel_client`](Self::sentinel_client) says so.
    pub fn sentinel<A: Into<String>>(
        mut self,
        sentinels: impl IntoIterator<Item = A>,
        name: impl Into<String>,
    ) -> Self {
        let addresses = sentinels.into_iter().map(Into::into).collect();
        self.sentinels = Some(SentinelSource { addresses, name: name.into() });
        self
    }

    /// Uses the settings of `sentinel_client` to reach the Sentinels: credentials and TLS. Its host
    /// and port are not used. This allows client certificates and a private certificate authority,
    /// as [`client`](Self::client) does for the servers. Without Sentinels it has no effect.
    pub fn sentinel_client(mut self, sentinel_client: Client) -> Self {
        self.sentinel_client = Some(Box::new(sentinel_client));
        self
    }

    /// Sets the credentials, or a provider that is asked for them at each attempt to connect. They
    /// replace those of the URL. See [`CredentialsProvider`].
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.options.login = Login::new(provider);
        self
    }

    /// Sets the credentials of the Sentinels, as [`credentials`](Self::credentials) does for the
    /// servers. By default, they are those of [`sentinel_client`](Self::sentinel_client) or in the
    /// addresses of the Sentinels, or none.
    pub fn sentinel_credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.sentinel_login = Login::new(provider);
        self
    }

    /// Sets how long a reply may take: at least 1 ms, 3 s by default. After that, the outcome of
    /// the request is unknown, and an acquisition is undone.
    ///
    /// Keep it well below a third of the lease, so that a failed renewal can be repeated in time.
    /// More than 4 s has no effect: the core waits for 5 s, and a connection that does not answer is
    /// given up before that.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.options.response_timeout = timeout;
        self
    }

    /// Sets how long connecting may take, including TLS and authentication: at least 1 ms, 5 s by
    /// default. Finding the primary with Sentinels may take as long, and so may the provider of the
    /// credentials.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Sets a prefix for the names of all locks in Redis, like a name mapper in Redisson. It is at
    /// most 128 bytes long, without braces and NUL. By default it is empty.
    ///
    /// The [`namespace`](lockcore::LocksBuilder::namespace) is part of the name, in errors and on
    /// every backend. `key_prefix` is only in Redis's keys. Use `namespace` unless Redisson uses a
    /// name mapper.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Accepts a server that evicts keys when its memory is full, and logs a warning. If the key of
    /// a lock is evicted, the lock is lost. Its holder learns of that with the next renewal; until
    /// then, another owner can acquire the lock.
    pub fn allow_eviction(mut self) -> Self {
        self.options.eviction_allowed = true;
        self
    }

    /// Acquires only holds that at least `count` replicas have acknowledged within `timeout`, which
    /// is 1 ms to 1 s. The default is 0: Redis answers before it replicates. A lock can have a
    /// setting of its own, see [`Lock::replicas`](lockcore::Lock::replicas).
    ///
    /// `count` is compared with the answer to `WAIT`, and never with the number of replicas that
    /// the server has: a server that is cut off from all its replicas must not acknowledge holds.
    /// If fewer replicas acknowledge a hold in time, it is released, and the attempt fails with an
    /// error of the kind [`Unavailable`](BackendErrorKind::Unavailable), which is retried for
    /// [`retry_for`](lockcore::LocksBuilder::retry_for). A hold is also released if it is unknown
    /// whether replicas have it. On a cluster, the replicas are those of the node that has the
    /// lock.
    ///
    /// `WAIT` blocks its connection, so such acquisitions share a connection of their own, which is
    /// opened with the first. They cost one more round trip, which concurrent acquisitions share,
    /// and wait behind each other while replicas do not answer. Other requests do not wait behind
    /// them.
    ///
    /// Nested acquisitions, renewals, extensions and releases do not wait for replicas. A hold that
    /// is [handed over](lockcore::LocksBuilder::hand_over) was acknowledged when it was acquired.
    ///
    /// # What it does not promise
    /// - A failover can promote a replica that has not acknowledged the hold, unless `count` is the
    ///   number of all replicas.
    /// - The promoted replica may lack the last renewals, so that the lease ends earlier than the
    ///   holder assumes. The next renewal tells the holder, a third of a lease later at most.
    /// - An old primary that is cut off goes on granting locks that ask for no replicas. Set
    ///   `min-replicas-to-write` on the servers, so that it stops within `min-replicas-max-lag`.
    /// - `INFO` may report a replica as connected that has acknowledged nothing yet, for example
    ///   with diskless synchronization. Only `WAIT` tells.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.replicas = Some(Replicas::new(count, timeout));
        self
    }

    /// Connects, checks that the server can be trusted with locks, and probes its features: see
    /// [`RedisBackend::info`].
    ///
    /// # Errors
    /// - [`Configuration`](BackendErrorKind::Configuration) for a bad URL or option, for a URL that
    ///   needs the feature `tls` in a build without it, for a server that evicts keys or is a
    ///   Sentinel, for addresses that are not those of Sentinels, for Sentinels that do not know
    ///   the name of the primary, for a database other than 0 on a cluster, for a server without
    ///   `WAIT` if [replicas](Self::replicas) are asked for, and for nodes that form no cluster, or
    ///   lack the requested [messages](Self::cluster_messages).
    /// - [`ReadOnly`](BackendErrorKind::ReadOnly) for a replica.
    /// - [`Unavailable`](BackendErrorKind::Unavailable) for a server that is loading its data, if
    ///   no Sentinel can be asked, and if the provider of the credentials fails.
    /// - [`Auth`](BackendErrorKind::Auth) for wrong credentials.
    /// - [`Connection`](BackendErrorKind::Connection) and [`Timeout`](BackendErrorKind::Timeout) if
    ///   the server cannot be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open.
    pub async fn connect(self) -> Result<RedisBackend, BackendError> {
        check_timeout("response_timeout", self.options.response_timeout)?;
        check_timeout("connect_timeout", self.options.connect_timeout)?;
        check_prefix(&self.key_prefix)?;
        check_replicas(self.replicas)?;
        let replicas = self.replicas;
        self.deploy().await?.with_replicas(replicas).probed().await
    }

    /// Checks whether the servers are fit for locks, as
    /// [`RedisBackend::diagnose`](crate::RedisBackend::diagnose) does, even if
    /// [`connect`](Self::connect) would refuse them: a replica is a finding, and so is a server
    /// that evicts keys.
    ///
    /// # Errors
    /// - [`Configuration`](BackendErrorKind::Configuration) for a bad URL or option, and for a
    ///   Sentinel in place of a server.
    /// - [`Auth`](BackendErrorKind::Auth), [`Connection`](BackendErrorKind::Connection) and
    ///   [`Timeout`](BackendErrorKind::Timeout) if no server can be examined.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore_redis::RedisBackend;
    ///
    /// # async fn check() -> Result<(), lockcore::BackendError> {
    /// let diagnosis = RedisBackend::builder().url("redis://127.0.0.1").diagnose().await?;
    /// assert!(!diagnosis.has_problems(), "{:?}", diagnosis.findings());
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(self) -> Result<Diagnosis, BackendError> {
        check_timeout("response_timeout", self.options.response_timeout)?;
        check_timeout("connect_timeout", self.options.connect_timeout)?;
        check_prefix(&self.key_prefix)?;
        let target = self.target()?;
        #[cfg(feature = "tls")]
        if target.uses_tls() {
            ensure_crypto_provider();
        }
        let patient = match target {
            Target::Cluster(seeds) => Patient::Cluster(Box::new((seeds, self.options))),
            Target::Sentinels(target) => {
                let login = self.sentinel_login.clone();
                let group = SentinelGroup::new(target, login, self.options.connect_timeout);
                let address = SentinelAddress::new(group);
                let group = address.group().clone();
                let opener = Opener::new(Arc::new(address), self.options, Some(false));
                Patient::Primary(Arc::new(Server::new(opener)), group)
            }
            Target::Server(info) => {
                let opener = Opener::new(Arc::new(FixedAddress(info)), self.options, None);
                Patient::Server(Arc::new(Server::new(opener)))
            }
        };
        diagnosis::diagnose(patient, &self.key_prefix).await
    }

    /// Connects to the configured target.
    async fn deploy(self) -> Result<RedisBackend, BackendError> {
        let target = self.target()?;
        #[cfg(feature = "tls")]
        if target.uses_tls() {
            ensure_crypto_provider();
        }
        let seeds = match target {
            Target::Cluster(seeds) => seeds,
            Target::Sentinels(target) => {
                let login = self.sentinel_login.clone();
                let group = SentinelGroup::new(target, login, self.options.connect_timeout);
                let address = SentinelAddress::new(group);
                let group = address.group().clone();
                let server = Opener::new(Arc::new(address), self.options, Some(false));
                let server = Server::new(server);
                server.connect_to_primary(|| group.addresses().len()).await?;
                return Ok(RedisBackend::on_primary(server, group, self.key_prefix));
            }
            Target::Server(info) => {
                let address = Arc::new(FixedAddress(info.clone()));
                let server = Server::new(Opener::new(address, self.options.clone(), None));
                if !server.is_cluster_node().await? {
                    return Ok(RedisBackend::on_server(server, self.key_prefix));
                }
                ClusterSeeds::of_node(info)?
            }
        };
        let cluster = Cluster::connect(seeds, self.options, self.cluster_messages).await?;
        Ok(RedisBackend::on_cluster(cluster, self.key_prefix))
    }

    fn target(&self) -> Result<Target, BackendError> {
        const HAS_TLS: bool = cfg!(feature = "tls");
        let target = match &self.source {
            ConnectionSource::Client(client) => {
                Target::Server(client.get_connection_info().clone())
            }
            ConnectionSource::Cluster(nodes) => {
                Target::Cluster(cluster_url::parse_nodes(nodes, HAS_TLS)?)
            }
            ConnectionSource::Url(url) if cluster_url::is_of_cluster(url) => {
                Target::Cluster(cluster_url::parse(url, HAS_TLS)?)
            }
            ConnectionSource::Url(url) => match sentinel_url::parse(url, HAS_TLS) {
                Some(sentinels) => Target::Sentinels(self.with_sentinel_client(sentinels?)),
                None => Target::Server(url::parse(url, HAS_TLS, url::SERVER_PORT)?),
            },
        };
        let Some(SentinelSource { addresses, name }) = &self.sentinels else { return Ok(target) };
        let Target::Server(servers) = target else {
            return Err(misconfigured(
                "with `sentinel`, the URL is that of a server: set the Sentinels with `url` or \
                 with `sentinel`, and no nodes of a cluster",
            ));
        };
        if addresses.is_empty() || name.is_empty() {
            return Err(misconfigured("`sentinel` needs an address and the name of a primary"));
        }
        let parsed = addresses.iter().map(|address| sentinel_url::parse_address(address, HAS_TLS));
        let sentinels = parsed.collect::<Result<_, _>>()?;
        let name = name.clone();
        let target = self.with_sentinel_client(SentinelUrl { servers, sentinels, name });
        Ok(Target::Sentinels(target))
    }

    fn with_sentinel_client(&self, url: SentinelUrl) -> SentinelUrl {
        match &self.sentinel_client {
            Some(client) => url.with_sentinels_like(client.get_connection_info()),
            None => url,
        }
    }
}

#[cfg(feature = "tls")]
impl Target {
    fn uses_tls(&self) -> bool {
        let (servers, sentinels) = match self {
            Self::Server(servers) => (servers, &[][..]),
            Self::Sentinels(target) => (&target.servers, target.sentinels.as_slice()),
            Self::Cluster(seeds) => (&seeds.info, &[][..]),
        };
        let mut all = sentinels.iter().chain([servers]);
        all.any(|info| matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }))
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackendBuilder")
            .field("response_timeout", &self.options.response_timeout)
            .field("connect_timeout", &self.options.connect_timeout)
            .field("key_prefix", &self.key_prefix)
            .finish_non_exhaustive()
    }
}

pub(crate) fn misconfigured(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Configuration, message)
}

fn check_timeout(option: &str, timeout: Duration) -> Result<(), BackendError> {
    if timeout < Duration::from_millis(1) {
        return Err(misconfigured(format!("`{option}` must be at least 1 ms, but is {timeout:?}")));
    }
    Ok(())
}

fn check_replicas(replicas: Option<Replicas>) -> Result<(), BackendError> {
    match replicas {
        Some(Replicas { timeout, .. }) if !Replicas::TIMEOUTS.contains(&timeout) => {
            Err(misconfigured(format!(
                "the timeout of `replicas` must be 1 ms to 1 s, but is {timeout:?}"
            )))
        }
        _ => Ok(()),
    }
}

fn check_prefix(prefix: &str) -> Result<(), BackendError> {
    const MAX_LEN: usize = 128;
    if prefix.len() > MAX_LEN || prefix.contains(['{', '}', '\0']) {
        return Err(misconfigured(
            "`key_prefix` must be at most 128 bytes long, without braces and NUL",
        ));
    }
    Ok(())
}

/// Installs a crypto provider if the program has installed none. rustls does not choose one itself
/// if several are linked.
#[cfg(feature = "tls")]
fn ensure_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed one meanwhile, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(test)]
mod fuzz {
    use std::error::Error;

    use arbtest::{arbitrary::Arbitrary, arbtest};

    use super::*;

    const PASSWORD: &str = "c4n4ry";

    /// Generates text that looks like a URL with a password, percent-encoded or not.
    fn url(u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<String> {
        const ODD: [&str; 22] = [
            "", "", "", "", "@", ":", "/", "?", "#", "%", "%40", "[", "]", "\\", " ", "\n", "1",
            "6379", "&db=1", "\u{fc}", "?x", "//",
        ];
        let scheme = *u.choose(&[
            "redis",
            "redis",
            "rediss",
            "valkey",
            "valkeys",
            "redis+unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "unix",
            "http",
            "REDIS",
            "",
        ])?;
        let user = *u.choose(&["", "", "worker", "a%40b", "w\u{fc}"])?;
        let password = format!("{}{PASSWORD}{}", u.choose(&ODD)?, u.choose(&ODD)?);
        let host = *u.choose(&["localhost", "127.0.0.1", "[::1]", "", "h%20", "[", "a b"])?;
        let rest = *u.choose(&[
            "",
            ":6379",
            ":port",
            ":99999",
            "/1",
            "/x",
            "?protocol=resp3",
            "/1?x=y#z",
            "@host",
            "#@host",
        ])?;
        let mut url = if scheme.contains("unix") {
            format!("{scheme}:///tmp/socket?pass={password}&user={user}{rest}")
        } else {
            format!("{scheme}://{user}:{password}@{host}{rest}")
        };
        if u.ratio(1, 4)? {
            // Any character at any place before the password.
            let place = u.int_in_range(0..=url.len())?;
            if url.is_char_boundary(place) && !url[..place].contains("c4") {
                url.insert(place, char::arbitrary(u)?);
            }
        }
        Ok(url)
    }

    #[test]
    fn no_error_and_no_debug_output_shows_the_password_of_a_url() {
        arbtest(|u| {
            let url = url(u)?;
            let builder = RedisBackendBuilder::new().url(&*url);
            let shown = match builder.target() {
                Ok(Target::Server(info)) => format!("{:?}", FixedAddress(info)),
                Ok(Target::Cluster(seeds)) => format!("{seeds:?}"),
                Ok(Target::Sentinels(target)) => {
                    let limit = Duration::from_secs(1);
                    let group = SentinelGroup::new(target, Login::default(), limit);
                    format!("{:?}", SentinelAddress::new(group))
                }
                Err(error) => {
                    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{url:?}");
                    format!("{error} {error:?} {:?}", error.source())
                }
            };
            let shown = format!("{builder:?} {shown}");
            assert!(!shown.contains(PASSWORD), "{url:?}: {shown}");
            Ok(())
        });
    }
}
