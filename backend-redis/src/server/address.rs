//! [`Locate`]: the location of a server.

use std::{fmt, future::pending};

use lockcore::{BackendError, backend::async_trait};
use redis::ConnectionInfo;

/// Finds the server to connect to.
#[async_trait]
pub(crate) trait Locate: fmt::Debug + Send + Sync {
    /// Returns where the server is, and how to log in. Called for every connection that is opened,
    /// so that it can follow a server that moves.
    async fn locate(&self) -> Result<Place, BackendError>;

    /// Waits until another place has succeeded `place`, as far as that is known.
    async fn moved(&self, _place: &Place) {
        pending().await
    }

    /// Notes that no connection to `place` could be opened.
    fn reject(&self, _place: &Place) {}

    /// Notes that a connection was lost.
    fn lost(&self) {}

    /// Notes that requests were sent within the last moments.
    fn in_use(&self) {}

    /// Notes that requests are waiting and nothing is answered.
    fn fell_silent(&self) {}
}

/// The location of a server, and how to log in.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) info: ConnectionInfo,
    /// The Sentinel that named the place, if one did, and the failover that made it the primary.
    pub(crate) named_by: Option<String>,
    pub(crate) epoch: Option<u64>,
    /// The number of Sentinels that the one that named it knew, with itself.
    pub(crate) sentinels: usize,
}

impl Place {
    /// Host and port, or the path of the socket. It is shown in messages.
    pub(crate) fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

/// Omits the credentials.
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.address()).field(&self.epoch).finish()
    }
}

/// The address that the user gave. A host name is looked up for every connection.
pub(crate) struct FixedAddress(pub(crate) ConnectionInfo);

#[async_trait]
impl Locate for FixedAddress {
    async fn locate(&self) -> Result<Place, BackendError> {
        Ok(Place { info: self.0.clone(), named_by: None, epoch: None, sentinels: 0 })
    }
}

/// Omits the credentials.
impl fmt::Debug for FixedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FixedAddress").field(&self.0.addr().to_string()).finish()
    }
}
