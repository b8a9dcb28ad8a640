//! [`MemoryBackend`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockcore::{
    BackendError, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, Latches,
        ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome, ResizeRequest,
        SubscribeRequest, Wakeups, async_trait,
    },
};

use crate::{
    entries::Entries,
    state::{Cell, Condition},
};

/// Locks in this process's memory.
///
/// Clones share one store: two [`Locks`](lockcore::Locks) on two clones exclude each other as two processes on one Redis would. Time is
/// tokio's, so that a test with a paused clock sees leases end at once.
///
/// A name costs nothing while nobody holds it or waits for it. The answers of a latch are remembered for a minute, and the size of a
/// semaphore that was resized for ever.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let store = MemoryBackend::new();
/// let (one, other) = (Locks::new(store.clone()), Locks::new(store));
///
/// let guard = one.lock("order:42").acquire().await?;
/// assert!(other.lock("order:42").try_acquire().await?.is_none());
/// guard.release().await?;
/// assert!(other.lock("order:42").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryBackend {
    pub(crate) cells: Arc<Entries<LockName, Cell>>,
    pub(crate) conditions: Arc<Entries<ConditionId, Condition>>,
    /// Tokens of all names come from one sequence, so that none has to be remembered for a name that is free.
    last_token: Arc<AtomicU64>,
}

impl MemoryBackend {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many names and conditions somebody holds, waits for or listens to now, or has set. For tests of what is left behind.
    #[must_use]
    pub fn names_in_use(&self) -> usize {
        self.cells.count(Cell::is_in_use) + self.conditions.count(|_| true)
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
            | Capabilities::FAIR
            | Capabilities::READ_WRITE
            | Capabilities::PERMITS
            | Capabilities::HAND_OVER
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        let tokens = u64::from(request.tokens.max(1));
        let next_token =
            || FencingToken::from(self.last_token.fetch_add(tokens, Ordering::Relaxed) + 1);
        self.cells.with(&request.name, |cell, now| cell.acquire(request, now, next_token))
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let renew = |request: &RenewRequest| {
            self.cells.with(&request.name, |cell, now| cell.renew(request, now))
        };
        Ok(holds.iter().map(renew).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        Ok(self.cells.with(&request.name, |cell, _| cell.release(request)))
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.cells.with(name, |cell, _| cell.force_release())
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        Ok(self.cells.with(name, |cell, now| cell.inspect(now)))
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.cells.subscribe(&request.name, Cell::subscribe))
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        self.cells.with(&request.name, |cell, _| cell.resize(request))
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }
}
