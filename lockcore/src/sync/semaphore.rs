//! [`Semaphore`].

use std::{
    future::Future,
    panic::Location,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use crate::{
    Lock, LockError, LockGuard, LockName, LockState, Mode, Owner,
    backend::{ResizeOutcome, ResizeRequest},
    client::Client,
};

/// A handle of a semaphore, which admits a limited number of holders in all processes together.
///
/// [`Locks::semaphore`](crate::Locks::semaphore) makes one. Its guards are those of a lock. Their
/// permits have a lease that is renewed while the guard lives, so the permits of a process that
/// dies come back, and `lost()` reports their loss. Each acquisition has a token of its own.
///
/// Unlike a lock, a semaphore is not reentrant: each acquisition takes permits of its own, also for
/// an owner that has some already. The permits of one acquisition are given back together.
///
/// # The number of permits
/// The number given to [`Locks::semaphore`](crate::Locks::semaphore) applies to a semaphore that
/// does not exist yet. After [`resize`](Self::resize), or if Java has made the semaphore, the
/// stored number applies. A semaphore that was not resized and is not used any more is forgotten
/// after a time that depends on the backend: a day on Redis, at once in memory and on PostgreSQL.
///
/// # Fairness
/// The tasks of one client acquire permits in the order in which they asked, even if the first one
/// asks for many and a later one for few. Between clients there is no order.
///
/// # Examples
/// ```
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let downloads = locks.semaphore("downloads", 10);
///
/// let one = downloads.acquire().await?;
/// let eight = downloads.permits(8).acquire().await?;
/// assert_eq!(downloads.available().await?, 1);
/// assert!(downloads.permits(2).try_acquire().await?.is_none());
///
/// eight.release().await?;
/// assert_eq!(downloads.available().await?, 9);
/// # drop(one); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: Lock,
    permits: u32,
    plain: bool,
}

impl Semaphore {
    /// The greatest number of permits that one acquisition can take.
    pub const MAX_AT_ONCE: u32 = 1024;

    pub(crate) fn new(
        client: &Arc<Client>,
        name: Result<LockName, LockError>,
        permits: u32,
        plain: bool,
    ) -> Self {
        let name = name.and_then(|name| at_least_one("semaphore", permits, &name).map(|()| name));
        let mode = if plain { Mode::plain_permits(1, permits) } else { Mode::permits(1, permits) };
        Self { lock: Lock::new(client.clone(), name, mode), permits, plain }
    }

    /// Acquires with a fixed lease that is never renewed. Like [`Lock::lease`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// Acquires for `owner`, which [`state`](Self::state) then reports. The owner makes no
    /// difference to admission.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.lock = self.lock.owned_by(owner);
        self
    }

    /// The name of the semaphore, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if the name is not valid, and [`LockError::InvalidOption`] for a
    /// semaphore with zero permits.
    pub fn name(&self) -> Result<&str, LockError> {
        self.lock.name()
    }

    /// A lock that takes `permits` permits at once, 1 to [`MAX_AT_ONCE`](Self::MAX_AT_ONCE). They
    /// have one guard and one token, and are released together.
    ///
    /// Calls on it fail with [`LockError::InvalidOption`] if `permits` is out of range.
    /// Acquisitions fail with [`LockError::TooManyPermits`] if the semaphore has fewer permits,
    /// taken or not, or if it is made smaller while they wait.
    #[must_use]
    pub fn permits(&self, permits: u32) -> Lock {
        let mut lock = self.lock.clone();
        lock.name =
            lock.name.and_then(|name| self.check(permits, &name).map(|()| name).map_err(Box::new));
        lock.mode = if self.plain {
            Mode::plain_permits(permits, self.permits)
        } else {
            Mode::permits(permits, self.permits)
        };
        lock
    }

    fn check(&self, permits: u32, name: &LockName) -> Result<(), LockError> {
        at_least_one("permits", permits, name)?;
        // The backend does not know how many permits of a plain semaphore are held elsewhere.
        if self.plain && permits > self.permits {
            return Err(LockError::TooManyPermits {
                lock: name.clone(),
                asked: permits,
                limit: self.permits,
            });
        }
        if permits > Self::MAX_AT_ONCE {
            return Err(LockError::InvalidOption {
                lock: Some(name.clone()),
                option: "permits",
                reason: format!(
                    "at most {} permits can be acquired at once, not {permits}",
                    Self::MAX_AT_ONCE
                ),
            });
        }
        Ok(())
    }

    /// Acquires one permit, and waits for it as long as it takes. For more permits, use
    /// [`permits`](Self::permits).
    ///
    /// # Errors
    /// As for [`Lock::acquire`], and [`LockError::InvalidOption`] for a semaphore with zero
    /// permits.
    ///
    /// # Cancel safety
    /// As for [`Lock::acquire`].
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.permits(1).acquire_at(Location::caller())
    }

    /// Acquires one permit if there is one now, in a single attempt. Returns `None` if there is
    /// none, or if other tasks of this client wait already.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As for [`Lock::acquire`].
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + 'static + use<> {
        self.permits(1).try_acquire_at(Location::caller())
    }

    /// Acquires one permit, and waits for it for at most `timeout`. With a time-out of zero, this
    /// is a single attempt.
    ///
    /// # Errors
    /// [`LockError::Timeout`] if there was no permit in time. Otherwise as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`Lock::acquire`].
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.permits(1).acquire_timeout_at(timeout, Location::caller())
    }

    /// Acquires one permit, runs `body`, and releases the permit. Like [`Lock::run`].
    ///
    /// # Errors
    /// As for [`Lock::run`].
    ///
    /// # Cancel safety
    /// As for [`Lock::run`].
    #[track_caller]
    pub fn run<F, T>(&self, body: F) -> impl Future<Output = Result<T, LockError>> + use<F, T>
    where
        F: AsyncFnOnce(&LockGuard) -> T,
    {
        self.lock.run_at(body, Location::caller())
    }

    /// Like [`run`](Self::run), for a `body` that returns a boxed future. The future of this method
    /// is always `Send`, so that generic functions can spawn it: see [`Lock::run_boxed`].
    ///
    /// # Errors
    /// As for [`Lock::run`].
    ///
    /// # Cancel safety
    /// As for [`Lock::run`].
    #[track_caller]
    pub fn run_boxed<F, T>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<T, LockError>> + Send + use<F, T>
    where
        F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> + Send,
        T: Send,
    {
        self.lock.run_boxed_at(body, Location::caller())
    }

    /// The number of permits that can be taken now. It may have changed by the time of the answer.
    ///
    /// # Errors
    /// As for [`name`](Self::name), or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn available(&self) -> Result<u32, LockError> {
        Ok(self.state().await?.available().unwrap_or(self.permits))
    }

    /// Inspects the semaphore: the holders of permits in all processes, and the number of permits.
    ///
    /// # Errors
    /// As for [`available`](Self::available).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        self.lock.state().await
    }

    /// Sets the number of permits, taken or not, for all clients. It is remembered until it is set
    /// again. Permits that are taken stay with their holders: if the semaphore becomes smaller,
    /// nobody acquires permits until enough have come back.
    ///
    /// # Errors
    /// [`LockError::InvalidOption`] for zero permits, and for a plain semaphore, whose number only
    /// Java can set. Otherwise as for [`available`](Self::available), but temporary failures are
    /// retried for [`retry_for`](crate::LocksBuilder::retry_for).
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the number may or may not have been set. It
    /// does no harm to set it again.
    pub async fn resize(&self, permits: u32) -> Result<(), LockError> {
        self.set_size(permits, false).await.map(|_| ())
    }

    /// Sets the number of permits unless it was set before, and returns `true` if it did. A number
    /// that was set by [`resize`](Self::resize), by this method or by Java stays.
    ///
    /// The number given to [`Locks::semaphore`](crate::Locks::semaphore) does not count as set, and
    /// is replaced.
    ///
    /// If an answer is lost, the request is repeated. The repetition may then find the number that
    /// the first request has set, and return `false`.
    ///
    /// # Errors
    /// As for [`resize`](Self::resize).
    ///
    /// # Cancel safety
    /// As for [`resize`](Self::resize).
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let downloads = locks.semaphore("downloads", 10);
    ///
    /// assert!(downloads.resize_if_unset(5).await?);
    /// assert!(!downloads.resize_if_unset(7).await?, "an operator's choice stays");
    /// assert_eq!(downloads.available().await?, 5);
    /// # Ok(()) }
    /// ```
    pub async fn resize_if_unset(&self, permits: u32) -> Result<bool, LockError> {
        Ok(self.set_size(permits, true).await? == ResizeOutcome::Resized)
    }

    async fn set_size(
        &self,
        permits: u32,
        only_if_unset: bool,
    ) -> Result<ResizeOutcome, LockError> {
        let name = self.lock.lock_name()?;
        at_least_one("resize", permits, &name)?;
        if self.plain {
            return Err(LockError::InvalidOption {
                lock: Some(name),
                option: "resize",
                reason: "the number of permits of a plain semaphore is not known here; use \
                         `addPermits` of Redisson"
                    .into(),
            });
        }
        self.lock.client.require(self.lock.mode, &name)?;
        let client = &self.lock.client;
        let request = ResizeRequest::new(name, permits).only_if_unset(only_if_unset);
        let (name, limit) = (&request.name, client.settings.retry_for);
        let mut last_error = None;
        let resize =
            client.repeat(name, limit, &mut last_error, || client.backend.resize(&request));
        client.unless_closed(name, pin!(resize)).await
    }

    /// Takes all leased permits from their holders, and returns `true` if there were any. This is a
    /// tool for operators.
    ///
    /// # Errors
    /// As for [`Lock::force_release`].
    ///
    /// # Cancel safety
    /// As for [`Lock::force_release`].
    pub async fn force_release(&self) -> Result<bool, LockError> {
        self.lock.force_release().await
    }
}

fn at_least_one(option: &'static str, permits: u32, name: &LockName) -> Result<(), LockError> {
    if permits > 0 {
        return Ok(());
    }
    let reason = "it is zero; give at least 1".into();
    Err(LockError::InvalidOption { lock: Some(name.clone()), option, reason })
}
