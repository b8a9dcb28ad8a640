//! [`Mode`] and [`Capabilities`]: the kinds of locks there are, and which of them a backend has.

use std::{fmt, ops::BitOr};

use crate::{BackendError, BackendErrorKind};

/// How a lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One owner at a time, in no particular order.
    Exclusive,
    /// One owner at a time, first come, first served.
    Fair,
    /// Shared with other readers.
    Read,
    /// Excludes readers and other writers.
    Write,
    /// Some of a limited number of permits.
    #[non_exhaustive]
    Permit {
        /// How many are taken.
        count: u32,
        /// How many there are, unless the store knows better.
        limit: u32,
        /// Whether they are shared with others that take permits without a lease, as Redisson's `RSemaphore`.
        plain: bool,
    },
}

impl Mode {
    /// `count` of `limit` permits.
    #[must_use]
    pub fn permits(count: u32, limit: u32) -> Self {
        Self::Permit { count, limit, plain: false }
    }

    /// `count` of `limit` permits that are shared with others that take theirs without a lease.
    #[must_use]
    pub fn plain_permits(count: u32, limit: u32) -> Self {
        Self::Permit { count, limit, plain: true }
    }

    /// The capability that a backend needs for this mode.
    #[must_use]
    pub fn capability(self) -> Capabilities {
        match self {
            Self::Exclusive => Capabilities::EXCLUSIVE,
            Self::Fair => Capabilities::FAIR,
            Self::Read | Self::Write => Capabilities::READ_WRITE,
            Self::Permit { .. } => Capabilities::PERMITS,
        }
    }
}

/// What a name is used as. Acquisitions of one kind queue for each other, and an owner nests within one kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Lock,
    ReadWrite,
    Permits,
    PlainPermits,
}

impl Mode {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Exclusive | Self::Fair => Kind::Lock,
            Self::Read | Self::Write => Kind::ReadWrite,
            Self::Permit { plain: false, .. } => Kind::Permits,
            Self::Permit { plain: true, .. } => Kind::PlainPermits,
        }
    }

    /// What those are called that are held in this mode.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive locks",
            Self::Fair => "fair locks",
            Self::Read | Self::Write => "read-write locks",
            Self::Permit { .. } => "semaphores",
        }
    }

    /// Whether several can hold the lock in this mode at once, so that one who gets it says nothing about the next.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Read | Self::Permit { .. })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit { .. } => "permit",
        })
    }
}

/// What a backend can do: a set of modes.
///
/// # Examples
/// ```
/// use lockcore::{Capabilities, Mode};
///
/// let capabilities = Capabilities::EXCLUSIVE | Capabilities::FAIR;
/// assert!(capabilities.supports(Mode::Fair));
/// assert!(!capabilities.supports(Mode::Read));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// [`Mode::Exclusive`]: every backend should have it.
    pub const EXCLUSIVE: Self = Self(1);
    /// [`Mode::Fair`].
    pub const FAIR: Self = Self(1 << 1);
    /// [`Mode::Read`] and [`Mode::Write`].
    pub const READ_WRITE: Self = Self(1 << 2);
    /// [`Mode::Permit`].
    pub const PERMITS: Self = Self(1 << 3);
    /// [`AcquireRequest::tokens`](crate::AcquireRequest::tokens): several tokens with one grant, so that the tasks of one client can hand
    /// the hold on to each other.
    pub const HAND_OVER: Self = Self(1 << 4);

    /// Whether locks can be held in `mode`.
    #[must_use]
    pub fn supports(self, mode: Mode) -> bool {
        self.contains(mode.capability())
    }

    /// Whether everything in `other` is in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The error that [`Backend::acquire`](crate::Backend::acquire) owes to a mode that is not in this set.
    ///
    /// # Errors
    /// [`Unsupported`](crate::BackendErrorKind::Unsupported), if `mode` is not in this set.
    pub fn require(self, mode: Mode) -> Result<(), BackendError> {
        if self.supports(mode) {
            return Ok(());
        }
        let message = format!("this backend has no {}", mode.plural());
        Err(BackendError::new(BackendErrorKind::Unsupported, message))
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
