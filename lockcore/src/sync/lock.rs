//! [`Lock`].

use std::{future::Future, panic::Location, pin::Pin, sync::Arc, time::Duration};

use crate::{
    Condition, LockError, LockGuard, LockName, LockState, Mode, Owner,
    backend::Replicas,
    client::{Acquisition, BackendCall, Beginning, Client},
    engine::MAX_HOLD_COUNT,
    sync::guard::{done, while_held},
    time::{Lease, lease},
};

/// A handle of a lock in one [mode](crate::Mode). It is cheap to make and to clone, and does
/// nothing until a method is called.
///
/// [`Locks::lock`](crate::Locks::lock) and [`Locks::fair_lock`](crate::Locks::fair_lock) make one,
/// and so do the two sides of a [`RwLock`](crate::RwLock) and
/// [`Semaphore::permits`](crate::Semaphore::permits). The first call reports an invalid name or
/// option, before any I/O.
///
/// # Reentrancy
/// A lock, a fair lock, a read lock and a write lock are reentrant: an [`Owner`] that holds the
/// lock acquires it again at once, and the lock is free when all its guards are gone. Permits are
/// not reentrant: each acquisition takes permits of its own.
///
/// # When not to use it
/// For data in the memory of a single process, `tokio::sync::Mutex` is faster and cannot be lost.
/// And if a mistake is costly, no lock with a lease replaces the check of the
/// [`token`](LockGuard::token) at the protected resource.
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
    /// The name, or the error that every call reports.
    pub(crate) name: Result<LockName, Box<LockError>>,
    pub(crate) mode: Mode,
    fixed_lease: Option<Duration>,
    replicas: Option<Replicas>,
    owner: Option<Owner>,
}

impl Lock {
    /// The greatest number of guards that a hold can have at a time, which is the greatest count
    /// that Java can read. Further ones are refused with [`LockError::TooDeep`].
    pub const MAX_HOLD_COUNT: u32 = MAX_HOLD_COUNT;

    pub(crate) fn new(client: Arc<Client>, name: Result<LockName, LockError>, mode: Mode) -> Self {
        let name = name.map_err(Box::new);
        Self { client, name, mode, fixed_lease: None, replicas: None, owner: None }
    }

    /// Acquires with a fixed lease of 1 ms to 365 days that is never renewed. Without this option,
    /// the lease is the one of the client (30 s by default), and is renewed while a guard lives.
    ///
    /// The lease has to be longer than a round trip and the margin for differing clocks (1 % and 2
    /// ms). A grant whose lease is over on arrival is given back and requested again; if that goes
    /// on for [`retry_for`](crate::LocksBuilder::retry_for), the acquisition fails with
    /// [`LockError::Backend`].
    ///
    /// A nested acquisition never shortens the lease of the hold. If it asks for more than is left,
    /// it extends the lease at the backend. See also [`LockGuard::extend`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.fixed_lease = Some(lease);
        self
    }

    /// Acquires only holds that at least `count` replicas of the server have acknowledged within
    /// `timeout`, which is 1 ms to 1 s. If fewer have, the hold is released, and the attempt fails
    /// with an error of the kind [`Unavailable`](crate::BackendErrorKind::Unavailable), which is
    /// retried for [`retry_for`](crate::LocksBuilder::retry_for) like any other outage.
    ///
    /// This overrides the configuration of the backend; a `count` of 0 asks for no acknowledgement.
    /// Without this option, the configuration of the backend applies. A backend without replicas
    /// refuses it with [`LockError::Unsupported`].
    ///
    /// Only outermost acquisitions wait for replicas. A nested acquisition joins the hold as it is,
    /// and renewals and extensions do not wait for acknowledgements. [`LockGuard::replicas`]
    /// returns the number that was reached. A lock with this option does not take over a hold that
    /// another task [hands over](crate::LocksBuilder::hand_over), which may have been acquired
    /// without it. While it is retried, tasks of this client that came later wait behind it. They
    /// are not affected by its failures.
    ///
    /// # What it does not promise
    /// A failover can promote a replica that has not acknowledged the hold, unless `count` is the
    /// number of all replicas. And the promoted replica may lack the last renewals: then the lease
    /// ends earlier than this client assumes, until its next renewal reports that the hold is lost.
    /// The [`token`](LockGuard::token) protects in both cases.
    #[must_use]
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.replicas = Some(Replicas::new(count, timeout));
        self
    }

    /// Acquires for `owner` instead of the owner of the scope or a fresh one.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// The condition of this lock that is called `name`. The [rules for names](LockName) apply. A
    /// lock may have several conditions.
    #[must_use]
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        Condition::new(self.clone(), name.into())
    }

    /// The name of the lock, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if the name is not valid.
    pub fn name(&self) -> Result<&str, LockError> {
        self.name.as_ref().map(LockName::as_str).map_err(|error| LockError::clone(error))
    }

    /// Returns `true` if an owner re-enters its hold.
    pub(crate) fn is_reentrant(&self) -> bool {
        !matches!(self.mode, Mode::Permit { .. })
    }

    /// The owner given with `owned_by`.
    pub(crate) fn given_owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Returns `true` if both acquire the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let of = |lock: &Self| (lock.mode, lock.fixed_lease, lock.replicas, lock.owner.clone());
        Arc::ptr_eq(&self.client, &other.client) && of(self) == of(other)
    }

    pub(crate) fn lock_name(&self) -> Result<LockName, LockError> {
        self.name.clone().map_err(|error| *error)
    }

    /// Acquires the lock, and waits for it as long as it takes.
    ///
    /// The tasks of one client acquire it in the order in which they asked. A waiter does not poll:
    /// it is woken by the release, by the end of the holder's lease, or after an interruption of
    /// the connection for wake-ups. After 10 s at the latest it asks again, in case the clock of
    /// the backend was changed.
    ///
    /// As with tokio's `Mutex`, a future that was polled once and is then kept without being polled
    /// keeps its place, so the waiters of this client behind it do not get in. Drop it, or poll it
    /// in a task of its own.
    ///
    /// # Errors
    /// - [`LockError::InvalidName`], [`LockError::InvalidOption`], [`LockError::Unsupported`] and
    ///   [`LockError::Closed`], before any I/O.
    /// - [`LockError::TooManyWaiters`] if the [limit](crate::LocksBuilder::max_waiters) of waiters
    ///   is reached.
    /// - [`LockError::TooDeep`] if the owner has [`MAX_HOLD_COUNT`](Self::MAX_HOLD_COUNT) guards,
    ///   and [`LockError::Upgrade`] if it holds the read lock and asks for the write lock.
    /// - [`LockError::Lost`] if this owner held the lock and has lost it.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime, if the task that renews leases does
    ///   not run yet.
    /// - [`LockError::Backend`], at once if a retry cannot help, and otherwise when the backend has
    ///   not responded for [`retry_for`](crate::LocksBuilder::retry_for).
    ///
    /// # Cancel safety
    /// If the future is dropped at any await, the lock is not held, no place in a queue is left,
    /// and the next waiter acquires the lock at once. A request that is on its way is followed by
    /// its release.
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
        let acquisition = self.acquisition(site);
        async move {
            // By reference: if it were moved, the future would hold it twice.
            let acquisition = acquisition.as_ref().map_err(LockError::clone)?;
            loop {
                // An acquisition that waits is not refused.
                if let Some(held) = acquisition.acquire(true).await? {
                    return Ok(LockGuard::new(held));
                }
            }
        }
    }

    /// Acquires the lock if it is free now, and returns `None` if it is not.
    ///
    /// This is a single attempt, without a round trip if this client knows that the lock is held.
    /// If a release of this client is under way, the attempt waits for it first, so that a task
    /// that drops a guard can acquire the lock again.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
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
        let acquisition = self.acquisition(site);
        async move {
            let acquisition = acquisition.as_ref().map_err(LockError::clone)?;
            Ok(acquisition.acquire(false).await?.map(LockGuard::new))
        }
    }

    /// Acquires the lock, and waits for it for at most `timeout`. With a time-out of zero, this is
    /// a single attempt.
    ///
    /// # Errors
    /// [`LockError::Timeout`] if the lock was not free in time, or the last error of the backend if
    /// it did not respond when the time was up. Otherwise as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
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
        let acquisition = self.acquisition(site);
        async move {
            let acquisition = acquisition.as_ref().map_err(LockError::clone)?;
            Ok(LockGuard::new(acquisition.acquire_within(timeout).await?))
        }
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// Locks that `body` acquires belong to the same owner, so nested calls just work. The branches
    /// of a `join!` inside `body` are one owner too, and do not exclude each other.
    ///
    /// If the hold is lost, `body` is dropped at its next await: at the latest when the lease ends,
    /// counted from the last successful renewal, and so before the backend can grant the lock to
    /// another owner. Work that must not be cut off in the middle belongs in a task of its own,
    /// which passes the [`token`](LockGuard::token) along with its writes.
    ///
    /// # Spawning
    /// `tokio::spawn(lock.run(..))` compiles for a concrete closure whose future is `Send`. It does
    /// not compile in a generic function: with `F: AsyncFnOnce(&LockGuard) -> T + Send`, nothing
    /// says that the future which `F` returns is `Send`, and Rust has no syntax for that bound yet.
    /// Use [`run_boxed`](Self::run_boxed) there.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and [`LockError::Lost`] if the hold was lost before
    /// `body` was done. A release that fails for another reason is not an error of the work: it is
    /// retried in the background, and reported by `tracing`.
    ///
    /// # Cancel safety
    /// While the future waits for the lock, as for [`acquire`](Self::acquire). Later, dropping it
    /// drops `body` and releases the lock.
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

    /// Like [`run`](Self::run), for a `body` that returns a boxed future. The future of this method
    /// is always `Send`, so that generic functions can spawn it.
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
        self.run_boxed_at(body, Location::caller())
    }

    pub(crate) fn run_boxed_at<F, T>(
        &self,
        body: F,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<T, LockError>> + Send + use<F, T>
    where
        F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> + Send,
        T: Send,
    {
        let acquire = self.acquire_at(site);
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

    /// Inspects the lock: its holders in all processes, and the rest of the lease.
    ///
    /// # Errors
    /// [`LockError::InvalidName`], or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        let (name, client) = (self.lock_name()?, &self.client);
        let state = client.call(BackendCall::Inspect, client.backend.inspect(&name)).await;
        let mut state = state.map_err(|error| error.with_lock(&name))?;
        client.count_guards(&name, &mut state);
        Ok(state)
    }

    /// The number of guards that `owner` has of this lock in this client, as far as the client
    /// knows: 0 if `owner` does not hold it. No I/O.
    ///
    /// The two sides of a read-write lock count separately. For permits, each acquisition counts as
    /// one.
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
        self.client.hold_count_of(name, self.mode, owner)
    }

    /// Frees the lock, whoever holds it, and returns `true` if it was held. This is a tool for
    /// operators.
    ///
    /// On either side of a read-write lock it frees both sides, and on permits all permits of the
    /// semaphore.
    ///
    /// Holders in this client learn of it at once, holders in other clients with their next
    /// renewal, and holders with a fixed lease only when they release. Until then, both they (or
    /// the tasks to which they hand the lock over) and the next holder are inside, and only the
    /// fencing token distinguishes them.
    ///
    /// # Errors
    /// [`LockError::InvalidName`], or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the lock may or may not have been freed.
    pub async fn force_release(&self) -> Result<bool, LockError> {
        let (name, client) = (self.lock_name()?, &self.client);
        let ids = client.ids_of(&name);
        let call = client.backend.force_release(&name);
        let forced = client.call(BackendCall::ForceRelease, call).await;
        let forced = forced.map_err(|error| error.with_lock(&name))?;
        if forced {
            tracing::warn!(lock = %name, "lock force-released");
            client.forced(&name, &ids);
        }
        Ok(forced)
    }

    fn acquisition(&self, site: &'static Location<'static>) -> Result<Acquisition, LockError> {
        let name = self.lock_name()?;
        let lease = match self.fixed_lease {
            None => Lease::Renewed(self.client.settings.lease),
            Some(lease) => {
                lease::check(lease, self.client.shortest_lease(), "lease", Some(&name))?;
                Lease::Fixed(lease)
            }
        };
        if let Some(Replicas { timeout, .. }) = self.replicas
            && !Replicas::TIMEOUTS.contains(&timeout)
        {
            return Err(LockError::InvalidOption {
                lock: Some(name),
                option: "replicas",
                reason: format!("the timeout must be 1 ms to 1 s, but is {timeout:?}"),
            });
        }
        let (client, owner) = (self.client.clone(), self.owner.clone());
        let Self { mode, replicas, .. } = *self;
        let beginning = Beginning::default();
        Ok(Acquisition { client, name, mode, lease, replicas, owner, site, beginning })
    }
}
