//! [`LockGuard`].

use std::{fmt, future::Future, sync::Arc, time::Duration};

use crate::{
    FencingToken, Holder, LockError, LockName, LockState, Loss, Mode, Owner,
    client::Client,
    leases::hold::{Hold, Phase},
    leases::lease::{self, Lease},
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
    pub(crate) client: Arc<Client>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) lease: Lease,
    /// Whether the hold has been told that this guard is gone.
    left: bool,
}

impl LockGuard {
    /// A guard that its hold has counted already.
    pub(crate) fn new(client: Arc<Client>, hold: Arc<Hold>, lease: Lease) -> Self {
        Self { client, hold, lease, left: false }
    }

    /// The name of the lock, with the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.name().as_str()
    }

    /// To whom the hold belongs.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    /// The owner as the backend has it stored: `<client uuid>:<number>`, as Redisson writes it, or the name of a named
    /// owner. It is what [`state`](crate::Lock::state) reports. Holds that were [handed on](crate::LocksBuilder::hand_over) from task to
    /// task have the same.
    #[must_use]
    pub fn wire_owner(&self) -> &str {
        self.hold.id.owner()
    }

    /// The token of the hold, the same for all its guards.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// How many guards the hold has.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.hold.count()
    }

    /// How the lock is held; for permits of a semaphore, how many.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold.mode
    }

    /// For how long this client may still believe in the hold, if it is not renewed: a little less than what is left at
    /// the backend. Zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = self.client.store.clock.now();
        if self.hold.is_live(now) { self.hold.deadline().since(now) } else { Duration::ZERO }
    }

    /// Whether the hold is still there. No I/O: this is what the client may believe.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_live(self.client.store.clock.now())
    }

    /// Fails if the hold has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let lock = self.lock_name();
        match self.hold.phase(self.client.store.clock.now()) {
            Phase::Live => Ok(()),
            Phase::Lost(reason) => Err(LockError::Lost { lock, reason }),
            Phase::Released => Err(LockError::NotHeld { lock }),
        }
    }

    pub(crate) fn lock_name(&self) -> LockName {
        self.hold.name().clone()
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
        let (hold, clock) = (self.hold.clone(), self.client.store.clock.clone());
        async move {
            let reason = hold.ended(&clock).await;
            Loss::new(hold.name().clone(), reason)
        }
    }

    /// Resolves when the hold ends: with the loss as [`lost`](Self::lost) does, or with `None` when the last
    /// guard of the hold is released. A task that watches a hold with it ends with the hold.
    ///
    /// # Cancel safety
    /// Cancel safe; it can be called any number of times.
    pub fn ended(&self) -> impl Future<Output = Option<Loss>> + Send + 'static + use<> {
        let (hold, clock) = (self.hold.clone(), self.client.store.clock.clone());
        async move {
            let reason = hold.over(&clock).await?;
            Some(Loss::new(hold.name().clone(), reason))
        }
    }

    /// Extends the lease: the hold lasts for at least `lease` from now, 1 ms to 365 days, and never
    /// shorter than before.
    ///
    /// This is one round trip. A hold that is renewed goes on being renewed, and its renewals keep the
    /// longer lease until it has passed.
    ///
    /// # Errors
    /// - [`LockError::InvalidOption`] for a lease that is out of range.
    /// - [`LockError::Lost`] if the hold was lost, also if that was not known before.
    /// - [`LockError::NotHeld`] or [`LockError::Closed`] after `Locks::close()`.
    /// - [`LockError::Backend`] at once if the backend fails. The lease may or may not be extended then;
    ///   to try again does no harm.
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
        let lock = self.lock_name();
        lease::check(lease, "extend", Some(&lock))?;
        self.check()?;
        self.client.extend(&self.hold, lease).await?;
        self.check()
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
    pub async fn release(mut self) -> Result<(), LockError> {
        self.left = true;
        let pending = self.client.depart(&self.hold, self.lease)?;
        // In a box: a task that releases now and then need not have room for it all the time.
        match pending.map(|pending| Box::pin(pending.confirm())) {
            Some(confirmed) => confirmed.await,
            None => Ok(()),
        }
    }
}

impl LockState {
    /// What this state, of the same lock, says about the hold of `guard`: `None` if the hold is not
    /// there any more.
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

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.left {
            // A pending release that is dropped is carried out in the background, and a loss was reported when it happened.
            drop(self.client.depart(&self.hold, self.lease));
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.hold.name())
            .field("owner", self.owner())
            .field("token", &self.token())
            .field("hold_count", &self.hold_count())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// Runs `body` for the owner of a hold, and drops it when the hold is lost first.
pub(crate) fn while_held<T>(
    owner: &Owner,
    lost: impl Future<Output = Loss>,
    body: impl Future<Output = T>,
) -> impl Future<Output = Result<T, LockError>> {
    owner.scope(async {
        tokio::select! {
            biased;
            lost = lost => Err(lost.into()),
            output = body => Ok(output),
        }
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
