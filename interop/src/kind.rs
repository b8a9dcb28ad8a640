//! [`Kind`]: the synchronizers that both sides have, with the names on each side.

use lockcore::{Lock, Locks};

/// A kind of synchronizer that can be held. For semaphores, it stands for one permit, and contains
/// the number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `RLock`, `Locks::lock`.
    Reentrant,
    /// `RFairLock`, `Locks::fair_lock`.
    Fair,
    /// `RReadWriteLock.readLock`, `RwLock::read`.
    Read,
    /// `RReadWriteLock.writeLock`, `RwLock::write`.
    Write,
    /// `RPermitExpirableSemaphore`, `Locks::semaphore`.
    Permits(u32),
    /// `RSemaphore`, `Locks::plain_semaphore`.
    Plain(u32),
}

impl Kind {
    /// The lockcore lock of this kind and name.
    #[must_use]
    pub fn ours(self, locks: &Locks, name: &str) -> Lock {
        match self {
            Self::Reentrant => locks.lock(name),
            Self::Fair => locks.fair_lock(name),
            Self::Read => locks.rw_lock(name).read(),
            Self::Write => locks.rw_lock(name).write(),
            Self::Permits(permits) => locks.semaphore(name, permits).permits(1),
            Self::Plain(permits) => locks.plain_semaphore(name, permits).permits(1),
        }
    }

    /// The lockcore lock of this kind and name, held so that it excludes everybody.
    #[must_use]
    pub fn all_of_ours(self, locks: &Locks, name: &str) -> Lock {
        match self {
            Self::Permits(permits) => locks.semaphore(name, permits).permits(permits),
            Self::Plain(permits) => locks.plain_semaphore(name, permits).permits(permits),
            Self::Read => Self::Write.ours(locks, name),
            _ => self.ours(locks, name),
        }
    }

    /// The name in the programs of this package, without the number of permits.
    #[must_use]
    pub fn wire(self) -> &'static str {
        match self {
            Self::Reentrant => "reentrant",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits(_) => "permits",
            Self::Plain(_) => "plain",
        }
    }

    /// The kind with that name; for semaphores, the one with a single permit.
    #[must_use]
    pub fn from_wire(wire: &str) -> Option<Self> {
        let kinds = [
            Self::Reentrant,
            Self::Fair,
            Self::Read,
            Self::Write,
            Self::Permits(1),
            Self::Plain(1),
        ];
        kinds.into_iter().find(|kind| kind.wire() == wire)
    }

    /// The number of permits of a semaphore.
    #[must_use]
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Permits(permits) | Self::Plain(permits) => Some(permits),
            _ => None,
        }
    }
}
