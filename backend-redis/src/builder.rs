//! [`RedisBackendBuilder`].

use std::{fmt, sync::OnceLock, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Client, ConnectionInfo};

use crate::{
    RedisBackend,
    cluster::{Cluster, ClusterMessages, NodeOptions},
    server::{Server, address::FixedAddress, opener::Opener},
    url::{self, ClusterSeeds},
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
    response_timeout: Duration,
    connect_timeout: Duration,
    key_prefix: String,
    eviction_allowed: bool,
    cluster_messages: ClusterMessages,
}

enum ConnectionSource {
    Url(String),
    Client(Box<Client>),
    Cluster(Vec<String>),
}

impl ConnectionSource {
    fn place(&self) -> Result<Place, BackendError> {
        const HAS_TLS: bool = cfg!(feature = "tls");
        let place = match self {
            Self::Client(client) => Place::Server(client.get_connection_info().clone()),
            Self::Url(url) if url::is_of_cluster(url) => {
                Place::Cluster(url::parse_cluster(url, HAS_TLS)?)
            }
            Self::Url(url) => Place::Server(url::parse(url, HAS_TLS)?),
            Self::Cluster(nodes) => Place::Cluster(url::parse_nodes(nodes, HAS_TLS)?),
        };
        #[cfg(feature = "tls")]
        if matches!(place.info().addr(), redis::ConnectionAddr::TcpTls { .. }) {
            ensure_crypto_provider();
        }
        Ok(place)
    }
}

/// Where to connect to.
enum Place {
    Server(ConnectionInfo),
    /// Some nodes of a cluster; at least one.
    Cluster(ClusterSeeds),
}

impl Place {
    #[cfg(feature = "tls")]
    fn info(&self) -> &ConnectionInfo {
        match self {
            Self::Server(info) | Self::Cluster(ClusterSeeds { info, .. }) => info,
        }
    }
}

impl RedisBackendBuilder {
    pub(crate) fn new() -> Self {
        Self {
            source: ConnectionSource::Url("redis://127.0.0.1:6379".into()),
            response_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            key_prefix: String::new(),
            eviction_allowed: false,
            cluster_messages: ClusterMessages::Auto,
        }
    }

    /// Sets the URL of the server. The default is `redis://127.0.0.1:6379`. A host name is looked
    /// up for every connection that is opened.
    ///
    /// - `redis://[user][:password@]host[:port][/database]`
    /// - `rediss://...`: the same over TLS, with the root certificates of the system. There is no
    ///   fallback to plain text. Needs the feature `tls`.
    /// - `unix:///path/to/socket[?db=1&user=...&pass=...]`
    /// - `redis+cluster://[user][:password@]host[:port][,host[:port]...]` and
    ///   `rediss+cluster://...`: some nodes of a Redis Cluster; see [`cluster`](Self::cluster).
    ///
    /// The URL of one node of a cluster leads to the cluster as well.
    ///
    /// `valkey://` and `valkeys://` work like `redis://` and `rediss://`. Percent-encode characters
    /// that are special in URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = ConnectionSource::Url(url.into());
        self
    }

    /// Uses a Redis Cluster instead of a single server. `nodes` are some of its nodes, each
    /// `host:port`; the default port is 6379. One that can be reached is enough, be it a replica:
    /// it knows the others. Credentials and TLS need a URL `redis+cluster://` or
    /// `rediss+cluster://`.
    ///
    /// Each lock is in one slot of the cluster, and so on one primary and its replicas. The backend
    /// follows slots that move and replicas that take over. A replica that takes over may not have
    /// the last locks, because Redis replicates later than it answers; the fencing tokens rise all
    /// the same.
    pub fn cluster(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.source = ConnectionSource::Cluster(nodes.into_iter().map(Into::into).collect());
        self
    }

    /// Sets how waiters are woken on a cluster: [`ClusterMessages::Auto`] by default, as Redisson
    /// chooses. Without a cluster it has no effect.
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

    /// Sets how long a reply may take: at least 1 ms, 3 s by default. After that, the outcome of
    /// the request is unknown, and an acquisition is undone.
    ///
    /// Keep it well below a third of the lease, so that a failed renewal can be repeated in time.
    /// More than 5 s has no effect, because the core does not wait longer.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how long connecting may take, including TLS and authentication: at least 1 ms, 5 s by
    /// default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets a prefix for the names of all locks in Redis, like a name mapper in Redisson. It is at
    /// most 128 bytes long, without braces and NUL. By default it is empty.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Accepts a server that evicts keys when its memory is full, and logs a warning. If the key of
    /// a lock is evicted, the lock is lost. Its holder learns of that with the next renewal; until
    /// then, another owner can acquire the lock.
    pub fn allow_eviction(mut self) -> Self {
        self.eviction_allowed = true;
        self
    }

    /// Connects, and checks that the server can be trusted with locks.
    ///
    /// # Errors
    /// - [`Configuration`](BackendErrorKind::Configuration) for a bad URL or option, for a URL that
    ///   needs the feature `tls` in a build without it, for a server that evicts keys or is a
    ///   Sentinel, for a database other than 0 on a cluster, and for nodes without a cluster.
    /// - [`ReadOnly`](BackendErrorKind::ReadOnly) for a replica.
    /// - [`Unavailable`](BackendErrorKind::Unavailable) for a server that is loading its data.
    /// - [`Auth`](BackendErrorKind::Auth) for wrong credentials.
    /// - [`Connection`](BackendErrorKind::Connection) and [`Timeout`](BackendErrorKind::Timeout) if
    ///   the server cannot be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open.
    pub async fn connect(self) -> Result<RedisBackend, BackendError> {
        check_timeout("response_timeout", self.response_timeout)?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_prefix(&self.key_prefix)?;
        let seeds = match self.source.place()? {
            Place::Cluster(seeds) => seeds,
            Place::Server(info) => {
                let opener = Opener {
                    address: Box::new(FixedAddress(info.clone())),
                    response_timeout: self.response_timeout,
                    connect_timeout: self.connect_timeout,
                    eviction_allowed: self.eviction_allowed,
                    is_cluster_node: OnceLock::new(),
                };
                let server = Server::new(opener);
                if !server.is_cluster_node().await? {
                    return Ok(RedisBackend::on_server(server, self.key_prefix));
                }
                ClusterSeeds::of_node(info)?
            }
        };
        let options = NodeOptions {
            info: seeds.info,
            response_timeout: self.response_timeout,
            connect_timeout: self.connect_timeout,
            eviction_allowed: self.eviction_allowed,
        };
        let cluster = Cluster::connect(options, seeds.nodes, self.cluster_messages).await?;
        Ok(RedisBackend::on_cluster(cluster, self.key_prefix))
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackendBuilder")
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
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
            let shown = match builder.source.place() {
                Ok(Place::Server(info)) => format!("{:?}", FixedAddress(info)),
                Ok(Place::Cluster(seeds)) => format!("{seeds:?}"),
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
