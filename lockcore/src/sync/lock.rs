//! [`Lock`].

use std::{future::Future, panic::Location, pin::Pin, sync::Arc, time::Duration};

use crate::{
    Condition, LockError, LockGuard, LockName, LockState, Mode, Owner,
    acquiring::acquisition::{Acquisition, Trouble},
    client::Client,
    leases::hold::Hold,
    leases::lease::{self, Lease},
    sync::guard::{done, while_held},
};

/// A handle of a lock that is held in one way: cheap, `Clone`, and without any effect until something is called on it.
///
/// Made by [`Locks::lock`](crate::Locks::lock) and [`Locks::fair_lock`](crate::Locks::fair_lock), and for either side of a
/// [`RwLock`](crate::RwLock). A bad name or option is reported by the first call, before any I/O.
///
/// # When not to use it
/// Inside one process, for data that is itself in memory, `tokio::sync::Mutex` is faster and cannot be lost. And no lock with a
/// lease replaces the check of the [`token`](LockGuard::token) at the resource, if a mistake there is costly.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let lock = locks.lock("order:42");
///
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await?.is_none(), "another owner has to wait");
/// guard.release().await?;
/// assert!(lock.try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    pub(crate) client: Arc<Client>,
    /// Or what is wrong with what the handle was made of.
    pub(crate) name: Result<LockName, Box<LockError>>,
    pub(crate) mode: Mode,
    fixed_lease: Option<Duration>,
    owner: Option<Owner>,
}

impl Lock {
    /// The most guards that one owner's hold can have at a time: the greatest count that Java can read. One more is refused with
    /// [`LockError::TooDeep`].
    pub const MAX_HOLD_COUNT: u32 = i32::MAX as u32;

    pub(crate) fn new(client: Arc<Client>, name: Result<LockName, LockError>, mode: Mode) -> Self {
        Self { client, name: name.map_err(Box::new), mode, fixed_lease: None, owner: None }
    }

    /// Acquires with a fixed lease that is never renewed: 1 ms to 365 days. It has to be longer than the round trip and the margin
    /// for clocks that differ (1 % and 2 ms), or it is over on arrival: [`LockError::Lost`]. Without this, the lease is the client's (30 s by default)
    /// and is renewed while a guard lives.
    ///
    /// Inside a hold of the same owner, a nested acquisition never shortens the lease; one that asks for more than is left
    /// has it extended at the backend.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.fixed_lease = Some(lease);
        self
    }

    /// Acquires for `owner` instead of the scope's owner or a fresh one.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// The condition of this lock that is called `name`, which follows the [rules for names](LockName). A lock may have several.
    #[must_use]
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        Condition::new(self.clone(), name.into())
    }

    /// The name of the lock, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if it is no valid name.
    pub fn name(&self) -> Result<&str, LockError> {
        self.name.as_ref().map(LockName::as_str).map_err(|error| LockError::clone(error))
    }

    /// Whether its owner can enter again, and to ask for it twice is to ask for it once.
    pub(crate) fn is_reentrant(&self) -> bool {
        !matches!(self.mode, Mode::Permit { .. })
    }

    /// The owner given with `owned_by`.
    pub(crate) fn given_owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Whether both ask for the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let of = |lock: &Self| (lock.mode, lock.fixed_lease, lock.owner.clone());
        Arc::ptr_eq(&self.client, &other.client) && of(self) == of(other)
    }

    pub(crate) fn lock_name(&self) -> Result<LockName, LockError> {
        self.name.clone().map_err(|error| *error)
    }

    /// Acquires the lock, and waits for it as long as it takes.
    ///
    /// Tasks of one process get it in the order in which they asked. There is no polling: a waiter is woken by
    /// the release, by the end of the holder's lease, or when the connection for wake-ups was interrupted. It looks again after 10 s at
    /// the latest, in case the clock of the backend was set.
    ///
    /// # Errors
    /// - [`LockError::InvalidName`], [`LockError::InvalidOption`], [`LockError::Unsupported`], [`LockError::Closed`]: before any I/O.
    /// - [`LockError::TooManyWaiters`] if as many wait already as [may](crate::LocksBuilder::max_waiters).
    /// - [`LockError::Lost`] if this owner already had the lock and lost it, or if a fixed lease was shorter than the round trip.
    /// - [`LockError::Backend`] at once for what a retry cannot help, and for the rest when the backend has given no answer for
    ///   [`retry_for`](crate::LocksBuilder::retry_for).
    ///
    /// # Cancel safety
    /// Dropped at any await, the lock is not held, no place in a queue is left, and whoever is next gets it at once. A request
    /// that was on its way is followed by its release.
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.acquire_at(Location::caller())
    }

    pub(crate) fn acquire_at(
        &self,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.acquire_troubled(site, None)
    }

    /// Acquires, and keeps `trouble` informed of what it is struggling with.
    pub(crate) fn acquire_troubled(
        &self,
        site: &'static Location<'static>,
        trouble: Option<Trouble>,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        let mut acquisition = self.acquisition(site, trouble);
        // Used where it is: moved, the future would have room for it twice.
        async move {
            match &mut acquisition {
                Ok(acquisition) => acquired(acquisition.acquire(true).await?),
                Err(error) => Err(error.clone()),
            }
        }
    }

    /// Acquires the lock if it is free now: one attempt, which makes no round trip when this client knows that the lock is
    /// held. `None` if it is not free. A release of this client that is under way is waited for first, so that whoever drops
    /// a guard can have the lock again.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + 'static + use<> {
        self.try_acquire_at(Location::caller())
    }

    pub(crate) fn try_acquire_at(
        &self,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + 'static + use<> {
        let mut acquisition = self.acquisition(site, None);
        async move {
            match &mut acquisition {
                Ok(acquisition) => acquisition.acquire(false).await,
                Err(error) => Err(error.clone()),
            }
        }
    }

    /// Acquires the lock, and waits for it at most `timeout`. With zero, it is tried once.
    ///
    /// # Errors
    /// [`LockError::Timeout`] if it was not free in time; otherwise as [`acquire`](Self::acquire). If the time ran out while the
    /// backend gave no answer, its last error.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.acquire_timeout_at(timeout, Location::caller())
    }

    pub(crate) fn acquire_timeout_at(
        &self,
        timeout: Duration,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        let trouble = Trouble::default();
        let mut acquisition = self.acquisition(site, Some(trouble.clone()));
        async move {
            let acquisition = acquisition.as_mut().map_err(|error| error.clone())?;
            let lock = acquisition.name.clone();
            let waits = !timeout.is_zero();
            let acquire = acquisition.acquire(waits);
            let acquired = if waits {
                // An over-long time-out is none; tokio caps it.
                tokio::time::timeout(timeout, acquire).await.unwrap_or(Ok(None))
            } else {
                acquire.await
            };
            acquired?.ok_or_else(|| {
                trouble.take().unwrap_or(LockError::Timeout { lock, waited: timeout })
            })
        }
    }

    /// Acquires the lock, runs `body` and releases. Locks that `body` acquires belong to the same owner, so nested calls just work;
    /// and branches of a `join!` inside `body` are one owner, which do not exclude each other.
    ///
    /// If the hold is lost, `body` is dropped at its next await, and no later than the lease counted from the last successful
    /// renewal: before its end can let anybody else in. Work that must not be cut off in the middle belongs into a task of its own, and what it
    /// writes must carry the [`token`](LockGuard::token).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); and [`LockError::Lost`] if the hold was lost before `body` was done. A release that fails
    /// otherwise is no error of the work: it goes on in the background, and is reported by `tracing`.
    ///
    /// # Cancel safety
    /// Dropped while it waits: as [`acquire`](Self::acquire). Dropped later: `body` is dropped and the lock released.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// async fn pay(locks: &Locks) -> Result<u64, LockError> {
    ///     locks.lock("account:7").run(async |guard| u64::from(guard.token())).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let nested = locks.lock("account:7").run(async |outer| {
    ///     // `pay` takes the same lock again; its owner is that of the surrounding hold.
    ///     Ok::<_, LockError>(pay(&locks).await? == u64::from(outer.token()))
    /// });
    /// assert!(nested.await??);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run<F, T>(&self, body: F) -> impl Future<Output = Result<T, LockError>> + use<F, T>
    where
        F: AsyncFnOnce(&LockGuard) -> T,
    {
        self.run_at(body, Location::caller())
    }

    /// Like [`run`](Self::run), with a body that returns a boxed future. The future of this call can be
    /// spawned from generic code.
    ///
    /// The future of [`run`](Self::run) is `Send` where the compiler sees what `body` does, but a generic
    /// function cannot promise so: with `F: AsyncFnOnce(&LockGuard) -> T + Send`, the futures that `F`
    /// returns are not known to be `Send`, and `tokio::spawn(lock.run(body))` does not compile. There is
    /// no syntax for the missing bound yet.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    ///
    /// # Examples
    /// ```
    /// use std::pin::Pin;
    /// use lockcore::{Lock, LockError, LockGuard, Locks};
    /// use lockcore_memory::MemoryBackend;
    /// use tokio::task::JoinHandle;
    ///
    /// fn spawn_locked<F, T>(lock: &Lock, body: F) -> JoinHandle<Result<T, LockError>>
    /// where
    ///     F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    ///     F: Send + 'static,
    ///     T: Send + 'static,
    /// {
    ///     tokio::spawn(lock.run_boxed(body))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let token = spawn_locked(&locks.lock("account:7"), |guard| {
    ///     Box::pin(async move { guard.token() })
    /// });
    /// assert!(u64::from(token.await.expect("no panic")?) > 0);
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn run_boxed<F, T>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<T, LockError>> + Send + use<F, T>
    where
        F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> + Send,
        T: Send,
    {
        let acquire = self.acquire_at(Location::caller());
        async move {
            let guard = acquire.await?;
            let output = while_held(guard.owner(), guard.lost(), body(&guard)).await?;
            done(output, guard.release().await)
        }
    }

    pub(crate) fn run_at<F, T>(
        &self,
        body: F,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<T, LockError>> + use<F, T>
    where
        F: AsyncFnOnce(&LockGuard) -> T,
    {
        let acquire = self.acquire_at(site);
        async move {
            let guard = acquire.await?;
            let output = while_held(guard.owner(), guard.lost(), body(&guard)).await?;
            done(output, guard.release().await)
        }
    }

    /// Who holds the lock now, in whatever process, and what is left of the lease.
    ///
    /// # Errors
    /// [`LockError::InvalidName`], or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        let name = self.lock_name()?;
        let store = &self.client.store;
        let mut state = store
            .answer(store.backend.inspect(&name))
            .await
            .map_err(|error| error.with_lock(&name))?;
        let now = store.clock.now();
        for hold in store.names.holds_of(&name).iter().filter(|hold| hold.is_live(now)) {
            // Nested acquisitions that needed no round trip are known here only.
            if let Some(holder) = state.holder_mut(hold.id.owner(), hold.mode) {
                holder.set_hold_count(hold.count().max(1));
            }
        }
        Ok(state)
    }

    /// How many guards `owner` has of this lock in this client: 0 if it does not hold the lock. No I/O:
    /// this is what the client may believe. For permits, each acquisition counts as one.
    ///
    /// The two sides of a read-write lock count separately.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks, Owner};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let owner = Owner::new();
    /// let lock = Locks::new(MemoryBackend::new()).lock("order:42").owned_by(&owner);
    ///
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?;
    /// assert_eq!(lock.hold_count_of(&owner), 2);
    /// assert_eq!(lock.hold_count_of(&Owner::new()), 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn hold_count_of(&self, owner: &Owner) -> u32 {
        let Ok(name) = &self.name else { return 0 };
        let store = &self.client.store;
        let now = store.clock.now();
        let holds = store.names.holds_of(name);
        let is_theirs = |hold: &&Arc<Hold>| {
            hold.owner == *owner && hold.mode.is_held_as(self.mode) && hold.is_live(now)
        };
        holds.iter().filter(is_theirs).map(|hold| hold.count()).sum()
    }

    /// Frees the lock, whoever holds it: an operator's tool. True if it was held.
    ///
    /// Holders in this client learn of it at once, those in other clients with their next renewal, and those with a fixed lease only
    /// when they release. Until then both they, or those to whom they hand the lock on, and the next holder are inside; only the fencing token tells
    /// them apart.
    ///
    /// # Errors
    /// [`LockError::InvalidName`], or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the lock may or may not have been freed.
    pub async fn force_release(&self) -> Result<bool, LockError> {
        let name = self.lock_name()?;
        let store = &self.client.store;
        let ids = store.names.ids_of(&name);
        let forced = store
            .answer(store.backend.force_release(&name))
            .await
            .map_err(|error| error.with_lock(&name))?;
        if forced {
            tracing::warn!(lock = %name, "lock force-released");
            self.client.forced(&name, &ids);
        }
        Ok(forced)
    }

    fn acquisition(
        &self,
        site: &'static Location<'static>,
        trouble: Option<Trouble>,
    ) -> Result<Acquisition, LockError> {
        let name = self.lock_name()?;
        let lease = match self.fixed_lease {
            None => Lease::Renewed(self.client.settings.lease),
            Some(lease) => {
                lease::check(lease, "lease", Some(&name))?;
                Lease::Fixed(lease)
            }
        };
        let (client, owner) = (self.client.clone(), self.owner.clone());
        Ok(Acquisition { client, name, mode: self.mode, lease, owner, site, trouble, caller: None })
    }
}

/// The guard of an acquisition that waits: it ends with a guard or an error.
fn acquired(guard: Option<LockGuard>) -> Result<LockGuard, LockError> {
    match guard {
        Some(guard) => Ok(guard),
        None => unreachable!("an acquisition that waits is not refused"),
    }
}
