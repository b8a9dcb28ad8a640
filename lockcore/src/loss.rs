//! [`Loss`] and [`LossReason`]: that a hold was lost, and how.

use std::{error::Error, fmt};

use crate::{LockError, LockName};

/// The loss of a hold: of which lock, and how it came about.
///
/// Compares with a [`LossReason`], and becomes [`LockError::Lost`] with `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    lock: LockName,
    reason: LossReason,
}

impl Loss {
    pub(crate) fn new(lock: LockName, reason: LossReason) -> Self {
        Self { lock, reason }
    }

    /// The lock whose hold was lost.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// How the hold was lost.
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

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ended, by this client's clock, before a renewal succeeded. For a fixed lease this is its planned end.
    LeaseEnded,
    /// The backend no longer knows the hold: it expired there, was force-released, taken over by the same named
    /// owner elsewhere, or the backend lost its data.
    Gone,
    /// `Locks::close()` released it.
    Closed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseEnded => "its lease ended without a successful renewal",
            Self::Gone => "the backend no longer knows it (expired, force-released or taken over)",
            Self::Closed => "`Locks::close()` released it",
        })
    }
}
