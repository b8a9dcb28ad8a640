//! [`Credentials`], and the [`CredentialsProvider`] that returns the current ones.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use lockcore::{BackendError, BackendErrorKind, backend::async_trait};
use redis::ConnectionInfo;
use tokio::task::JoinSet;

/// A user name and a password, or a token in place of a password. They are never shown.
///
/// # Examples
/// ```
/// use lockcore_redis::Credentials;
///
/// let worker = Credentials::new("worker", "secret");
/// assert_eq!(format!("{worker:?}"), "Credentials(..)");
/// ```
#[derive(Clone)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// Credentials of an ACL user.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// The password of the user in the URL. If it names none: that of the default user, as
    /// `requirepass` sets it.
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Provides the credentials for each connection that is opened.
///
/// This is for passwords that are rotated, and for tokens that expire, such as those of AWS IAM and
/// of Microsoft Entra ID. The provider is asked at each attempt to connect: when the backend
/// connects, and after a connection was lost, for example because the server ended it when its
/// token expired. Requests of holders are then repeated, and no lock is lost.
///
/// [`Credentials`] and closures that return a future of them are providers. The answer may take as
/// long as [`connect_timeout`](crate::RedisBackendBuilder::connect_timeout), so a provider should
/// keep a token until shortly before it expires. If the provider fails, the attempt fails with an
/// error of the kind [`Unavailable`](BackendErrorKind::Unavailable), which is retried. The
/// provider's error is its source, and must contain no secret. A panic counts as a failure.
///
/// # Examples
/// ```no_run
/// use lockcore::Locks;
/// use lockcore_redis::{Credentials, RedisBackend};
///
/// # async fn connect() -> Result<(), lockcore::LockError> {
/// let backend = RedisBackend::builder()
///     .url("rediss://locks.example.net")
///     // A file that another process keeps up to date.
///     .credentials(|| async {
///         let token = std::fs::read_to_string("/run/secrets/redis-token")?;
///         Ok::<_, std::io::Error>(Credentials::new("worker", token.trim()))
///     })
///     .connect()
///     .await?;
/// let locks = Locks::new(backend);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials for the next connection.
    ///
    /// # Errors
    /// The reason why there are none now.
    async fn credentials(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>>;
}

#[async_trait]
impl CredentialsProvider for Credentials {
    async fn credentials(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
        Ok(self.clone())
    }
}

#[async_trait]
impl<F, Fut, E> CredentialsProvider for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    async fn credentials(&self) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
        self().await.map_err(Into::into)
    }
}

/// Logs in to servers of one kind, with the credentials of the provider if there is one, or else
/// with those of the address.
#[derive(Clone, Default)]
pub(crate) struct Login(Option<Arc<dyn CredentialsProvider>>);

impl Login {
    pub(crate) fn new(provider: impl CredentialsProvider) -> Self {
        Self(Some(Arc::new(provider)))
    }

    /// Adds the credentials to the address of a server.
    pub(crate) async fn apply(
        &self,
        info: ConnectionInfo,
        limit: Duration,
    ) -> Result<ConnectionInfo, BackendError> {
        let Some(provider) = self.0.clone() else { return Ok(info) };
        let address = info.addr();
        // A task, so that a panic of the provider ends here. It is aborted with this future.
        let mut asked = JoinSet::new();
        asked.spawn(async move { provider.credentials().await });
        let Ok(provided) = tokio::time::timeout(limit, asked.join_next()).await else {
            let message = format!("the provider had no credentials for {address} within {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Timeout, message).not_applied());
        };
        // The runtime is shutting down, or else the provider has panicked.
        let provided = provided.and_then(Result::ok).unwrap_or_else(|| Err("it panicked".into()));
        let credentials = provided.map_err(|error| {
            let message = format!("the provider had no credentials for {address}");
            BackendError::new(BackendErrorKind::Unavailable, message)
                .not_applied()
                .with_source(ProviderError(error))
        })?;
        let settings = info.redis_settings().clone().set_password(credentials.password);
        let settings = match credentials.username {
            Some(username) => settings.set_username(username),
            None => settings,
        };
        Ok(info.set_redis_settings(settings))
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Login(provider)" } else { "Login(address)" })
    }
}

/// The error of a provider, with a size.
#[derive(Debug)]
struct ProviderError(Box<dyn Error + Send + Sync>);

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for ProviderError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
