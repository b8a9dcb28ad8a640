//! [`EtcdBackendBuilder`].

use std::{fmt, sync::Arc, time::Duration};

use etcd_client::ConnectOptions;
use lockcore::{BackendError, Diagnosis};

use crate::{EtcdBackend, diagnosis, error, members::Members};

/// How long the time-outs may be, in words and in numbers.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

/// The longest prefix of keys, in bytes.
const LONGEST_PREFIX: usize = 256;

/// The interval of pings on a silent connection, and the time-out of a ping. Servers end
/// connections that ping more often than every 5 s.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));

/// Settings of an [`EtcdBackend`], which [`connect`](Self::connect) makes.
///
/// Each endpoint has to be one member of the same cluster. A balancer in front of several breaks
/// the proof that the leader made a renewal, which takes three requests to the same member.
///
/// # Examples
/// ```no_run
/// use lockcore_etcd::EtcdBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockcore::BackendError> {
/// let backend = EtcdBackend::builder(["etcd-0:2379", "etcd-1:2379", "etcd-2:2379"])
///     .user("shop", "secret")
///     .prefix("shop/locks/")
///     .connect()
///     .await?;
/// # drop(backend); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct EtcdBackendBuilder {
    endpoints: Vec<String>,
    prefix: String,
    user: Option<(String, String)>,
    response_timeout: Duration,
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    roots: Vec<u8>,
}

impl fmt::Debug for EtcdBackendBuilder {
    /// Without the password, and without the endpoints, which may contain one by mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackendBuilder")
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

impl EtcdBackendBuilder {
    pub(crate) fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            prefix: "lockcore/".to_owned(),
            user: None,
            response_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            #[cfg(feature = "tls")]
            roots: Vec::new(),
        }
    }

    /// Sets the prefix of all keys, 1 to 256 bytes. Default: `lockcore/`. A slash is added if it
    /// does not end with one.
    ///
    /// Clients with different prefixes know nothing of each other's locks. No prefix should itself
    /// be the prefix of another one in use.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the user and the password. Default: none. The user needs a role that may read and write
    /// all keys that begin with the [`prefix`](Self::prefix).
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Sets how long to wait for an answer, 10 ms to 60 s. Default: 3 s. The core gives up on a
    /// call after 5 s. With several members, each of them gets a half or a third of that, and at
    /// most 4 s.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets how long a connection to one member may take to open, 10 ms to 60 s. Default: 3 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Adds a root certificate in PEM form to those of the system.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.roots.extend_from_slice(pem.as_ref());
        self.roots.push(b'\n');
        self
    }

    /// Connects to the first member that answers. If none does, they are tried again for the sum of
    /// [`connect_timeout`](Self::connect_timeout) and [`response_timeout`](Self::response_timeout):
    /// they may be starting up, or have no leader at the moment.
    ///
    /// A cluster whose database is full takes no new locks. The client connects to it, with a
    /// warning in the log, and can release locks.
    ///
    /// # Errors
    /// - [`Configuration`](lockcore::BackendErrorKind::Configuration) for a bad endpoint or option,
    ///   and for an endpoint that needs the feature `tls` in a build without it.
    /// - [`Auth`](lockcore::BackendErrorKind::Auth) for wrong credentials, or none if the cluster
    ///   has users.
    /// - [`Permission`](lockcore::BackendErrorKind::Permission) if the user may not read the keys
    ///   of the prefix.
    /// - [`Unavailable`](lockcore::BackendErrorKind::Unavailable) if the cluster has no leader.
    /// - [`Connection`](lockcore::BackendErrorKind::Connection) and
    ///   [`Timeout`](lockcore::BackendErrorKind::Timeout) if no member can be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open. A lease without
    /// keys may be left, which ends within seconds.
    pub async fn connect(self) -> Result<EtcdBackend, BackendError> {
        let limit = self.connect_timeout + self.response_timeout;
        let (members, prefix) = self.members()?;
        EtcdBackend::open(members, prefix, limit).await
    }

    /// Checks whether the cluster is fit for locks, as
    /// [`EtcdBackend::diagnose`](crate::EtcdBackend::diagnose) does, even if
    /// [`connect`](Self::connect) would fail: a cluster without a leader is a finding.
    ///
    /// # Errors
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration) if a setting cannot work, or if
    /// no member answers, the error of the first one.
    ///
    /// # Cancel safety
    /// If the future is dropped, a lease of 10 s without keys may be left.
    pub async fn diagnose(self) -> Result<Diagnosis, BackendError> {
        let (members, prefix) = self.members()?;
        diagnosis::diagnose(&members, &prefix).await
    }

    /// Checks the settings. Returns the members, which are not connected to yet, and the prefix.
    fn members(self) -> Result<(Arc<Members>, String), BackendError> {
        let times = [
            ("response_timeout", self.response_timeout),
            ("connect_timeout", self.connect_timeout),
        ];
        for (name, time) in times {
            if !(SHORTEST..=LONGEST).contains(&time) {
                let message = format!("`{name}` is {time:?}; allowed are 10 ms to 60 s");
                return Err(error::configuration(message));
            }
        }
        if self.prefix.is_empty() || self.prefix.len() > LONGEST_PREFIX {
            return Err(error::configuration("`prefix` has to have 1 to 256 bytes"));
        }
        if self.prefix.contains('\0') {
            return Err(error::configuration("`prefix` contains a NUL character; remove it"));
        }
        let addresses =
            self.endpoints.iter().map(|url| address(url)).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(error::configuration("there are no endpoints; give at least one"));
        }
        let options = self.options(is_secure(&addresses)?)?;
        let slash = if self.prefix.ends_with('/') { "" } else { "/" };
        let (has_user, limit) = (self.user.is_some(), self.response_timeout);
        let prefix = self.prefix + slash;
        let members = Members::new(addresses, prefix.clone(), &options, has_user, limit);
        Ok((members, prefix))
    }

    fn options(&self, is_secure: bool) -> Result<ConnectOptions, BackendError> {
        let (interval, timeout) = KEEP_ALIVE;
        let options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(interval, timeout)
            // Servers end idle connections that ask at all.
            .with_keep_alive_while_idle(false)
            // A member that has lost the others answers with an error instead of waiting.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let options = match &self.user {
            Some((name, password)) => options.with_user(name, password),
            None => options,
        };
        self.secured(options, is_secure)
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, reason = "with TLS it is used")]
    fn secured(
        &self,
        options: ConnectOptions,
        is_secure: bool,
    ) -> Result<ConnectOptions, BackendError> {
        match is_secure {
            false => Ok(options),
            true => Err(error::configuration(
                "an endpoint asks for TLS; build lockcore-etcd with the feature `tls`",
            )),
        }
    }

    #[cfg(feature = "tls")]
    #[allow(clippy::unnecessary_wraps, reason = "without TLS it can fail")]
    fn secured(
        &self,
        options: ConnectOptions,
        is_secure: bool,
    ) -> Result<ConnectOptions, BackendError> {
        if !is_secure {
            return Ok(options);
        }
        let tls = etcd_client::TlsOptions::new().with_native_roots();
        let tls = match self.roots.is_empty() {
            true => tls,
            false => tls.ca_certificate(etcd_client::Certificate::from_pem(&self.roots)),
        };
        Ok(options.with_tls(tls))
    }
}

/// Returns `true` if all endpoints ask for TLS, and `false` if none does.
fn is_secure(addresses: &[(String, String)]) -> Result<bool, BackendError> {
    let is_secure = |(_, url): &&(String, String)| url.starts_with("https://");
    let plain = addresses.iter().find(|address| !is_secure(address));
    match (addresses.iter().find(is_secure), plain) {
        (Some((secure, _)), Some((plain, _))) => Err(error::configuration(format!(
            "the endpoint {secure} asks for TLS, and {plain} does not; give either all endpoints \
             or none of them with `https://`"
        ))),
        (secure, _) => Ok(secure.is_some()),
    }
}

/// The address of an endpoint, which is shown, and its URL.
fn address(endpoint: &str) -> Result<(String, String), BackendError> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    if rest.contains('@') {
        // The text is not repeated, because it may contain a password.
        return Err(error::configuration(
            "an endpoint contains an `@`; give user and password with `user`",
        ));
    }
    let host = rest.trim_end_matches('/');
    // The colons within brackets belong to an address of IPv6.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, "2379"),
    };
    let is_valid = matches!(scheme, "http" | "https")
        && !name.is_empty()
        && (!name.contains(':') || name.starts_with('[') && name.ends_with(']'))
        && !host.contains(|character: char| character == '/' || character.is_whitespace())
        // The parser of numbers takes a sign as well.
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    if !is_valid {
        let message =
            format!("`{endpoint}` is no endpoint; give `host:port` or `https://host:port`");
        return Err(error::configuration(message));
    }
    let address = format!("{name}:{port}");
    Ok((address.clone(), format!("{scheme}://{address}")))
}
