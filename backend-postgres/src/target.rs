//! [`Target`]: the server to connect to, and how.

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, Socket,
    config::{Host, LoadBalanceHosts, TargetSessionAttrs},
    tls::{MakeTlsConnect, TlsStream},
};
use uuid::Uuid;

use crate::error;

/// How long written data may stay without acknowledgement by the server's machine.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// The TLS settings.
#[derive(Clone)]
pub(crate) enum Tls {
    None,
    #[cfg(feature = "tls")]
    Rustls(tokio_postgres_rustls::MakeRustlsConnect),
}

/// A server, or several servers of which one takes writes.
#[derive(Clone)]
pub(crate) struct Target {
    config: Config,
    tls: Tls,
    /// The address for messages, without user and password.
    address: String,
    connect_timeout: Duration,
    /// The host that was connected to last, which is tried first.
    last_good: Arc<AtomicUsize>,
}

/// An open connection, and the task that drives it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    /// The number of the host that it leads to.
    host: usize,
}

/// The task that reads and writes for a [`Client`]. It ends with the connection, and the connection
/// ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Driver(JoinHandle<()>);

impl Driver {
    /// Resolves when the connection is lost.
    pub(crate) async fn lost(&mut self) {
        // It was aborted, or has panicked: the connection is gone in each case.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Target {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.address).finish()
    }
}

impl Target {
    pub(crate) fn parse(url: &str, connect_timeout: Duration) -> Result<Config, BackendError> {
        // The error of the parser could show a part of the password.
        let mut config = Config::from_str(url).map_err(|_| {
            error::configuration(
                "the URL of PostgreSQL is not valid; it has the form \
                 postgresql://user:password@host:port/database, with special characters in the \
                 password percent-encoded, and the options that tokio-postgres knows",
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(error::configuration("the URL of PostgreSQL names no host"));
        }
        config.connect_timeout(connect_timeout);
        if config.get_target_session_attrs() != TargetSessionAttrs::ReadOnly {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        #[cfg(target_os = "linux")]
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(UNACKNOWLEDGED);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = UNACKNOWLEDGED;
        Ok(config)
    }

    pub(crate) fn new(config: Config, tls: Tls, connect_timeout: Duration) -> Self {
        let address = address_of(&config);
        Self { config, tls, address, connect_timeout, last_good: Arc::default() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The same target, even if the server takes no writes.
    pub(crate) fn of_any_role(&self) -> Self {
        let mut target = self.clone();
        target.config.target_session_attrs(TargetSessionAttrs::Any);
        target
    }

    /// Opens a connection. The server's notifications go to `inbox`.
    pub(crate) async fn open(
        &self,
        inbox: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Opened, BackendError> {
        let id = Uuid::new_v4().simple().to_string();
        let given = self.config.get_application_name().unwrap_or("lockcore");
        // No other connection has this name. PostgreSQL cuts names after 63 bytes.
        let short: String = given.chars().take(20).filter(char::is_ascii).collect();
        let application = format!("{short} {id}");
        let count = count_of_hosts(&self.config);
        let first = match self.config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => usize::from(Uuid::new_v4().as_bytes()[0]),
            _ => self.last_good.load(Ordering::Relaxed),
        };
        let mut failures = Vec::new();
        for host in (0..count).map(|at| (first + at) % count) {
            match self.open_host(host, &application, inbox.clone()).await {
                Ok(opened) => {
                    self.last_good.store(host, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(error) => failures.push(error),
            }
        }
        Err(self.failure(failures))
    }

    /// The error that says how each host failed.
    fn failure(&self, failures: Vec<BackendError>) -> BackendError {
        // A server that answers, and does not take writes, says the most.
        let is_read_only = |error: &&BackendError| error.kind() == BackendErrorKind::ReadOnly;
        let Some(worst) = failures.iter().find(is_read_only).or(failures.last()) else {
            return error::not_connected(&self.address, self.connect_timeout);
        };
        if failures.len() == 1 {
            return worst.clone();
        }
        let said: Vec<_> = failures.iter().map(ToString::to_string).collect();
        BackendError::new(worst.kind(), said.join("; ")).not_applied()
    }

    /// Begins with the next host from now on, because this connection was not of use.
    pub(crate) fn leave_host_of(&self, opened: &Opened) {
        let next = (opened.host + 1) % count_of_hosts(&self.config).max(1);
        // Unless another connection has led elsewhere meanwhile.
        let order = Ordering::Relaxed;
        let _ = self.last_good.compare_exchange(opened.host, next, order, order);
    }

    /// Opens a connection to one of the hosts, within the time limit for all steps together: a
    /// server that is frozen still accepts TCP connections, and must not keep the next host from
    /// being tried.
    async fn open_host(
        &self,
        host: usize,
        application: &str,
        inbox: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Opened, BackendError> {
        let mut config = only_host(&self.config, host);
        config.application_name(application);
        let (address, limit) = (address_of(&config), self.connect_timeout);
        let opened = match &self.tls {
            Tls::None => tokio::time::timeout(limit, connect(&config, NoTls, inbox)).await,
            #[cfg(feature = "tls")]
            Tls::Rustls(tls) => {
                tokio::time::timeout(limit, connect(&config, tls.clone(), inbox)).await
            }
        };
        match opened {
            Ok(Ok((client, driver))) => Ok(Opened { client, driver, host }),
            Ok(Err(error)) => Err(error::of_connecting(error, &address)),
            Err(_) => Err(error::not_connected(&address, limit)),
        }
    }
}

/// The number of hosts. A host has a name, an IP address, or both.
fn count_of_hosts(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// The same settings for one host only.
fn only_host(config: &Config, at: usize) -> Config {
    let count = count_of_hosts(config);
    if count == 1 {
        return config.clone();
    }
    let mut one = Config::new();
    match config.get_hosts().get(at) {
        Some(Host::Tcp(name)) => _ = one.host(name),
        #[cfg(unix)]
        Some(Host::Unix(path)) => _ = one.host_path(path),
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(at) {
        one.hostaddr(*address);
    }
    let ports = config.get_ports();
    if let Some(port) = ports.get(at).or(ports.first()) {
        one.port(*port);
    }
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
    config.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
    config.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding());
    one
}

async fn connect<T>(
    config: &Config,
    tls: T,
    inbox: Option<mpsc::UnboundedSender<Notification>>,
) -> Result<(Client, Driver), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    Ok((client, Driver(tokio::spawn(drive(connection, inbox)))))
}

/// Reads and writes until the connection ends.
async fn drive<S>(
    connection: Connection<Socket, S>,
    inbox: Option<mpsc::UnboundedSender<Notification>>,
) where
    S: TlsStream + Unpin,
{
    let mut connection = pin!(connection);
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                // Nobody listens any more: the connection is about to be closed.
                let _ = inbox.as_ref().map(|inbox| inbox.send(notification));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to PostgreSQL is lost");
                return;
            }
            None => return,
        }
    }
}

fn address_of(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let hosts: Vec<String> = match config.get_hosts() {
        [] => config.get_hostaddrs().iter().map(ToString::to_string).collect(),
        hosts => hosts.iter().map(name_of).collect(),
    };
    let addresses = hosts.iter().enumerate().map(|(at, host)| format!("{host}:{}", port(at)));
    addresses.collect::<Vec<_>>().join(",")
}

fn name_of(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}
