//! [`PostgresBackendBuilder`].

use std::{fmt, ops::RangeInclusive, time::Duration};

use lockcore::{BackendError, Diagnosis};
use tokio_postgres::{Config, config::SslMode};

use crate::{
    PostgresBackend,
    diagnosis::{self, Patient},
    error,
    schema::Schema,
    target::{Target, Tls},
};

/// The allowed number of connections for requests.
const CONNECTIONS: RangeInclusive<usize> = 1..=64;

/// The allowed time-outs.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Settings of a [`PostgresBackend`], which [`connect`](Self::connect) makes.
///
/// # Examples
/// ```no_run
/// use lockcore_postgres::PostgresBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockcore::BackendError> {
/// let backend = PostgresBackend::builder("postgresql://shop@pooler.internal:6432/shop")
///     .listen_url("postgresql://shop@db.internal:5432/shop")
///     .schema("shop_locks")
///     .connect()
///     .await?;
/// # drop(backend); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct PostgresBackendBuilder {
    url: String,
    listen_url: Option<String>,
    schema: String,
    connections: usize,
    migrates: bool,
    response_timeout: Duration,
    connect_timeout: Duration,
    sweep_interval: Duration,
    #[cfg(feature = "tls")]
    roots: Vec<u8>,
}

impl fmt::Debug for PostgresBackendBuilder {
    /// Without the URLs, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackendBuilder")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("migrates", &self.migrates)
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("sweep_interval", &self.sweep_interval)
            .finish_non_exhaustive()
    }
}

/// The settings that a [`PostgresBackend`] connects with.
#[derive(Debug)]
pub(crate) struct ConnectSettings {
    pub(crate) requests: Target,
    pub(crate) wakeups: Target,
    /// Set if requests go through a pooler. Wake-ups then have a URL of their own.
    pub(crate) is_pooled: bool,
    pub(crate) schema: Schema,
    pub(crate) connections: usize,
    pub(crate) migrates: bool,
    pub(crate) response_timeout: Duration,
    pub(crate) sweep_interval: Duration,
}

impl ConnectSettings {
    pub(crate) fn patient(&self) -> Patient {
        Patient {
            requests: self.requests.clone(),
            wakeups: self.wakeups.clone(),
            schema: self.schema.clone(),
            response_timeout: self.response_timeout,
        }
    }
}

impl PostgresBackendBuilder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            listen_url: None,
            schema: "lockcore".to_owned(),
            connections: 4,
            migrates: true,
            response_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            sweep_interval: Duration::from_secs(5),
            #[cfg(feature = "tls")]
            roots: Vec::new(),
        }
    }

    /// Sets a separate URL for the connection on which wake-ups come.
    ///
    /// Requests can go through a pooler in transaction mode. Wake-ups cannot: they need the address
    /// of the server itself, with the same database.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Sets the schema of the tables and functions: letters, digits and underscores. Default:
    /// `lockcore`. Clients with different schemas know nothing of each other's locks.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets the number of connections for requests, 1 to 64. Default: 4. There is one more for
    /// wake-ups.
    ///
    /// All requests for one name go over the same connection. With more connections, more names can
    /// be locked concurrently.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// Sets whether [`connect`](Self::connect) creates and updates the schema. Default: `true`.
    /// Without it, run [`PostgresBackend::schema_script`] beforehand.
    pub fn migrate(mut self, migrates: bool) -> Self {
        self.migrates = migrates;
        self
    }

    /// Sets how long to wait for an answer, 10 ms to 60 s. Default: 3 s. This includes any wait for
    /// the connection to open. The core gives up on a call after 5 s.
    ///
    /// A request waits for others at the server for at most two thirds of it, and for at most 2 s.
    ///
    /// Keep it well below a third of the lease, so that a failed renewal can be repeated in time.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how long a host's name may take to look up, and a connection to each of its addresses
    /// to open: 10 ms to 60 s. Default: 3 s. With several hosts, the next one is tried after that.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Adds root certificates in PEM form to those of the system.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.roots.extend_from_slice(pem.as_ref());
        self.roots.push(b'\n');
        self
    }

    /// Connects, and creates the schema if it is missing.
    ///
    /// # Errors
    /// - [`Configuration`](lockcore::BackendErrorKind::Configuration) for a bad URL or option, for
    ///   a URL that needs the feature `tls` in a build without it, for a database that does not
    ///   exist or has another encoding than UTF8, for a server older than PostgreSQL 13, for a
    ///   schema that is missing or too old and may not be [migrated](Self::migrate), and if no
    ///   wake-ups arrive, as behind a pooler in transaction mode.
    /// - [`ReadOnly`](lockcore::BackendErrorKind::ReadOnly) if a server that answers is a replica,
    ///   or takes no writes from this role, and no other one does.
    /// - [`Auth`](lockcore::BackendErrorKind::Auth) for wrong credentials.
    /// - [`Permission`](lockcore::BackendErrorKind::Permission) if the role lacks a right.
    /// - [`Unavailable`](lockcore::BackendErrorKind::Unavailable) for a server that is starting up
    ///   or has too many connections.
    /// - [`Connection`](lockcore::BackendErrorKind::Connection) and
    ///   [`Timeout`](lockcore::BackendErrorKind::Timeout) if the server cannot be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open. The schema may have
    /// been created.
    pub async fn connect(self) -> Result<PostgresBackend, BackendError> {
        PostgresBackend::open(self.settings()?).await
    }

    /// Checks whether the server is fit for locks, as
    /// [`PostgresBackend::diagnose`](crate::PostgresBackend::diagnose) does, even if
    /// [`connect`](Self::connect) would refuse it: a replica is a finding. It creates no schema.
    ///
    /// # Errors
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration) if a setting cannot work, or
    /// what was in the way of connecting.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    pub async fn diagnose(self) -> Result<Diagnosis, BackendError> {
        diagnosis::diagnose(&self.settings()?.patient()).await
    }

    fn settings(self) -> Result<ConnectSettings, BackendError> {
        if !CONNECTIONS.contains(&self.connections) {
            let message = format!("`connections` is {}; allowed are 1 to 64", self.connections);
            return Err(error::configuration(message));
        }
        let times = [
            ("response_timeout", self.response_timeout),
            ("connect_timeout", self.connect_timeout),
        ];
        for (name, time) in times {
            if !TIMEOUTS.contains(&time) {
                let message = format!("`{name}` is {time:?}; allowed are 10 ms to 60 s");
                return Err(error::configuration(message));
            }
        }
        let schema = Schema::new(&self.schema)?;
        let requests = self.target(&self.url)?;
        let wakeups = match &self.listen_url {
            Some(url) => self.target(url)?,
            None => requests.clone(),
        };
        Ok(ConnectSettings {
            requests,
            wakeups,
            is_pooled: self.listen_url.is_some(),
            schema,
            connections: self.connections,
            migrates: self.migrates,
            response_timeout: self.response_timeout,
            sweep_interval: self.sweep_interval,
        })
    }

    fn target(&self, url: &str) -> Result<Target, BackendError> {
        let config = Target::parse(url, self.connect_timeout)?;
        let tls = self.tls(&config)?;
        Ok(Target::new(config, tls, self.connect_timeout))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, reason = "with TLS it is used")]
    fn tls(&self, config: &Config) -> Result<Tls, BackendError> {
        match config.get_ssl_mode() {
            SslMode::Disable | SslMode::Prefer => Ok(Tls::None),
            _ => Err(error::configuration(
                "the URL asks for TLS; build lockcore-postgres with the feature `tls`",
            )),
        }
    }

    #[cfg(feature = "tls")]
    fn tls(&self, config: &Config) -> Result<Tls, BackendError> {
        match config.get_ssl_mode() {
            SslMode::Disable => Ok(Tls::None),
            _ => crate::tls::with_roots(&self.roots).map(Tls::Rustls),
        }
    }
}
