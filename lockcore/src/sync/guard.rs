//! [`LockGuard`].

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use crate::{
    FencingToken, Holder, LockError, LockName, LockState, Loss, Mode, Owner, backend::HoldId,
    client::Held, engine::Keeping,
};

/// A held lock. Dropping the guard releases it in the background; [`release`](Self::release) does
/// so and confirms.
///
/// The lock is free when every guard of its owner is gone, in whatever order.
///
/// # What a guard cannot promise
/// A lease ends when it is not renewed in time, whatever the holder is doing. A process that is
/// stopped for longer than its lease loses the lock, and does not notice before it runs again.
/// [`lost`](Self::lost) and [`is_held`](Self::is_held) report a loss as early as possible: the end
/// of a lease before the backend grants the lock to another owner, and a loss that only the backend
/// knows of (a forced release, lost data) with the next renewal. But a process can always be
/// stopped between its check and its next step. Work that must not happen twice has to check the
/// [`token`](Self::token) at the protected resource.
///
/// # Drop
/// Dropping a guard never blocks, and works outside of a runtime. The client's background task
/// makes the release, and retries it until the lease is over. If the runtime is gone as well, the
/// lock is free when the lease ends.
#[must_use = "dropping the guard releases the lock at once"]
pub struct LockGuard {
    pub(crate) held: Held,
}

impl LockGuard {
    /// A guard that its hold counts already.
    pub(crate) fn new(held: Held) -> Self {
        Self { held }
    }

    /// The name of the lock, with the namespace. So it is not a name for
    /// [`Locks::lock`](crate::Locks::lock) of a client that has one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.cell.name().as_str()
    }

    /// The owner of the hold.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.held.owner
    }

    /// The owner as the backend stores it and as [`state`](crate::Lock::state) reports it: `<client
    /// uuid>:<number>`, as Redisson writes it, or the name of a named owner. Holds that tasks [hand
    /// over](crate::LocksBuilder::hand_over) to each other share one.
    #[must_use]
    pub fn wire_owner(&self) -> &str {
        self.held.id().map_or("", HoldId::owner)
    }

    /// The fencing token of the hold. All guards of a hold have the same token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.held.token()
    }

    /// The number of guards of the hold.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.held.hold_count()
    }

    /// The way in which the lock is held. For permits of a semaphore, it contains their number.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.held.mode
    }

    /// The number of replicas that had acknowledged the hold when it was acquired. `None` if none
    /// was asked for it: see [`Lock::replicas`](crate::Lock::replicas). Nested guards, and guards
    /// of holds that were [handed over](crate::LocksBuilder::hand_over), report the number that the
    /// first acquisition of the hold reached.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.held.replicas()
    }

    /// The time for which this client may rely on the hold if it is not renewed: a little less than
    /// what is left at the backend. Zero if the hold is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Returns `true` if the hold is still there, as far as this client knows. No I/O.
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

    /// Resolves when the hold is lost. It reports the end of the lease before the backend grants
    /// the lock to another owner. It reports a loss that only the backend knows of with the next
    /// renewal, or never for a fixed lease.
    ///
    /// The future never resolves for a hold that is released as usual, so await it beside the work
    /// with `select!`, or let [`run`](crate::Lock::run) do so. For a task that only watches, use
    /// [`ended`](Self::ended). The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe. The method can be called any number of times.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        let (lock, ended) = (self.lock_name(), self.held.ended());
        async move {
            match ended.await {
                Some(reason) => Loss::new(lock, reason),
                None => pending().await,
            }
        }
    }

    /// Resolves when the hold ends: with the loss, as [`lost`](Self::lost) does, or with `None`
    /// when the last guard of the hold is gone. So a task that watches a hold ends with the hold.
    /// The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe. The method can be called any number of times.
    pub fn ended(&self) -> impl Future<Output = Option<Loss>> + Send + 'static + use<> {
        let (lock, ended) = (self.lock_name(), self.held.ended());
        async move { ended.await.map(|reason| Loss::new(lock, reason)) }
    }

    /// Extends the lease: the hold lasts for at least `lease` from now, 1 ms to 365 days. A lease
    /// is never shortened.
    ///
    /// This makes one round trip. A renewed hold continues to be renewed, and its renewals never
    /// end earlier than `lease` from now.
    ///
    /// # Errors
    /// - [`LockError::InvalidOption`] for a lease that is out of range.
    /// - [`LockError::Lost`] if the hold was lost, including a loss that only the backend knew of.
    /// - [`LockError::NotHeld`] or [`LockError::Closed`] after `Locks::close()`.
    /// - [`LockError::Backend`] at once if the backend fails. The lease may or may not be extended
    ///   then, and it does no harm to try again.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the lease may or may not be extended.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let import = locks.lock("import").lease(Duration::from_secs(10));
    ///
    /// let guard = import.acquire().await?;
    /// assert!(guard.remaining() < Duration::from_secs(10));
    /// guard.extend(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        self.held.extend(lease).await
    }

    /// Releases the guard, and returns when the backend has confirmed the release. The release of a
    /// nested guard makes no round trip. Neither does a release that [hands the lock
    /// over](crate::LocksBuilder::hand_over) to the next task of this client, or
    /// [keeps](crate::LocksBuilder::linger) it for one. A loss that only the backend knows of is
    /// then reported to that task, or to nobody if no task comes.
    ///
    /// # Errors
    /// - [`LockError::Lost`] if the hold was lost before: the protected work may have overlapped
    ///   with that of another holder.
    /// - [`LockError::NotHeld`] after `Locks::close()`, which had released the hold.
    /// - [`LockError::Backend`] if the backend refused, or could not be reached in three attempts.
    ///   After a temporary failure, the release is retried in the background until the lease is
    ///   over.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the release is completed in the background. So
    /// drop it rather than keep it unpolled: after its first poll, the next acquisition of this
    /// client and [`Locks::close`](crate::Locks::close) wait for it, for up to 5 s.
    pub fn release(self) -> impl Future<Output = Result<(), LockError>> + Send + 'static + use<> {
        self.held.release()
    }

    /// Releases the guard as [`release`](Self::release) does, but always at the backend if it is
    /// the last one of its hold: the lock is neither handed over nor
    /// [kept](crate::LocksBuilder::linger).
    ///
    /// # Errors
    /// Those of [`release`](Self::release).
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the release is completed in the background. If
    /// it was never polled, the guard is dropped like any other.
    pub fn release_now(
        self,
    ) -> impl Future<Output = Result<(), LockError>> + Send + 'static + use<> {
        self.held.release_keeping(Keeping::Never)
    }

    /// As [`release`](Self::release). Once the client is closed, the background goes on.
    pub(crate) async fn release_unless_closed(self) -> Result<(), LockError> {
        let (client, lock) = (self.held.client.clone(), self.lock_name());
        client.unless_closed(&lock, pin!(self.release())).await
    }
}

impl LockState {
    /// The hold of `guard` in this state of the same lock. `None` if the hold no longer existed.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let lock = Locks::new(MemoryBackend::new()).lock("order:42");
    /// let guard = lock.acquire().await?;
    /// assert!(lock.state().await?.holder_of(&guard).is_some());
    ///
    /// lock.force_release().await?;
    /// assert!(lock.state().await?.holder_of(&guard).is_none());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn holder_of(&self, guard: &LockGuard) -> Option<&Holder> {
        self.holder(guard.wire_owner(), guard.mode())
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

/// Runs `body` in a scope of the owner of a hold, and drops it if the hold is lost.
pub(crate) fn while_held<T>(
    owner: &Owner,
    lost: impl Future<Output = Loss>,
    body: impl Future<Output = T>,
) -> impl Future<Output = Result<T, LockError>> {
    owner.scope(async {
        let (mut lost, mut body) = (pin!(lost), pin!(body));
        // Each poll looks at the deadline before the body goes on.
        poll_fn(|context| match lost.as_mut().poll(context) {
            Poll::Ready(loss) => Poll::Ready(Err(loss.into())),
            Poll::Pending => body.as_mut().poll(context).map(Ok),
        })
        .await
    })
}

/// The result of work that is done. A release that fails for another reason than a loss is not an
/// error of the work.
pub(crate) fn done<T>(output: T, released: Result<(), LockError>) -> Result<T, LockError> {
    match released {
        Err(LockError::Backend(error)) => {
            tracing::warn!(%error, "release failed after the work was done");
            Ok(output)
        }
        released => released.map(|()| output),
    }
}
