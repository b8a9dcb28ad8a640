//! [`MemoryBackend`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use dashmap::{DashMap, mapref::entry::Entry};
use lockcore::{
    AcquireOutcome, AcquireRequest, Backend, BackendError, Capabilities, FencingToken, LockName, LockState,
    ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, SubscribeRequest, Wakeups,
};
use tokio::{sync::watch, time::Instant};

use crate::state::Cell;

/// Locks in this process's memory.
///
/// Clones share one store: two [`Locks`](lockcore::Locks) on two clones exclude each other as two processes on one Redis would. Time is
/// tokio's, so that a test with a paused clock sees leases end at once.
///
/// A name costs nothing while nobody holds it or waits for it.
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
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    cells: DashMap<LockName, Cell>,
    /// Tokens of all names come from one sequence, so that none has to be remembered for a name that is free.
    last_token: AtomicU64,
    /// Cells made since expired holds were last swept out.
    made: AtomicUsize,
}

impl MemoryBackend {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many names have a hold or a subscription now. For tests of what is left behind.
    #[must_use]
    pub fn names_in_use(&self) -> usize {
        let now = Instant::now();
        self.shared.cells.iter().filter(|cell| !cell.is_idle(now)).count()
    }
}

impl Shared {
    /// Does something to the cell of `name` and removes it if that left it idle.
    fn with_cell<T>(&self, name: &LockName, change: impl FnOnce(&mut Cell, Instant) -> T) -> T {
        let now = Instant::now();
        match self.cells.entry(name.clone()) {
            Entry::Vacant(_) => change(&mut Cell::default(), now),
            Entry::Occupied(mut slot) => {
                let result = change(slot.get_mut(), now);
                if slot.get().is_idle(now) {
                    slot.remove();
                }
                result
            }
        }
    }

    /// Removes the cells of holds that expired and were never asked for again. The cost is spread: as many cells are looked at
    /// as were made since the last time.
    fn sweep_now_and_then(&self) {
        const AT_LEAST: usize = 256;
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        if made >= AT_LEAST && made >= self.cells.len() {
            self.made.store(0, Ordering::Relaxed);
            let now = Instant::now();
            self.cells.retain(|_, cell| !cell.is_idle(now));
        }
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE | Capabilities::FAIR
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        self.shared.sweep_now_and_then();
        let next_token = || FencingToken::from(self.shared.last_token.fetch_add(1, Ordering::Relaxed) + 1);
        let mut cell = self.shared.cells.entry(request.name.clone()).or_default();
        Ok(cell.acquire(request, Instant::now(), next_token))
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let renew = |request: &RenewRequest| {
            self.shared.with_cell(&request.name, |cell, now| cell.renew(request, now))
        };
        Ok(holds.iter().map(renew).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        Ok(self.shared.with_cell(&request.name, |cell, now| cell.release(request, now)))
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        Ok(self.shared.with_cell(name, |cell, now| cell.force_release(now)))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        Ok(self.shared.with_cell(name, |cell, now| cell.inspect(now)))
    }

    async fn subscribe(&self, request: &SubscribeRequest) -> Result<Box<dyn Wakeups>, BackendError> {
        let mut cell = self.shared.cells.entry(request.name.clone()).or_default();
        let released = Some(cell.subscribe());
        Ok(Box::new(Subscription { shared: self.shared.clone(), name: request.name.clone(), released }))
    }
}

/// Wakes one client's waiters. Its channel keeps what came between two calls.
#[derive(Debug)]
struct Subscription {
    shared: Arc<Shared>,
    name: LockName,
    /// Taken out when dropped, so that the cell sees its last listener gone.
    released: Option<watch::Receiver<()>>,
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) {
        let Some(released) = &mut self.released else { return };
        if released.changed().await.is_err() {
            // The cell is never removed while somebody listens.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.released = None;
        self.shared.with_cell(&self.name, |_, _| ());
    }
}
