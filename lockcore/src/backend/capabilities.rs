//! [`Capabilities`]: the kinds of locks that a backend supports.

use std::ops::BitOr;

use crate::{BackendError, Mode};

/// The modes that a backend supports.
///
/// # Examples
/// ```
/// use lockcore::{Mode, backend::Capabilities};
///
/// let capabilities = Capabilities::EXCLUSIVE | Capabilities::FAIR;
/// assert!(capabilities.supports(Mode::Fair));
/// assert!(!capabilities.supports(Mode::Read));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u16);

impl Capabilities {
    /// [`Mode::Exclusive`], which every backend should support.
    pub const EXCLUSIVE: Self = Self(1);
    /// [`Mode::Fair`].
    pub const FAIR: Self = Self(1 << 1);
    /// [`Mode::Read`] and [`Mode::Write`].
    pub const READ_WRITE: Self = Self(1 << 2);
    /// [`Mode::Permit`].
    pub const PERMITS: Self = Self(1 << 3);
    /// [`AcquireRequest::tokens`](crate::backend::AcquireRequest::tokens): several tokens with one
    /// grant, so that the tasks of one client can hand the hold over to each other.
    pub const HAND_OVER: Self = Self(1 << 4);
    /// [`AcquireRequest::replicas`](crate::backend::AcquireRequest::replicas): holds that count
    /// only when replicas have acknowledged them. If fewer have done so in time, the backend ends
    /// the hold and answers with an error that can be retried.
    pub const REPLICAS: Self = Self(1 << 5);
    /// [`Awaited::Demand`](crate::backend::Awaited::Demand): holders can hear that other clients
    /// want the lock, so that a hold can be kept for a while after its last guard.
    pub const DEMAND: Self = Self(1 << 6);
    /// [`AcquireRequest::direct_grant`](crate::backend::AcquireRequest::direct_grant): the release
    /// of a fair hold grants the lock to the first in the queue, who hears of it with its wake-up.
    pub const DIRECT_GRANT: Self = Self(1 << 7);
    /// [`AcquireRequest::least_token`](crate::backend::AcquireRequest::least_token) and
    /// [`Backend::raise_token`](crate::backend::Backend::raise_token): several stores can agree on
    /// the token of a grant.
    pub const PROPOSED_TOKENS: Self = Self(1 << 8);

    /// The capability that a backend needs for `mode`.
    #[must_use]
    pub fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::EXCLUSIVE,
            Mode::Fair => Self::FAIR,
            Mode::Read | Mode::Write => Self::READ_WRITE,
            Mode::Permit { .. } => Self::PERMITS,
        }
    }

    /// Returns `true` if locks can be held in `mode`.
    #[must_use]
    pub fn supports(self, mode: Mode) -> bool {
        self.contains(Self::of(mode))
    }

    /// Returns `true` if everything in `other` is in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Refuses a mode that is not in this set, as
    /// [`Backend::acquire`](crate::backend::Backend::acquire) must.
    ///
    /// # Errors
    /// [`Unsupported`](crate::BackendErrorKind::Unsupported), if `mode` is not in this set.
    pub fn require(self, mode: Mode) -> Result<(), BackendError> {
        if self.supports(mode) {
            return Ok(());
        }
        Err(BackendError::unsupported(mode.plural()))
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
