//! [`Mode`]: the way in which a lock is held.

use std::fmt;

/// The way in which a lock is held.
///
/// New modes may come. A backend refuses a mode that it does not know with
/// [`BackendError::unsupported`](crate::BackendError::unsupported).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One owner at a time, in no particular order.
    Exclusive,
    /// One owner at a time, in the order of arrival.
    Fair,
    /// Shared with other readers.
    Read,
    /// Excludes readers and other writers.
    Write,
    /// Some of a limited number of permits.
    #[non_exhaustive]
    Permit {
        /// The number of permits to take.
        count: u32,
        /// The number of permits that there are, unless the store knows another number.
        limit: u32,
        /// `true` if the semaphore is shared with software that takes permits without a lease, such
        /// as Redisson's `RSemaphore`.
        plain: bool,
    },
}

impl Mode {
    /// `count` of `limit` permits.
    #[must_use]
    pub fn permits(count: u32, limit: u32) -> Self {
        Self::Permit { count, limit, plain: false }
    }

    /// `count` of `limit` permits of a semaphore that is shared with software that takes permits
    /// without a lease.
    #[must_use]
    pub fn plain_permits(count: u32, limit: u32) -> Self {
        Self::Permit { count, limit, plain: true }
    }
}

/// The kind of lock that a name is used as. Acquisitions of one kind queue together, and an owner
/// nests within one kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Lock,
    ReadWrite,
    Permits,
    PlainPermits,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Lock, Self::ReadWrite, Self::Permits, Self::PlainPermits];
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

    /// The name of the locks that have this mode, in the plural.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive locks",
            Self::Fair => "fair locks",
            Self::Read | Self::Write => "read-write locks",
            Self::Permit { .. } => "semaphores",
        }
    }

    /// Returns `true` if holds in these modes are the same side of the same kind of lock. A store
    /// need not tell fair holds from exclusive ones.
    pub(crate) fn is_held_as(self, other: Self) -> bool {
        self.kind() == other.kind() && (self == Self::Write) == (other == Self::Write)
    }

    /// Returns `true` if several owners can hold the lock in this mode at once, so that one grant
    /// says nothing about the next.
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
