//! [`Owner`]: to whom a hold belongs, and the scopes that carry it.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::LockError;

tokio::task_local! {
    static CURRENT: Owner;
}

/// To whom a hold belongs. Whoever acquires a lock that its own owner already holds enters at once.
///
/// The owner of an acquisition is the one given with [`Lock::owned_by`](crate::Lock::owned_by), else that of the
/// surrounding [`scope`](Self::scope), else a fresh one. It is never the thread or the task: on an
/// async runtime those change hands, and reentrancy by accident would let two strangers into one
/// critical section.
///
/// An `Owner` is a cheap handle: clones are the same owner.
///
/// # Examples
/// ```
/// use lockcore::{Locks, Owner};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let owner = Owner::new();
/// let outer = locks.lock("account:7").owned_by(&owner).acquire().await?;
///
/// // The same owner re-enters, from any task and through any handle …
/// let inner = locks.lock("account:7").owned_by(&owner).acquire().await?;
/// assert_eq!(outer.hold_count(), 2);
///
/// // … and a stranger does not.
/// assert!(locks.lock("account:7").try_acquire().await?.is_none());
/// # drop((outer, inner)); Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Identity);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Identity {
    /// Unique in this process.
    Fresh(u64),
    Named(Arc<str>),
}

impl Owner {
    /// The longest name of a named owner, in bytes.
    pub const MAX_NAME_LEN: usize = 256;

    /// A new owner, different from every other one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default would be another owner each time")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Identity::Fresh(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// An owner whose name is its identity, in every process: a job that crashed and was started again under
    /// the same name takes over its own hold at once instead of waiting for the end of the lease.
    ///
    /// That is so for one mode of a lock: who was a writer and comes back as a reader, or the other way round, waits for the end of the lease.
    ///
    /// The newest acquisition is the hold. What an earlier process of that name still believes to hold is
    /// lost: its token is smaller, its renewals are refused, and its release frees nothing.
    ///
    /// The name has 1 to 256 bytes without control characters, is not `mode` and does not end with
    /// `:write` (both have a meaning on Redisson's wire). A bad one is reported as
    /// [`LockError::InvalidOption`] by the acquisition.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self(Identity::Named(name.into().into()))
    }

    /// The name given to [`Owner::named`].
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Identity::Fresh(_) => None,
            Identity::Named(name) => Some(name),
        }
    }

    /// The owner of the scope that the caller runs in, if any.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs `future` with this owner: every lock that it acquires, however deep, belongs to it.
    ///
    /// All of it is one owner: branches of a `join!` inside do not exclude each other.
    ///
    /// A task that `future` spawns does not inherit the owner; open a scope in it, or use
    /// [`owned_by`](crate::Lock::owned_by).
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), future)
    }

    /// Whether a name that backends can store was given.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let Some(name) = self.name() else { return Ok(()) };
        let reason = if name.is_empty() || name.len() > Self::MAX_NAME_LEN {
            "the name of an owner has 1 to 256 bytes"
        } else if name.chars().any(char::is_control) {
            "the name of an owner has no control characters"
        } else if name == "mode" || name.ends_with(":write") {
            "`mode` and names that end with `:write` have a meaning on Redisson's wire; choose another"
        } else {
            return Ok(());
        };
        Err(LockError::InvalidOption { lock: None, option: "owned_by", reason: reason.into() })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Identity::Fresh(number) => write!(f, "#{number}"),
            Identity::Named(name) => name.escape_debug().fmt(f),
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_wire_cannot_carry_are_refused() {
        assert!(Owner::new().check().is_ok());
        assert!(Owner::named("job-17").check().is_ok());
        for name in ["", "mode", "job:write", "a\nb", &"x".repeat(257)] {
            assert!(Owner::named(name).check().is_err(), "{name:?}");
        }
    }

    #[tokio::test]
    async fn a_spawned_task_does_not_inherit_the_scope() {
        let owner = Owner::new();
        let (inside, spawned) = owner
            .scope(async {
                (Owner::current(), tokio::spawn(async { Owner::current() }).await.unwrap())
            })
            .await;
        assert_eq!(inside, Some(owner));
        assert_eq!(spawned, None);
        assert_eq!(Owner::current(), None);
    }
}
