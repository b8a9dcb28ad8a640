//! What users call: [`Locks`], its builder, and the handles and guards that are made from it.

pub(crate) mod condition;
mod guard;
mod latch;
mod lock;
mod multi;
mod rw_lock;
mod semaphore;
mod wait;

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    Clock, LockError, LockName, Mode, Owner,
    acquiring::seats::Seats,
    acquiring::waiters::Names,
    backend::{Backend, Capabilities},
    client::{Client, Settings},
    leases::lease,
    leases::renewal::Schedule,
    store::Store,
};

pub use self::{
    condition::Condition,
    guard::LockGuard,
    latch::CountDownLatch,
    lock::Lock,
    multi::{MultiGuard, MultiLock},
    rw_lock::RwLock,
    semaphore::Semaphore,
    wait::{WaitError, WaitOutcome},
};

/// The entry point: locks over one backend.
///
/// Use one `Locks` on one tokio runtime: its background task, which renews and releases, lives on the runtime that was used first, and
/// only moves to another when that one has ended and the next acquisition comes.
///
/// Clones are the same client. Two `Locks` made separately are two clients, as two processes would be: they exclude each
/// other, queue separately and renew separately.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use lockcore::Locks;
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let locks = Locks::builder(MemoryBackend::new())
///     .namespace("shop:")
///     .lease(Duration::from_secs(10))
///     .build()?;
///
/// let guard = locks.lock("order:42").acquire().await?;
/// assert_eq!(guard.name(), "shop:order:42");
/// locks.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    client: Arc<Client>,
}

impl Locks {
    /// Locks over `backend`, with the default options of [`LocksBuilder`].
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        LocksBuilder::new(backend).finish()
    }

    /// Locks over `backend` with other options.
    pub fn builder(backend: impl Backend) -> LocksBuilder {
        LocksBuilder::new(backend)
    }

    /// A handle of the reentrant lock called `name`. No I/O; a bad name is reported by the first call on the handle. For the
    /// rules see [`LockName`].
    #[must_use]
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        self.handle(name, Mode::Exclusive)
    }

    /// A handle of the fair lock called `name`: as [`lock`](Self::lock), but whoever asked first gets it first, tasks and processes
    /// alike.
    ///
    /// The order costs: every waiter talks to the backend itself, and asks again every third of the
    /// [`queue_timeout`](LocksBuilder::queue_timeout), so that a waiter that crashed keeps the others no longer than that. On one
    /// name use either this or [`lock`](Self::lock): they exclude each other, but `lock` does not queue. Several waiters under one
    /// named owner may count as one.
    ///
    /// # Examples
    /// ```
    /// use lockcore::Locks;
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let guard = locks.fair_lock("printer").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: impl Into<String>) -> Lock {
        self.handle(name, Mode::Fair)
    }

    /// A handle of the read-write lock called `name`: many readers together, or one writer alone.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(&self.client, &self.name(name))
    }

    /// A handle of the semaphore called `name`, with so many permits: at least 1. See [`Semaphore`] for what the number means when the
    /// semaphore exists already.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(&self.client, self.name(name), permits, false)
    }

    /// A handle of a semaphore that is shared with others whose permits have no lease: Redisson's `RSemaphore`.
    ///
    /// The permits that are acquired through this library have a lease, and come back when their holder dies, as soon as somebody asks for
    /// permits through this library. Those that Java holds do not: if it crashes, they are gone until somebody releases
    /// them. Nor are they seen by [`state`](Semaphore::state). Prefer [`semaphore`](Self::semaphore), and `RPermitExpirableSemaphore`
    /// in Java.
    ///
    /// On Redis, a number that this library has made is forgotten when this library has not used it for a day, whatever Java does with
    /// it: have Java set it, with `trySetPermits`.
    #[must_use]
    pub fn plain_semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(&self.client, self.name(name), permits, true)
    }

    /// A handle of the count-down latch called `name`.
    #[must_use]
    pub fn latch(&self, name: impl Into<String>) -> CountDownLatch {
        CountDownLatch::new(self.client.clone(), self.name(name))
    }

    /// A handle of the reentrant locks called `names`, held together: all or none. Names given twice count once. For other locks than
    /// those of [`lock`](Self::lock) see [`MultiLock::of`].
    #[must_use]
    pub fn multi_lock<I>(&self, names: I) -> MultiLock
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        MultiLock::of(names.into_iter().map(|name| self.lock(name)))
    }

    fn handle(&self, name: impl Into<String>, mode: Mode) -> Lock {
        Lock::new(self.client.clone(), self.name(name), mode)
    }

    fn name(&self, name: impl Into<String>) -> Result<LockName, LockError> {
        let name = name.into();
        LockName::new(if name.is_empty() {
            name
        } else {
            format!("{}{name}", self.client.settings.namespace)
        })
    }

    /// Runs `future` with a fresh owner: every lock that it acquires, however deep, belongs to it, so that nested
    /// acquisitions enter. See [`Owner::scope`].
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        Owner::new().scope(future)
    }

    /// Releases every hold, waits for releases that are under way, and stops the background work. Acquisitions that wait, and
    /// later ones, fail with [`LockError::Closed`]; `lost()` of every guard resolves.
    ///
    /// Call it before the runtime ends: a guard that was dropped is released by a task, and tasks end with their runtime.
    ///
    /// # Errors
    /// [`LockError::Backend`] if a hold could not be released, or if the release of a dropped guard was not confirmed within
    /// [`retry_for`](LocksBuilder::retry_for): it ends with its lease, or earlier if an attempt in the background succeeds.
    /// Everything else is released all the same.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the releases that were begun are completed in the background. It can be called again.
    pub async fn close(&self) -> Result<(), LockError> {
        self.client.close().await
    }

    /// Abandons every hold as a crash of this process would, for tests of crashes: nothing is released
    /// and nothing renewed any more, so the locks are free when their leases end. Acquisitions that wait,
    /// and later ones, fail with [`LockError::Closed`], and `lost()` of every guard resolves.
    ///
    /// A request that is on its way may still be carried out.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// let store = MemoryBackend::new();
    /// let (crashing, other) = (Locks::new(store.clone()), Locks::new(store));
    ///
    /// let guard = crashing.lock("order:42").acquire().await?;
    /// crashing.abandon();
    /// drop(guard); // releases nothing
    /// assert!(other.lock("order:42").try_acquire().await?.is_none());
    ///
    /// tokio::time::advance(Duration::from_secs(30)).await;
    /// assert!(other.lock("order:42").try_acquire().await?.is_some(), "the lease has ended");
    /// # Ok(()) }
    /// ```
    pub fn abandon(&self) {
        self.client.abandon();
    }
}

/// The options of [`Locks`].
#[derive(Debug)]
#[must_use = "options have no effect before `build()`"]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    namespace: String,
    lease: Duration,
    queue_timeout: Duration,
    retry_for: Duration,
    hand_over: Duration,
    max_waiters: usize,
    max_waiters_per_lock: usize,
    clock: Clock,
}

impl LocksBuilder {
    fn new(backend: impl Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            namespace: String::new(),
            lease: lease::DEFAULT,
            queue_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(5),
            hand_over: Duration::from_millis(50),
            max_waiters: 100_000,
            max_waiters_per_lock: 10_000,
            clock: Clock::system(),
        }
    }

    /// What every name begins with. Default: nothing. The whole name has at most 512 bytes.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// How long a hold outlives its holder: 1 ms to 365 days, default 30 s. It is renewed every third of it while a guard
    /// lives, so it is also how long an unreachable backend can be borne by a holder.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a place in the queue of a [fair lock](Locks::fair_lock) is kept for a waiter that has stopped asking, because it
    /// crashed or was cut off: what it costs the others at most. 30 ms to 1 h, default 5 s; a waiter that lives asks again
    /// every third of it. All clients of a store should use the same.
    pub fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.queue_timeout = timeout;
        self
    }

    /// How long an acquisition that waits bears a backend that gives no answer, before it fails with the last error: counted from
    /// the first failure, which for a silent server comes only after the backend's own time-out. Default 5 s; zero fails with
    /// the first one. Requests of latches are repeated for 50 s at most.
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = time;
        self
    }

    /// For how long the tasks of this client hand a [lock](Locks::lock) on to each other without asking the backend, before it is given back so that
    /// other clients get their turn: counted from when this client began to have it by turns of its tasks. 0 to 60 s, default 50 ms; zero turns it off. It is also never
    /// longer than a quarter of the lease.
    ///
    /// Each of them has a hold of its own, with its own owner and a new token; at the backend it is one hold. Only acquisitions with the
    /// client's renewed lease and without a [named owner](Owner::named) take part. After that time, tasks that still wait leave the lock to other
    /// clients for 3 ms before they ask for it; if nobody took it then, for up to four such times they do not.
    pub fn hand_over(mut self, time: Duration) -> Self {
        self.hand_over = time;
        self
    }

    /// How many may wait at a time in this client, for locks, permits, latches and conditions together: at least 1, default
    /// 100,000. One more is refused with [`LockError::TooManyWaiters`], at once and without I/O. An acquisition that waits is one
    /// from when it is begun, even if the lock is free; [`try_acquire`](crate::Lock::try_acquire) and nested acquisitions are none.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.max_waiters = limit;
        self
    }

    /// How many of them may wait for one name, so that one that is stuck does not keep all others from waiting: at least 1, default
    /// 10,000.
    pub fn max_waiters_per_lock(mut self, limit: usize) -> Self {
        self.max_waiters_per_lock = limit;
        self
    }

    /// The clock against which leases are judged. Default [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the client. No I/O, and no runtime needed.
    ///
    /// # Errors
    /// [`LockError::InvalidOption`] for an option out of range, [`LockError::InvalidName`] for a namespace that no name can follow.
    pub fn build(self) -> Result<Locks, LockError> {
        lease::check(self.lease, "lease", None)?;
        if !(Duration::from_millis(30)..=Duration::from_secs(3600)).contains(&self.queue_timeout) {
            let reason = format!("it goes from 30 ms to 1 h, {:?} was given", self.queue_timeout);
            return Err(LockError::InvalidOption { lock: None, option: "queue_timeout", reason });
        }
        if self.hand_over > Duration::from_secs(60) {
            let reason = format!("it goes from 0 to 60 s, {:?} was given", self.hand_over);
            return Err(LockError::InvalidOption { lock: None, option: "hand_over", reason });
        }
        let limits = [
            ("max_waiters", self.max_waiters),
            ("max_waiters_per_lock", self.max_waiters_per_lock),
        ];
        if let Some((option, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            let reason = "nobody could wait; it is at least 1".into();
            return Err(LockError::InvalidOption { lock: None, option, reason });
        }
        if !self.namespace.is_empty() {
            // Braces may be closed by the name that follows; the rest is the namespace's own.
            LockName::new(self.namespace.replace(['{', '}'], "_") + "x")?;
        }
        Ok(self.finish())
    }

    fn finish(self) -> Locks {
        let schedule = Arc::<Schedule>::default();
        let seats = Seats::new(self.max_waiters, self.max_waiters_per_lock);
        let hands_over = self.backend.capabilities().contains(Capabilities::HAND_OVER);
        let hand_over = (hands_over && !self.hand_over.is_zero()).then_some(self.hand_over);
        let store = Store {
            backend: self.backend,
            clock: self.clock,
            names: Names::new(seats, schedule.clone(), hand_over),
            schedule,
            batching: self.lease / 30,
        };
        let settings = Settings {
            lease: self.lease,
            queue_timeout: self.queue_timeout,
            retry_for: self.retry_for,
            namespace: self.namespace,
        };
        Locks { client: Arc::new(Client::new(store, settings)) }
    }
}
