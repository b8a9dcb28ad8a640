//! [`Target`]: the server to connect to, and how.

use std::{fmt, future::poll_fn, mem, pin::pin, str::FromStr, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use tokio::{net::lookup_host, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, Socket,
    config::{Host, LoadBalanceHosts, TargetSessionAttrs},
    tls::{MakeTlsConnect, TlsStream},
};
use uuid::Uuid;

use crate::{
    error,
    places::{Begin, Place, Places},
};

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
    places: Places,
}

/// An open connection, and the task that drives it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    /// The server's address, for messages.
    pub(crate) address: String,
    place: Place,
    /// Where the attempt began.
    begun: Begin,
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
        check_url(url)?;
        // The error of the parser could show a part of the password.
        let mut config = Config::from_str(url).map_err(|_| {
            error::configuration(
                "the URL of PostgreSQL is not valid; it has the form \
                 postgresql://host:port/database, with user:password@ in front of the host, \
                 special characters in the password percent-encoded, and the options that \
                 tokio-postgres knows",
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(error::configuration("the URL of PostgreSQL names no host"));
        }
        check_counts(&config)?;
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(error::configuration(
                "the URL of PostgreSQL asks for a server that is read-only, which cannot keep \
                 locks; leave target_session_attrs out",
            ));
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(connect_timeout);
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
        Self { config, tls, address, connect_timeout, places: Places::new() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn count_of_hosts(&self) -> usize {
        count_of_hosts(&self.config)
    }

    /// The same target, even if the server takes no writes.
    pub(crate) fn of_any_role(&self) -> Self {
        let mut target = self.clone();
        target.config.target_session_attrs(TargetSessionAttrs::Any);
        target
    }

    /// A name that no other session has.
    pub(crate) fn session_name(&self) -> String {
        let id = Uuid::new_v4().simple().to_string();
        let given = self.config.get_application_name().unwrap_or("lockcore");
        // PostgreSQL cuts names after 63 bytes, and replaces other characters.
        let short: String = given.chars().take(20).filter(|it| matches!(it, ' '..='~')).collect();
        format!("{short} {id}")
    }

    /// Opens a connection for a session with this name. The server's notifications go to `inbox`.
    pub(crate) async fn open(
        &self,
        session: &str,
        inbox: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Opened, BackendError> {
        let begun = self.begin();
        let count = self.count_of_hosts();
        let (mut late, mut failures) = (Vec::new(), Vec::new());
        let mut read_only = Vec::new();
        for nth in 0..=count {
            let found = match (begun.host() + nth) % count {
                _ if nth == count => Ok(mem::take(&mut late)),
                host => self.places_of(host).await,
            };
            let places = match found {
                Ok(places) if nth == 0 => {
                    let early;
                    (early, late) = begun.divide(places);
                    early
                }
                Ok(places) => places,
                Err(error) => {
                    failures.push(error);
                    continue;
                }
            };
            for place in places {
                match self.open_place(place, begun, session, inbox.clone()).await {
                    Ok(opened) => return Ok(opened),
                    Err(error) => {
                        if error.kind() == BackendErrorKind::ReadOnly {
                            read_only.push((failures.len(), place));
                        }
                        failures.push(error);
                    }
                }
            }
        }
        for (at, place) in read_only {
            if let Some(error) = self.of_read_only_role(place, begun, session).await {
                failures[at] = error;
            }
        }
        Err(self.failure(failures))
    }

    /// The error for a server that takes no writes from this role, but is no replica. The server is
    /// asked for that.
    async fn of_read_only_role(
        &self,
        place: Place,
        begun: Begin,
        session: &str,
    ) -> Option<BackendError> {
        let opened = self.of_any_role().open_place(place, begun, session, None).await.ok()?;
        let asked = opened.client.query_typed_one("SELECT pg_is_in_recovery()", &[]);
        let row = timeout(self.connect_timeout, asked).await.ok()?.ok()?;
        let is_replica: bool = row.try_get(0).ok()?;
        (!is_replica).then(|| error::role_is_read_only(&opened.address))
    }

    fn is_random(&self) -> bool {
        self.config.get_load_balance_hosts() == LoadBalanceHosts::Random
    }

    fn begin(&self) -> Begin {
        match self.is_random() {
            true => Begin::Host(random() % self.count_of_hosts()),
            false => self.places.begin(),
        }
    }

    /// The places of one host of the URL. Each address of a name is a place of its own, so that a
    /// server that is frozen, and still accepts TCP connections, does not keep the next one from
    /// being tried. A name is looked up only when its turn has come: one that cannot be resolved
    /// does not delay the hosts before it.
    async fn places_of(&self, host: usize) -> Result<Vec<Place>, BackendError> {
        let named = match (self.config.get_hosts().get(host), self.config.get_hostaddrs().get(host))
        {
            (Some(Host::Tcp(name)), None) => name.as_str(),
            _ => return Ok(vec![Place { host, address: None }]),
        };
        let found = match timeout(self.connect_timeout, lookup_host((named, 0))).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(error::not_looked_up(named, &error)),
            Err(_) => return Err(error::not_looked_up_within(named, self.connect_timeout)),
        };
        let mut places: Vec<Place> = Vec::new();
        for address in found {
            let place = Place { host, address: Some(address.ip()) };
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if self.is_random() && !places.is_empty() {
            let first = random() % places.len();
            places.rotate_left(first);
        }
        Ok(places)
    }

    /// The error that says how each host failed.
    fn failure(&self, failures: Vec<BackendError>) -> BackendError {
        // A server that answers, and does not take writes, says the most. After that, what may pass
        // by itself counts, in whatever order the hosts stand.
        let worst = failures
            .iter()
            .find(|error| error.kind() == BackendErrorKind::ReadOnly)
            .or_else(|| failures.iter().find(|error| error.is_retryable()))
            .or(failures.last());
        let Some(worst) = worst else {
            return error::not_connected(&self.address, self.connect_timeout);
        };
        if failures.len() == 1 {
            return worst.clone();
        }
        let said: Vec<_> = failures.iter().map(BackendError::message).collect();
        BackendError::new(worst.kind(), said.join("; ")).not_applied().with_source(worst.clone())
    }

    /// The server has proven to be of use: the next attempt begins with it.
    pub(crate) fn prefer(&self, opened: &Opened) {
        self.places.prefer(opened.place);
    }

    /// The server was of no use: the next attempt begins with another one.
    pub(crate) fn leave(&self, opened: &Opened) {
        self.places.leave(opened.place, opened.begun);
    }

    /// Opens a connection to one of the places, within the time limit for all steps together.
    async fn open_place(
        &self,
        place: Place,
        begun: Begin,
        session: &str,
        inbox: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Opened, BackendError> {
        let mut config = only(&self.config, place);
        config.application_name(session);
        let (mut address, limit) = (address_of(&config), self.connect_timeout);
        if let Some(ip) = place.address.map(|ip| ip.to_string()).filter(|ip| !address.contains(ip))
        {
            address = format!("{address} ({ip})");
        }
        let opened = match &self.tls {
            Tls::None => timeout(limit, connect(&config, NoTls, inbox)).await,
            #[cfg(feature = "tls")]
            Tls::Rustls(tls) => timeout(limit, connect(&config, tls.clone(), inbox)).await,
        };
        match opened {
            Ok(Ok((client, driver))) => Ok(Opened { client, driver, address, place, begun }),
            Ok(Err(error)) => Err(error::of_connecting(error, &address)),
            Err(_) => Err(error::not_connected(&address, limit)),
        }
    }
}

fn random() -> usize {
    usize::from(Uuid::new_v4().as_bytes()[0])
}

/// The number of hosts. A host has a name, an IP address, or both.
fn count_of_hosts(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// Refuses a URL in which a part of the password would be taken for the host, and shown. The parser
/// takes everything up to the first `@` for the user and the password.
fn check_url(url: &str) -> Result<(), BackendError> {
    let schemes = ["postgresql://", "postgres://"];
    let Some(url) = schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return Ok(());
    };
    let Some((user, rest)) = url.split_once('@') else { return Ok(()) };
    let server = rest.split('?').next().unwrap_or(rest);
    if user.contains(['/', '?']) || server.contains('@') {
        return Err(error::configuration(
            "the URL of PostgreSQL has `@`, `/` or `?` in the user name, the password, the \
             database or an option; write %40 for `@`, %2F for `/` and %3F for `?`",
        ));
    }
    Ok(())
}

/// Refuses a URL whose lists do not fit together: a missing port would be that of another host.
fn check_counts(config: &Config) -> Result<(), BackendError> {
    let [hosts, addresses, ports] =
        [config.get_hosts().len(), config.get_hostaddrs().len(), config.get_ports().len()];
    if hosts != 0 && addresses != 0 && hosts != addresses {
        return Err(error::configuration(format!(
            "the URL of PostgreSQL has {hosts} hosts and {addresses} addresses (hostaddr); give \
             each host an address, or none"
        )));
    }
    let hosts = hosts.max(addresses);
    if ports > 1 && ports != hosts {
        return Err(error::configuration(format!(
            "the URL of PostgreSQL has {ports} ports for {hosts} hosts; give one for all, or one \
             for each"
        )));
    }
    Ok(())
}

/// The same settings for one place only.
fn only(config: &Config, Place { host: at, address }: Place) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(at) {
        Some(Host::Tcp(name)) => _ = one.host(name),
        #[cfg(unix)]
        Some(Host::Unix(path)) => _ = one.host_path(path),
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(at).copied().or(address) {
        one.hostaddr(address);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn urls_that_cannot_work_or_would_show_a_password_are_refused() {
        for (url, word) in [
            ("host=a,b,c port=1,2 user=u", "2 ports for 3 hosts"),
            ("host=a,b hostaddr=10.0.0.1 user=u", "2 hosts and 1 addresses"),
            ("postgresql://u@a/d?target_session_attrs=read-only", "read-only"),
            ("postgresql://u:se@cret@a/d", "%40"),
            ("postgresql://u:s@se/cret@a/d", "%2F"),
            ("postgresql://u:se/cret@a/d", "%2F"),
            ("postgres://u:se?s@cret@a/d", "%3F"),
            ("postgresql://a:5432/d?user=u&password=se@cret", "%40"),
            ("postgresql://a?password=se@cret", "%40"),
        ] {
            let error = Target::parse(url, LIMIT).unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
            assert!(error.to_string().contains(word), "{error}");
            assert!(!error.to_string().contains("cret"), "{error}");
        }
        for url in [
            "host=a,b port=1 user=u",
            "host=a,b port=1,2 hostaddr=10.0.0.1,10.0.0.2 user=u",
            "postgresql://u:s%40%2F@a/d?application_name=a/b@c",
            "postgresql://a/d?user=u&password=s%40%2F",
            "host=a user=u password=x://b@c@d dbname=e",
        ] {
            Target::parse(url, LIMIT).unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_a_socket_or_an_address_is_not() {
        let config = Target::parse("host=127.0.0.1,/tmp,nobody.invalid user=u", LIMIT).unwrap();
        let target = Target::new(config, Tls::None, LIMIT);
        let address = Some([127, 0, 0, 1].into());
        assert_eq!(target.places_of(0).await.unwrap(), [Place { host: 0, address }]);
        assert_eq!(target.places_of(1).await.unwrap(), [Place { host: 1, address: None }]);
        let error = target.places_of(2).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
        assert!(error.to_string().contains("nobody.invalid"), "{error}");
    }
}
