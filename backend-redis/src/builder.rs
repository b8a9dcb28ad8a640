//! [`RedisBackendBuilder`].

use std::{fmt, sync::Arc, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Client, ConnectionInfo};

use crate::{
    CredentialsProvider, RedisBackend,
    credentials::Login,
    sentinel::{
        SentinelAddress, SentinelGroup,
        url::{self as sentinel_url, SentinelUrl},
    },
    server::{
        address::{FixedAddress, Locate},
        opener::Opener,
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
    login: Login,
    sentinel_login: Login,
    response_timeout: Duration,
    connect_timeout: Duration,
    key_prefix: String,
    eviction_allowed: bool,
}

enum ConnectionSource {
    Url(String),
    Client(Box<Client>),
}

/// The Sentinels as the user gave them.
struct SentinelSource {
    addresses: Vec<String>,
    name: String,
}

/// Where to connect to.
enum Target {
    Server(ConnectionInfo),
    Sentinels(SentinelUrl),
}

impl RedisBackendBuilder {
    pub(crate) fn new() -> Self {
        Self {
            source: ConnectionSource::Url("redis://127.0.0.1:6379".into()),
            sentinels: None,
            sentinel_client: None,
            login: Login::default(),
            sentinel_login: Login::default(),
            response_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            key_prefix: String::new(),
            eviction_allowed: false,
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
    ///
    /// `valkey://` and `valkeys://` work like `redis://` and `rediss://`. Percent-encode characters
    /// that are special in URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = ConnectionSource::Url(url.into());
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

    /// Connects to the primary `name` that Sentinels monitor, wherever it is. The addresses of the
    /// Sentinels are `host`, `host:port`, or URLs; the default port is 26379. See
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
        self.login = Login::new(provider);
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
    /// More than 5 s has no effect, because the core does not wait longer.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how long connecting may take, including TLS and authentication: at least 1 ms, 5 s by
    /// default. Finding the primary with Sentinels may take as long, and so may the provider of the
    /// credentials.
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
    ///   needs the feature `tls` in a build without it, for a server that evicts keys, is a
    ///   Sentinel, or is part of a cluster, and for Sentinels that are none or do not know the name
    ///   of the primary.
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
        check_timeout("response_timeout", self.response_timeout)?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_prefix(&self.key_prefix)?;
        let opener = Opener {
            address: self.address()?,
            login: self.login,
            response_timeout: self.response_timeout,
            connect_timeout: self.connect_timeout,
            eviction_allowed: self.eviction_allowed,
        };
        RedisBackend::connect_with(opener, self.key_prefix).await
    }

    fn target(&self) -> Result<Target, BackendError> {
        let has_tls = cfg!(feature = "tls");
        let servers = match &self.source {
            ConnectionSource::Client(client) => client.get_connection_info().clone(),
            ConnectionSource::Url(url) => match sentinel_url::parse(url, has_tls) {
                None => url::parse(url, has_tls, url::SERVER_PORT)?,
                Some(parsed) if self.sentinels.is_none() => {
                    return parsed.map(|url| self.sentinel_target(url));
                }
                Some(_) => {
                    return Err(misconfigured("set the Sentinels with `url` or with `sentinel`"));
                }
            },
        };
        let Some(SentinelSource { addresses, name }) = &self.sentinels else {
            return Ok(Target::Server(servers));
        };
        if addresses.is_empty() || name.is_empty() {
            return Err(misconfigured("`sentinel` needs an address and the name of a primary"));
        }
        let parsed = addresses.iter().map(|address| sentinel_url::parse_address(address, has_tls));
        let sentinels = parsed.collect::<Result<_, _>>()?;
        Ok(self.sentinel_target(SentinelUrl { servers, sentinels, name: name.clone() }))
    }

    fn sentinel_target(&self, url: SentinelUrl) -> Target {
        Target::Sentinels(match &self.sentinel_client {
            Some(client) => url.with_sentinels_like(client.get_connection_info()),
            None => url,
        })
    }

    fn address(&self) -> Result<Arc<dyn Locate>, BackendError> {
        let target = self.target()?;
        #[cfg(feature = "tls")]
        if target.uses_tls() {
            ensure_crypto_provider();
        }
        Ok(match target {
            Target::Server(info) => Arc::new(FixedAddress(info)),
            Target::Sentinels(target) => {
                let login = self.sentinel_login.clone();
                let group = SentinelGroup::new(target, login, self.connect_timeout);
                Arc::new(SentinelAddress::new(group))
            }
        })
    }
}

#[cfg(feature = "tls")]
impl Target {
    fn uses_tls(&self) -> bool {
        let (servers, sentinels) = match self {
            Self::Server(servers) => (servers, &[][..]),
            Self::Sentinels(target) => (&target.servers, target.sentinels.as_slice()),
        };
        let mut all = sentinels.iter().chain([servers]);
        all.any(|info| matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }))
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
            "redis+sentinel",
            "rediss+sentinel",
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
            let shown = match builder.address() {
                Ok(address) => format!("{address:?}"),
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
