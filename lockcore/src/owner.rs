//! [`Owner`]: the owner of holds, and its scopes.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::{LockError, task::TaskKey};

tokio::task_local! {
    static SCOPE: Scope;
}

/// The owner of a scope, and the task that polls it.
///
/// A future that is polled inside of the scope may poll other tasks, as a `LocalSet` does. Those
/// tasks are not in the scope.
struct Scope {
    owner: Owner,
    polled_by: Cell<Option<TaskKey>>,
}

pin_project! {
    /// A future in a scope, which belongs to the task that polls it.
    struct Scoped<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        SCOPE.with(|scope| scope.polled_by.set(Some(TaskKey::current())));
        self.project().future.poll(context)
    }
}

/// The owner of holds. An acquisition by the owner that already holds the lock re-enters at once.
///
/// The owner of an acquisition is the one given with [`Lock::owned_by`](crate::Lock::owned_by), or
/// else the one of the surrounding [`scope`](Self::scope), or else a fresh one. It is never the
/// thread or the task: on an async runtime those change hands, and reentrancy by accident would
/// admit two strangers to one critical section.
///
/// An `Owner` is a cheap handle, and its clones are the same owner. There is no `Default`, because
/// each default would be another owner.
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
/// // The same owner re-enters, from any task and through any handle ...
/// let inner = locks.lock("account:7").owned_by(&owner).acquire().await?;
/// assert_eq!(outer.hold_count(), 2);
///
/// // ... and another owner does not.
/// assert!(locks.lock("account:7").try_acquire().await?.is_none());
/// # drop((outer, inner)); Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Identity);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Identity {
    /// A number that is unique in this process.
    Fresh(u64),
    Named(Arc<str>),
}

impl Owner {
    /// The longest name of a named owner, in bytes.
    pub const MAX_NAME_LEN: usize = 256;

    /// A new owner that is different from every other one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default would be another owner each time")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Identity::Fresh(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// An owner that is identified by `name` in every process. A job that crashed and was restarted
    /// under the same name takes over its own hold at once, instead of waiting for the end of the
    /// lease.
    ///
    /// # The name must be unique
    /// **Two live processes with the same owner name take over each other's holds**, of every lock
    /// that both of them acquire, nested ones included. Each takeover ends the hold of the other
    /// process, which learns of it only with its next renewal, so that for a while both are inside.
    /// Use a name that at most one process has at a time, such as the id of a job, and never the
    /// name of a service of which several instances run.
    ///
    /// The newest acquisition is the hold. An earlier hold under the same name is lost: its token
    /// is smaller, its renewals are refused, and its release frees nothing.
    ///
    /// A takeover works within one side of a read-write lock. A writer that comes back as a reader,
    /// or the other way round, waits for the end of the lease.
    ///
    /// # Valid names
    /// The name has 1 to 256 bytes without control characters, is not `mode`, and does not end with
    /// `:write`, because both have a meaning on Redisson's wire. Acquisitions report an invalid
    /// name as [`LockError::InvalidOption`].
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

    /// The owner of the scope that the caller runs in, if there is one.
    #[must_use]
    pub fn current() -> Option<Self> {
        let is_here = |scope: &Scope| scope.polled_by.get() == Some(TaskKey::current());
        let owner = |scope: &Scope| is_here(scope).then(|| scope.owner.clone());
        SCOPE.try_with(owner).ok().flatten()
    }

    /// Runs `future` in a scope of this owner: the owner of every lock that `future` acquires,
    /// however deep.
    ///
    /// The whole scope is one owner, so the branches of a `join!` inside it do not exclude each
    /// other.
    ///
    /// The scope is that of one task. A task that `future` spawns does not inherit the owner, even
    /// if `future` itself polls that task, as a [`LocalSet`](tokio::task::LocalSet) does: open a
    /// scope in the task, or use [`owned_by`](crate::Lock::owned_by). Executors other than tokio do
    /// not tell their tasks apart: the tasks of one that is polled inside of `future` are in the
    /// scope, as the branches of a `join!` are.
    ///
    /// # Cancel safety
    /// This is as cancel safe as `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let scope = Scope { owner: self.clone(), polled_by: Cell::new(None) };
        SCOPE.scope(scope, Scoped { future })
    }

    /// Refuses a name that backends cannot store.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let Some(name) = self.name() else { return Ok(()) };
        let reason = if name.is_empty() || name.len() > Self::MAX_NAME_LEN {
            "the name of an owner has 1 to 256 bytes"
        } else if name.chars().any(char::is_control) {
            "the name of an owner has no control characters"
        } else if name == "mode" || name.ends_with(":write") {
            "`mode` and names that end with `:write` have a meaning on Redisson's wire; choose \
             another name"
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

    #[tokio::test]
    async fn tasks_that_a_scope_polls_itself_do_not_inherit_it() {
        let local = tokio::task::LocalSet::new();
        let owners = local.run_until(async {
            let here = Owner::current();
            (here, tokio::task::spawn_local(async { Owner::current() }).await.unwrap())
        });
        let owner = Owner::new();
        let (here, spawned) = owner.scope(owners).await;
        assert_eq!((here, spawned), (Some(owner), None));
    }
}
