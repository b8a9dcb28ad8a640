//! [`LockGuard`].

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use crate::{
    FencingToken, LockError, LockName, Loss, Mode, Owner,
    client::Held,
};

/// A lock that is held. Dropping it releases in the background, [`release`](Self::release) does so and confirms.
///
/// The lock is free when every guard of its owner is gone, in whatever order they go.
///
/// # What a guard cannot promise
/// A lease ends when it is not renewed in time, whatever the holder is doing: a process that is stopped for longer
/// than its lease loses the lock without noticing until it runs again. [`lost`](Self::lost) and
/// [`is_held`](Self::is_held) tell as soon as it can be told: the end of a lease before the backend lets somebody else in, and
/// what happened at the backend only (a forced release, lost data) with the next renewal. And between the look and the
/// act there is always time to be stopped. What must not happen twice has to check the [`token`](Self::token) where it
/// happens.
///
/// # Drop
/// Dropping never blocks and works outside of a runtime. The release is made by the client's background task and is
/// tried again until the lease is over. If the runtime is gone as well, the lock is free when the lease ends.
#[must_use = "dropping the guard releases the lock at once"]
pub struct LockGuard {
    pub(crate) held: Held,
}

impl LockGuard {
    /// The guard of a hold that was entered.
    pub(crate) fn new(held: Held) -> Self {
        Self { held }
    }

    /// The name of the lock, with the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.cell.name().as_str()
    }

    /// To whom the hold belongs.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.held.owner
    }

    /// The owner as the backend has it stored: `<client uuid>:<number>`, as Redisson writes it, or the name of a named
    /// owner. It is what [`state`](crate::Lock::state) reports. Holds that were [handed on](crate::LocksBuilder::hand_over) from task to
    /// task have the same.
    #[must_use]
    pub fn wire_owner(&self) -> &str {
        self.held.id.owner()
    }

    /// The token of the hold, the same for all its guards.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.held.token
    }

    /// How many guards the hold has.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.held.hold_count()
    }

    /// How the lock is held; for permits of a semaphore, how many.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.held.mode
    }

    /// For how long this client may still believe in the hold, if it is not renewed: a little less than what is left at
    /// the backend. Zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Whether the hold is still there. No I/O: this is what the client may believe.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.check().is_ok()
    }

    /// Fails if the hold has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.held.check()
    }

    pub(crate) fn lock_name(&self) -> LockName {
        self.held.cell.name().clone()
    }

    /// Resolves when the hold is lost, and says how. The end of the lease is told before the backend lets somebody else in;
    /// that the backend no longer knows the hold is told with the next renewal, or never if the lease is a fixed one.
    ///
    /// It never resolves for a hold that is released as usual, so wait for it beside the work, with `select!`,
    /// or let [`run`](crate::Lock::run) do that. The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe; it can be called any number of times.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        let (lock, ended) = (self.lock_name(), self.held.ended());
        async move {
            match ended.await {
                Some(reason) => Loss::new(lock, reason),
                None => std::future::pending().await,
            }
        }
    }

    /// Resolves when the hold ends: with the loss as [`lost`](Self::lost) does, or with `None` when the last
    /// guard of the hold is released. A task that watches a hold with it ends with the hold.
    ///
    /// # Cancel safety
    /// Cancel safe; it can be called any number of times.
    pub fn ended(&self) -> impl Future<Output = Option<Loss>> + Send + 'static + use<> {
        let (lock, ended) = (self.lock_name(), self.held.ended());
        async move { ended.await.map(|reason| Loss::new(lock, reason)) }
    }

    /// Releases, and returns when the backend has confirmed it. Releasing a nested guard makes no round trip, and neither does a release
    /// by which the next task of this client [has the lock](crate::LocksBuilder::hand_over): a loss that only the backend knows of
    /// is then told to that one.
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the hold was lost before: the protected work may have overlapped with that of another holder.
    /// - [`LockError::NotHeld`] if `Locks::close()` had released it.
    /// - [`LockError::Backend`] if the backend could not be reached in three attempts, or refused. After a failure that may
    ///   pass, the release goes on in the background until the lease is over.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the release is completed in the background.
    pub async fn release(self) -> Result<(), LockError> {
        self.held.release().await
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.held.cell.name())
            .field("owner", self.owner())
            .field("token", &self.token())
            .field("hold_count", &self.hold_count())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// Runs `body` for the owner of a hold, and drops it when the hold is lost first.
///
/// Each poll looks at the deadline before `body` goes on.
pub(crate) fn while_held<T>(
    owner: &Owner,
    lost: impl Future<Output = Loss>,
    body: impl Future<Output = T>,
) -> impl Future<Output = Result<T, LockError>> {
    owner.scope(async {
        let (mut lost, mut body) = (pin!(lost), pin!(body));
        poll_fn(|context| match lost.as_mut().poll(context) {
            Poll::Ready(loss) => Poll::Ready(Err(loss.into())),
            Poll::Pending => body.as_mut().poll(context).map(Ok),
        })
        .await
    })
}

/// The result of work that is done. A release that fails otherwise than by a loss is no error of the work.
pub(crate) fn done<T>(output: T, released: Result<(), LockError>) -> Result<T, LockError> {
    match released {
        Err(LockError::Backend(error)) => {
            tracing::warn!(%error, "release failed after the work was done");
            Ok(output)
        }
        released => released.map(|()| output),
    }
}
