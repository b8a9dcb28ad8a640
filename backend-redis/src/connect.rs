//! [`RedisBackendBuilder`], and [`Connector`], which opens connections.

use std::{fmt, sync::Arc, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo,
    aio::MultiplexedConnection, io::tcp::socket2::TcpKeepalive,
};

use crate::{RedisBackend, error, health};

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
}

enum ConnectionSource {
    Url(String),
    Client(Box<Client>),
}

impl RedisBackendBuilder {
    pub(crate) fn new() -> Self {
        Self {
            source: ConnectionSource::Url("redis://127.0.0.1:6379".into()),
            response_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            key_prefix: String::new(),
            eviction_allowed: false,
        }
    }

    /// Sets the URL of the server. The default is `redis://127.0.0.1:6379`.
    ///
    /// - `redis://[user][:password@]host[:port][/database]`
    /// - `rediss://...`: the same over TLS, with the root certificates of the system. There is no
    ///   fallback to plain text. Needs the feature `tls`.
    /// - `unix:///path/to/socket[?db=1&user=...&pass=...]`
    ///
    /// `valkey://` and `valkeys://` work like `redis://` and `rediss://`. Percent-encode characters
    /// that are special in URLs.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = ConnectionSource::Url(url.into());
        self
    }

    /// Uses the settings of `client` instead of a URL. This allows client certificates and a
    /// private certificate authority; see `redis::Client::build_with_tls`, which exists with the feature
    /// `tls`. The backend opens its own connections, with RESP3 and with the timeouts set here.
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
    ///   needs the feature `tls` in a build without it, and for a server that evicts keys, is a Sentinel, or is part of a cluster.
    /// - [`ReadOnly`](BackendErrorKind::ReadOnly) for a replica.
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
        let connector = Arc::new(Connector::new(
            &self.source,
            self.response_timeout,
            self.connect_timeout,
            self.eviction_allowed,
        )?);
        RedisBackend::connect_with(connector, self.key_prefix).await
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

fn misconfigured(message: impl Into<String>) -> BackendError {
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

/// Parses a URL. One over TLS is refused unless this build `has_tls`. The parser's own error is
/// dropped: it may quote the URL, and with it the password.
fn parse(url: &str, has_tls: bool) -> Result<ConnectionInfo, BackendError> {
    // An `@` after the host means that the password has a `/`, `?` or `#` in it. Its first part was
    // then parsed as the host, which would be looked up and shown in messages.
    let url = redis::parse_redis_url(url).filter(|url| {
        let after_host = [Some(url.path()), url.query(), url.fragment()];
        let has_split_password =
            url.host().is_some() && after_host.into_iter().flatten().any(|part| part.contains('@'));
        !has_split_password
    });
    if !has_tls && url.as_ref().is_some_and(|url| matches!(url.scheme(), "rediss" | "valkeys")) {
        return Err(misconfigured(
            "a rediss:// or valkeys:// URL needs TLS, which this build lacks; \
             turn on the feature `tls` of lockcore-redis",
        ));
    }
    let info = url.and_then(|url| url.into_connection_info().ok());
    info.ok_or_else(|| {
        misconfigured(
            "the URL is not that of a Redis server; use redis://, rediss:// or unix:// with a host \
             or path, and percent-encode special characters",
        )
    })
}

/// Opens connections to one server.
pub(crate) struct Connector {
    client: Client,
    /// Host and port, or the path of the socket. Shown in messages, so it has no credentials.
    address: String,
    pub(crate) response_timeout: Duration,
    connect_timeout: Duration,
    eviction_allowed: bool,
}

impl Connector {
    fn new(
        source: &ConnectionSource,
        response_timeout: Duration,
        connect_timeout: Duration,
        eviction_allowed: bool,
    ) -> Result<Self, BackendError> {
        let info = match source {
            ConnectionSource::Client(client) => client.get_connection_info().clone(),
            ConnectionSource::Url(url) => parse(url, cfg!(feature = "tls"))?,
        };
        let address = info.addr().to_string();
        #[cfg(feature = "tls")]
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            ensure_crypto_provider();
        }
        // Detects a dead peer in well under a minute. A pending request has its own timeout.
        let probe = Duration::from_secs(5);
        let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = Client::open(info).map_err(|error| error::of_connecting(error, &address))?;
        Ok(Self { client, address, response_timeout, connect_timeout, eviction_allowed })
    }

    /// Opens a connection for commands, and checks that the server can be trusted with locks.
    pub(crate) async fn open_checked(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, BackendError> {
        let mut connection = self.open(on_push).await?;
        health::check(&mut connection, &self.address, self.eviction_allowed).await?;
        Ok(connection)
    }

    /// Opens a connection. `on_push` is called for each message, and when the connection breaks.
    pub(crate) async fn open(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, BackendError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(move |push| {
                on_push(push);
                Ok::<(), ()>(())
            });
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| error::of_connecting(error, &self.address))
    }
}

/// Omits the client, which knows the password.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.address).finish_non_exhaustive()
    }
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
mod tests {
    use super::*;

    #[test]
    fn without_tls_a_url_that_needs_it_is_refused_and_the_error_names_the_feature() {
        for url in
            ["rediss://localhost", "REDISS://:c4n4ry@[::1]:6380/2", "valkeys://host#insecure"]
        {
            let error = parse(url, false).unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{url}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("feature `tls` of lockcore-redis"), "{url}: {shown}");
            assert!(!shown.contains("c4n4ry"), "{url}: {shown}");
        }
        for url in ["redis://localhost", "valkey://[::1]", "unix:///tmp/rediss"] {
            assert!(parse(url, false).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    #[cfg(not(feature = "tls"))]
    async fn a_build_without_tls_refuses_to_connect_over_it() {
        let error = RedisBackend::connect("rediss://localhost").await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_build_with_tls_connects_over_it() {
        for url in ["rediss://localhost", "valkeys://localhost"] {
            let info = parse(url, cfg!(feature = "tls")).unwrap();
            assert!(matches!(info.addr(), redis::ConnectionAddr::TcpTls { insecure: false, .. }));
        }
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
            let second = Duration::from_secs(1);
            let shown = match Connector::new(&builder.source, second, second, false) {
                Ok(connector) => format!("{connector:?} {}", connector.address),
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
