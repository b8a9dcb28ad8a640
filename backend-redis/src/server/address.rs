//! [`Locate`]: where a server is.

use std::fmt;

use lockcore::{BackendError, backend::async_trait};
use redis::ConnectionInfo;

/// Finds the server to connect to.
#[async_trait]
pub(crate) trait Locate: fmt::Debug + Send + Sync {
    /// Returns the address of the server, and how to log in. Called for every connection that is
    /// opened, so that it can follow a server that moves.
    async fn locate(&self) -> Result<ConnectionInfo, BackendError>;

    /// Told that a connection there could not be opened, or was lost.
    fn lost(&self) {}
}

/// The address that the user gave. A host name is looked up for every connection.
pub(crate) struct FixedAddress(pub(crate) ConnectionInfo);

#[async_trait]
impl Locate for FixedAddress {
    async fn locate(&self) -> Result<ConnectionInfo, BackendError> {
        Ok(self.0.clone())
    }
}

/// Omits the credentials.
impl fmt::Debug for FixedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FixedAddress").field(&self.0.addr().to_string()).finish()
    }
}
