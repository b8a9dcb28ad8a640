//! [`Semaphore`].

use std::{future::Future, panic::Location, pin::pin, sync::Arc, time::Duration};

use crate::{
    Lock, LockError, LockGuard, LockName, LockState, Mode, Owner,
    backend::{ResizeOutcome, ResizeRequest},
    client::Client,
};

/// A handle of a semaphore: so many may be inside at once, in all processes together.
///
/// Made by [`Locks::semaphore`](crate::Locks::semaphore). Its guards are those of a lock: their permits have a lease that is renewed while the
/// guard lives, so the permits of a process that dies come back; `lost()` tells when they are lost; each acquisition has a
/// token of its own.
///
/// Unlike a lock, a semaphore is not reentrant: each acquisition takes permits of its own, also for an owner that has some.
///
/// # How many permits
/// The number given to [`Locks::semaphore`](crate::Locks::semaphore) is that of a semaphore that does not exist yet. After
/// [`resize`](Self::resize), and if it was made by Java, the number that is stored counts. One that was not resized is forgotten
/// when it has not been used for a day.
///
/// # Who comes first
/// Tasks of one process get permits in the order in which they asked, also if the first asks for many and a later one for few; between
/// processes there is no order.
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
    /// The most permits that one acquisition can take.
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

    /// Acquires with a fixed lease that is never renewed; as [`Lock::lease`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// Acquires for `owner`, who is then reported by [`state`](Self::state). It makes no difference to who is let in.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.lock = self.lock.owned_by(owner);
        self
    }

    /// The name of the semaphore, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if it is no valid name, [`LockError::InvalidOption`] if it was made with no permits.
    pub fn name(&self) -> Result<&str, LockError> {
        self.lock.name()
    }

    /// So many permits, 1 to [`MAX_AT_ONCE`](Self::MAX_AT_ONCE), as a lock: they are acquired at once, have one guard and one token,
    /// and are released together. Each acquisition takes permits of its own, so this lock is not reentrant.
    ///
    /// Its methods fail with [`LockError::InvalidOption`] for no permits or too many at once; and acquisitions with
    /// [`LockError::TooManyPermits`] if the semaphore has fewer, taken or not, also if it is made smaller while they wait.
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
        // Nobody knows how many of a plain semaphore others have.
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
                    "at most {} permits can be taken at once, not {permits}",
                    Self::MAX_AT_ONCE
                ),
            });
        }
        Ok(())
    }

    /// Acquires a permit, and waits for it as long as it takes.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.permits(1).acquire_at(Location::caller())
    }

    /// Acquires a permit if there is one now: one attempt. `None` if there is none, or if others of this client wait already.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + 'static + use<> {
        self.permits(1).try_acquire_at(Location::caller())
    }

    /// Acquires a permit, and waits for it at most `timeout`. With zero, it is tried once.
    ///
    /// # Errors
    /// [`LockError::Timeout`] if there was none in time; otherwise as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        self.permits(1).acquire_timeout_at(timeout, Location::caller())
    }

    /// Acquires a permit, runs `body` and releases, as [`Lock::run`].
    ///
    /// # Errors
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    /// As [`Lock::run`].
    #[track_caller]
    pub fn run<F, T>(&self, body: F) -> impl Future<Output = Result<T, LockError>> + use<F, T>
    where
        F: AsyncFnOnce(&LockGuard) -> T,
    {
        self.lock.run_at(body, Location::caller())
    }

    /// How many permits can be taken now. By the time of the answer it may have changed.
    ///
    /// # Errors
    /// As [`name`](Self::name), or [`LockError::Backend`] at once.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn available(&self) -> Result<u32, LockError> {
        Ok(self.state().await?.available().unwrap_or(self.permits))
    }

    /// Who holds permits now, in whatever process, and how many there are.
    ///
    /// # Errors
    /// As [`available`](Self::available).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        self.lock.state().await
    }

    /// Sets how many permits there are, taken or not, for all clients; it is remembered until it is set again. Permits that are taken stay
    /// with their holders: of a semaphore that was made smaller nobody gets any until enough have come back.
    ///
    /// # Errors
    /// [`LockError::InvalidOption`] for no permits, and for a plain semaphore, whose number is Java's to set; otherwise as
    /// [`available`](Self::available).
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the number may or may not have been set. To set it again does no harm.
    pub async fn resize(&self, permits: u32) -> Result<(), LockError> {
        self.set_size(permits, false).await.map(|_| ())
    }

    /// Sets how many permits there are, as [`resize`](Self::resize), unless somebody has set it before: then that number stays. True if
    /// the number is now the one given here.
    ///
    /// The number given to [`Locks::semaphore`](crate::Locks::semaphore) is not set: it is replaced.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    ///
    /// # Cancel safety
    /// As [`resize`](Self::resize). If an answer is lost on the way, the request is repeated, and the repetition may find the number
    /// that the first one has set, and say false.
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
                reason:
                    "the permits of a plain semaphore are not all known here; use Redisson's `addPermits`"
                        .into(),
            });
        }
        self.lock.client.require(self.lock.mode, &name)?;
        let client = &self.lock.client;
        let request = ResizeRequest::new(name, permits).only_if_unset(only_if_unset);
        let name = &request.name;
        let resize = client.repeat(name, || client.store.backend.resize(&request));
        client.unless_closed(name, pin!(resize)).await
    }

    /// Takes all leased permits from their holders: an operator's tool. True if there were any.
    ///
    /// # Errors
    /// As [`Lock::force_release`].
    ///
    /// # Cancel safety
    /// As [`Lock::force_release`].
    pub async fn force_release(&self) -> Result<bool, LockError> {
        self.lock.force_release().await
    }
}

fn at_least_one(option: &'static str, permits: u32, name: &LockName) -> Result<(), LockError> {
    if permits > 0 {
        return Ok(());
    }
    let reason = "zero permits were asked for; at least one is needed".into();
    Err(LockError::InvalidOption { lock: Some(name.clone()), option, reason })
}
