//! [`Loss`] and [`LossReason`]: the loss of a hold.

use std::{error::Error, fmt};

use crate::{LockError, LockName};

/// The loss of a hold.
///
/// A `Loss` can be compared with a [`LossReason`], and `?` turns it into a [`LockError::Lost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    lock: LockName,
    reason: LossReason,
}

impl Loss {
    pub(crate) fn new(lock: LockName, reason: LossReason) -> Self {
        Self { lock, reason }
    }

    /// The lock whose hold was lost. The name includes the namespace.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// The reason for the loss.
    #[must_use]
    pub fn reason(&self) -> LossReason {
        self.reason
    }
}

impl PartialEq<LossReason> for Loss {
    fn eq(&self, other: &LossReason) -> bool {
        self.reason == *other
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hold of lock `{}` was lost: {}", self.lock, self.reason)
    }
}

impl Error for Loss {}

impl From<Loss> for LockError {
    fn from(Loss { lock, reason }: Loss) -> Self {
        Self::Lost { lock, reason }
    }
}

/// The reason for the loss of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ended, by this client's clock, before a renewal succeeded. For a fixed lease, this
    /// is its planned end.
    LeaseEnded,
    /// The backend does not know the hold any more: it expired there, was force-released, or was
    /// taken over by the same named owner elsewhere, or the backend has lost its data.
    Gone,
    /// [`Locks::close`](crate::Locks::close) released the hold, or
    /// [`Locks::abandon`](crate::Locks::abandon) gave it up.
    Closed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseEnded => "its lease ended without a successful renewal",
            Self::Gone => "the backend no longer knows it (expired, force-released or taken over)",
            Self::Closed => "its `Locks` was closed",
        })
    }
}
