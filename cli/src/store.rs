//! [`StoreUrl`]: from a URL to a client of the store.

use std::{env, sync::Arc, time::Instant};

use lockcore::{
    BackendError, BackendErrorKind, Diagnosis, LockName, Locks, LocksBuilder, backend::Backend,
};
use lockcore_etcd::{EtcdBackend, EtcdBackendBuilder};
use lockcore_postgres::PostgresBackend;
use lockcore_redis::RedisBackend;
use percent_encoding::percent_decode_str;

use crate::{exit::Failure, output, watched::Watched};

/// The variables that are looked at, in this order.
pub(crate) const STORE_VARIABLES: [&str; 2] = ["LOCKCTL_URL", "REDIS_URL"];

/// The store of the locks. The URL may contain a password, so it is never shown.
pub(crate) struct StoreUrl {
    url: String,
    kind: Kind,
    /// `true` if each request is reported.
    is_verbose: bool,
}

/// The backend that a scheme stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Redis,
    Postgres,
    Etcd { tls: bool },
}

impl StoreUrl {
    /// The URL of the option, or that of the environment.
    pub(crate) fn find(option: Option<&str>, is_verbose: bool) -> Result<Self, Failure> {
        Ok(Self { is_verbose, ..Self::given(option)? })
    }

    fn given(option: Option<&str>) -> Result<Self, Failure> {
        if let Some(url) = option {
            return Self::new(url, "--url");
        }
        for variable in STORE_VARIABLES {
            match env::var(variable) {
                Ok(url) if url.is_empty() => {}
                Ok(url) => return Self::new(&url, variable),
                Err(env::VarError::NotPresent) => {}
                Err(env::VarError::NotUnicode(_)) => {
                    return Err(Failure::usage(format!("{variable} is not valid UTF-8")));
                }
            }
        }
        Err(Failure::usage(
            "no store is given; set LOCKCTL_URL or pass --url, such as redis://127.0.0.1:6379",
        ))
    }

    fn new(url: &str, origin: &str) -> Result<Self, Failure> {
        // Without the slashes, as in `unix:/run/redis.sock`, messages could not tell that it is a URL
        // and would show its password.
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let kind = match scheme.as_str() {
            "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+sentinel"
            | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => Kind::Redis,
            "postgres" | "postgresql" => Kind::Postgres,
            "etcd" => Kind::Etcd { tls: false },
            "etcds" => Kind::Etcd { tls: true },
            // The text is not repeated, because it may contain a password.
            _ => {
                return Err(Failure::usage(format!(
                    "{origin} has no scheme that is known; begin it with redis://, rediss://, \
                     valkey://, unix://, redis+sentinel://, redis+cluster://, postgres://, \
                     etcd:// or etcds://"
                )));
            }
        };
        Ok(Self { url: url.to_owned(), kind, is_verbose: false })
    }

    /// The URL, as it may be shown.
    pub(crate) fn shown(&self) -> String {
        output::escaped(&output::without_passwords(&self.url))
    }

    /// Connects to the store.
    pub(crate) async fn connect(&self) -> Result<LocksBuilder, Failure> {
        Ok(self.backend_and_locks(true).await?.1)
    }

    /// Connects to the store, to look at it. Nothing is created, so that a mistake in the URL leaves
    /// nothing in the database of somebody else.
    pub(crate) async fn open(&self) -> Result<Store, NotOpened> {
        let (backend, locks) = self.backend_and_locks(false).await?;
        Ok(Store { backend, locks: locks.build().map_err(Failure::from)? })
    }

    async fn backend_and_locks(
        &self,
        migrates: bool,
    ) -> Result<(Arc<dyn Backend>, LocksBuilder), NotOpened> {
        let began = Instant::now();
        tracing::debug!(url = self.shown(), "connecting");
        let connected = match self.kind {
            Kind::Redis => {
                self.both(RedisBackend::connect(&self.url).await.map_err(Failure::from)?)
            }
            Kind::Postgres => {
                let builder = PostgresBackend::builder(&self.url).migrate(migrates);
                self.both(builder.connect().await.map_err(of_postgres)?)
            }
            Kind::Etcd { tls } => self.both(EtcdUrl::parse(&self.url, tls)?.connect().await?),
        };
        tracing::info!(url = self.shown(), took = ?began.elapsed(), "connected");
        Ok(connected)
    }

    /// The backend, and a builder of clients.
    fn both(&self, backend: impl Backend + Clone) -> (Arc<dyn Backend>, LocksBuilder) {
        match self.is_verbose {
            true => both(Watched(backend)),
            false => both(backend),
        }
    }

    /// Connects to the store for names that are used once.
    pub(crate) async fn connect_for_a_while(&self) -> Result<(LocksBuilder, Traces), Failure> {
        match self.kind {
            Kind::Redis => {
                let backend = RedisBackend::connect(&self.url).await?;
                Ok((Locks::builder(backend.clone()), Traces(Some(backend))))
            }
            Kind::Postgres | Kind::Etcd { .. } => Ok((self.connect().await?, Traces(None))),
        }
    }

    /// Checks whether the store is fit for locks, even one that [`connect`](Self::connect) refuses.
    pub(crate) async fn diagnose(&self) -> Result<Diagnosis, Failure> {
        Ok(match self.kind {
            Kind::Redis => RedisBackend::builder().url(&self.url).diagnose().await?,
            Kind::Postgres => PostgresBackend::builder(&self.url).diagnose().await?,
            Kind::Etcd { tls } => {
                let builder = EtcdUrl::parse(&self.url, tls)?.builder();
                builder.diagnose().await.map_err(of_etcd)?
            }
        })
    }
}

/// The reason why a store cannot be opened.
#[derive(Debug)]
pub(crate) struct NotOpened {
    pub(crate) failure: Failure,
    /// Set if there is no schema yet, or an older one, and all else is well.
    pub(crate) lacks_schema: bool,
}

impl From<Failure> for NotOpened {
    fn from(failure: Failure) -> Self {
        Self { failure, lacks_schema: false }
    }
}

impl From<NotOpened> for Failure {
    fn from(not_opened: NotOpened) -> Self {
        not_opened.failure
    }
}

/// The failure of a connection to PostgreSQL, in terms of the command line.
fn of_postgres(error: BackendError) -> NotOpened {
    let lacks_schema = error.kind() == BackendErrorKind::Configuration
        && error.to_string().contains("has version");
    let mut failure = Failure::from(error);
    if lacks_schema {
        failure = Failure::new(
            failure.exit,
            format!(
                "{failure}; this command only looks at the schema: if it is the right database, \
                 the first `lockctl run` makes or migrates it"
            ),
        );
    }
    NotOpened { failure, lacks_schema }
}

/// The failure of a connection to etcd, in terms of the command line: the backend has endpoints
/// with other schemes.
fn of_etcd(error: BackendError) -> Failure {
    match error.to_string().split_once(" is no endpoint") {
        Some((endpoint, _)) => Failure::usage(format!(
            "{} has no valid host and port; give etcd://host:port, or etcds://host:port for TLS",
            endpoint.replacen("http", "etcd", 1)
        )),
        None => error.into(),
    }
}

/// A store, and a client of it. Both use the same connections.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) locks: Locks,
}

fn both(backend: impl Backend + Clone) -> (Arc<dyn Backend>, LocksBuilder) {
    (Arc::new(backend.clone()), Locks::builder(backend))
}

/// The data that a store keeps for used names: on Redis, the last fencing token, for a day.
#[derive(Clone, Debug)]
pub(crate) struct Traces(Option<RedisBackend>);

impl Traces {
    /// Removes the data that is kept for a name.
    pub(crate) async fn remove(&self, name: &LockName) -> Result<(), Failure> {
        if let Some(backend) = &self.0 {
            backend.forget(name).await?;
        }
        Ok(())
    }
}

/// The members of a cluster of etcd, for which there is no URL elsewhere.
#[derive(PartialEq, Eq)]
struct EtcdUrl {
    endpoints: Vec<String>,
    user: Option<(String, String)>,
    prefix: Option<String>,
}

impl EtcdUrl {
    fn parse(url: &str, tls: bool) -> Result<Self, Failure> {
        // Without `@` after `://`: what is before it would not be shown, as in a URL.
        const FORM: &str = "etcd://host[:port],host[:port][/prefix], with `user:password@` before \
                            the first host if there is a login";
        let rest = url.split_once("://").map(|(_, rest)| rest).unwrap_or_default();
        if rest.contains(['?', '#']) {
            return Err(Failure::usage(format!(
                "the URL of etcd has a `?` or `#`, which are %3F and %23; its form is {FORM}"
            )));
        }
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if prefix.contains('@') {
            // Otherwise a part of the password could be taken for a host, and shown.
            return Err(Failure::usage(
                "the URL of etcd has a `/` before an `@`; write `/` in a password as %2F, and `@` \
                 in a prefix as %40",
            ));
        }
        // The last one: a password may contain an unescaped `@`, and a host cannot.
        let (login, hosts) = match members.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, members),
        };
        let hosts: Vec<&str> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        if hosts.is_empty() {
            return Err(Failure::usage(format!("the URL of etcd has no host; its form is {FORM}")));
        }
        let user = match login.map(|login| login.split_once(':')) {
            None => None,
            Some(Some((name, password))) => Some((decoded(name)?, decoded(password)?)),
            Some(None) => {
                return Err(Failure::usage(format!(
                    "the URL of etcd has a user without a password; its form is {FORM}"
                )));
            }
        };
        let scheme = if tls { "https" } else { "http" };
        Ok(Self {
            endpoints: hosts.into_iter().map(|host| format!("{scheme}://{host}")).collect(),
            user,
            prefix: (!prefix.is_empty()).then(|| decoded(prefix)).transpose()?,
        })
    }

    async fn connect(self) -> Result<EtcdBackend, Failure> {
        self.builder().connect().await.map_err(of_etcd)
    }

    fn builder(self) -> EtcdBackendBuilder {
        let mut builder = EtcdBackend::builder(self.endpoints);
        if let Some((name, password)) = self.user {
            builder = builder.user(name, password);
        }
        if let Some(prefix) = self.prefix {
            builder = builder.prefix(prefix);
        }
        builder
    }
}

fn decoded(part: &str) -> Result<String, Failure> {
    let decoded = percent_decode_str(part).decode_utf8();
    let invalid = |_| Failure::usage("the URL of etcd has an escape that is not UTF-8");
    decoded.map(Into::into).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn schemes_name_backends() {
        let kind = |url| StoreUrl::new(url, "--url").ok().map(|url| url.kind);
        assert_eq!(kind("valkey://h"), Some(Kind::Redis));
        assert_eq!(kind("rediss+sentinel://h/m"), Some(Kind::Redis));
        assert_eq!(kind("PostgreSQL://h/db"), Some(Kind::Postgres));
        assert_eq!(kind("etcds://h"), Some(Kind::Etcd { tls: true }));
        for wrong in ["mysql://me:secret@h", "unix:/run/redis?pass=secret", "redis:secret@h", ""] {
            let failure = StoreUrl::new(wrong, "--url").err().unwrap().to_string();
            assert!(failure.contains("--url") && !failure.contains("secret"), "{failure}");
        }
        assert_eq!(kind("unix:///run/redis?pass=secret"), Some(Kind::Redis));
    }

    #[test]
    fn a_url_of_etcd_names_members_user_and_prefix() {
        let url = EtcdUrl::parse("etcd://me:p%40s@@a:1,b/shop/locks", false).unwrap();
        assert_eq!(url.endpoints, ["http://a:1", "http://b"]);
        assert_eq!(url.user, Some(("me".into(), "p@s@".into())));
        assert_eq!(url.prefix.as_deref(), Some("shop/locks"));
        let url = EtcdUrl::parse("etcd://h:2379/pre%40fix", false).unwrap();
        assert_eq!((url.endpoints, url.user), (vec!["http://h:2379".into()], None));
        assert_eq!(url.prefix.as_deref(), Some("pre@fix"));
        let url = EtcdUrl::parse("etcds://a", true).unwrap();
        assert_eq!((url.endpoints, url.prefix), (vec!["https://a".into()], None));
        for wrong in ["etcd://", "etcd:///x", "etcd://secret@h", "etcd://h?tls"] {
            let failure = EtcdUrl::parse(wrong, false).err().unwrap().to_string();
            assert!(!failure.contains("secret"), "{failure}");
            assert!(failure.contains("etcd://host[:port],") && !failure.contains("***"));
        }
    }

    #[test]
    fn a_password_of_etcd_is_not_taken_for_a_host() {
        for wrong in ["etcd://me:secret/1@h", "etcd://me:1@secret/1@h", "etcd://secret/pre@fix"] {
            let failure = EtcdUrl::parse(wrong, false).err().unwrap();
            assert_eq!(failure.exit, Exit::USAGE);
            let failure = failure.to_string();
            assert!(failure.contains("%2F") && !failure.contains("secret"), "{failure}");
        }
    }
}
