//! [`Mode`]: how a lock is held.

use std::fmt;

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

    /// Whether an owner that has the lock in one of these modes has the same hold in the other: a store need not tell fair from
    /// exclusive holds.
    pub(crate) fn is_held_as(self, other: Self) -> bool {
        self.kind() == other.kind() && (self == Self::Write) == (other == Self::Write)
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
