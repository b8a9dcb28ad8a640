//! [`Locks`].

use std::{future::Future, sync::Arc};

use crate::{
    CountDownLatch, Lock, LockError, LockName, LocksBuilder, Mode, MultiLock, Owner, RwLock,
    Semaphore, Waits, backend::Backend, client::Client,
};

/// The entry point: a client that makes handles of locks over one backend.
///
/// Use a `Locks` on one tokio runtime. Its background task, which renews and releases, lives on the
/// runtime that was used first. It moves to another one only when that runtime has ended and a new
/// acquisition begins.
///
/// Clones are the same client. Two separately made `Locks` are two clients, like two processes:
/// they exclude each other, and queue and renew separately.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
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
    pub(crate) fn from_client(client: Arc<Client>) -> Self {
        Self { client }
    }

    /// A client of `backend` with the default options of [`LocksBuilder`].
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        LocksBuilder::new(backend).finish()
    }

    /// Options for a client of `backend`.
    pub fn builder(backend: impl Backend) -> LocksBuilder {
        LocksBuilder::new(backend)
    }

    /// The reentrant lock called `name`. No I/O: the first call on the handle reports an invalid
    /// name. See [`LockName`] for the rules.
    #[must_use]
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        self.handle(name, Mode::Exclusive)
    }

    /// The fair lock called `name`: like [`lock`](Self::lock), but acquired in the order of
    /// arrival, across tasks and processes.
    ///
    /// The order has a price. Every waiter talks to the backend itself, and asks again every third
    /// of the [`queue_timeout`](LocksBuilder::queue_timeout), so that a waiter that crashed delays
    /// the others no longer than that time.
    ///
    /// In return, the lock goes from one process to the next in one round trip: if the backend
    /// supports it, a release grants the lock to the first waiter in the queue and notifies it. The
    /// store keeps such a hold only for the rest of the waiter's place, until the first renewal,
    /// which follows soon.
    ///
    /// Use either this method or [`lock`](Self::lock) for a name. The two exclude each other, but
    /// `lock` does not queue. Several waiters with one named owner may count as one.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let guard = locks.fair_lock("printer").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: impl Into<String>) -> Lock {
        self.handle(name, Mode::Fair)
    }

    /// The read-write lock called `name`: held by many readers together, or by a single writer.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(&self.client, &self.name(name))
    }

    /// The semaphore called `name`, with `permits` permits, at least 1. See [`Semaphore`] for the
    /// meaning of the number if the semaphore exists already.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(&self.client, self.name(name), permits, false)
    }

    /// A semaphore that is shared with software whose permits have no lease, such as Redisson's
    /// `RSemaphore`.
    ///
    /// Permits that this library acquires have a lease. If their holder dies, they come back as
    /// soon as somebody asks for permits through this library. Permits that Java holds have none:
    /// after a crash they are gone until somebody releases them, and [`state`](Semaphore::state)
    /// does not show them. Prefer [`semaphore`](Self::semaphore), and `RPermitExpirableSemaphore`
    /// in Java.
    ///
    /// On Redis, a number that this library has stored is forgotten a day after this library last
    /// used it, whatever Java does with it. So let Java set it with `trySetPermits`.
    #[must_use]
    pub fn plain_semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(&self.client, self.name(name), permits, true)
    }

    /// The count-down latch called `name`.
    #[must_use]
    pub fn latch(&self, name: impl Into<String>) -> CountDownLatch {
        CountDownLatch::new(self.client.clone(), self.name(name))
    }

    /// The reentrant locks called `names`, held together: all or none. A name that is given twice
    /// counts once. For other kinds of locks, see [`MultiLock::of`].
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

    /// Runs `future` in a scope of a fresh owner: the owner of every lock that `future` acquires,
    /// however deep, so that nested acquisitions re-enter. See [`Owner::scope`].
    ///
    /// # Cancel safety
    /// This is as cancel safe as `future`.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        Owner::new().scope(future)
    }

    /// Reports who waits for whom at the store, for every client that has a
    /// [record](LocksBuilder::description), whatever its namespace.
    ///
    /// An acquisition appears in the report within a second after it has waited for 1.5 s. Waits
    /// for latches and conditions do not appear. A cycle of acquisitions that wait for each other
    /// is looked at twice: the records are read, the store is asked for the holds, and 1.5 s later
    /// both are repeated, up to six more times until each client in the cycle has rewritten its
    /// record. So a deadlock is reported within 5 s of its beginning, and neither a wait that has
    /// ended meanwhile nor the record of a client that crashed, or cannot reach the store, is taken
    /// for a deadlock. The call takes at most 3 s plus the store's response times, and returns at
    /// once if there is no possible cycle. It only reports, and interrupts no wait.
    ///
    /// The record of a client that crashed remains until it runs out, and its waits are reported
    /// until then. The amount of data that is read is bounded: see
    /// [`Waits::is_partial`](crate::Waits::is_partial).
    ///
    /// # Errors
    /// [`LockError::Backend`] if the backend does not respond, and with the kind
    /// [`Unsupported`](crate::BackendErrorKind::Unsupported) if it has no
    /// [`Directory`](crate::backend::Directory).
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let waits = locks.waits().await?;
    /// for waiting in waits.waiting() {
    ///     let (client, site) = (waiting.client(), waiting.site());
    ///     println!("{client} has waited for {:?} at {site}", waiting.waited());
    /// }
    /// for cycle in waits.cycles() {
    ///     println!("{cycle}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn waits(&self) -> Result<Waits, LockError> {
        self.client.waits().await
    }

    /// Releases every hold, waits for releases that are under way, and stops the background task.
    /// Waiting and later acquisitions fail with [`LockError::Closed`], as do calls of latches and
    /// conditions, and `resize`. `lost()` of every guard resolves. Inspection (`state`,
    /// `available`, `waits`) and `force_release` still work.
    ///
    /// Call it before the runtime ends: a task releases the guards that were dropped, and tasks end
    /// with their runtime.
    ///
    /// # Errors
    /// [`LockError::Backend`] if a hold could not be released, or if a release that was under way
    /// was not confirmed within [`retry_for`](LocksBuilder::retry_for). Such a hold ends with its
    /// lease, or earlier if an attempt in the background succeeds. All other holds are released all
    /// the same.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the releases that were begun are completed in
    /// the background. The method can be called again.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn close(&self) -> Result<(), LockError> {
        self.client.close().await
    }

    /// Gives up every hold as a crash of the process would. This is meant for tests of crashes:
    /// nothing is released or renewed any more, so the locks are free when their leases end.
    /// Waiting and later acquisitions fail with [`LockError::Closed`], and `lost()` of every guard
    /// resolves.
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
