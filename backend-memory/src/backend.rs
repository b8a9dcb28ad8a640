//! [`MemoryBackend`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, ConditionId, Conditions,
        Directory, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};

use crate::{
    directory::ClientRecords,
    expiring_map::ExpiringMap,
    state::{ConditionQueue, NameState},
};

/// Locks in the memory of this process.
///
/// Clones share one store: two [`Locks`](lockcore::Locks) on two clones exclude each other like two
/// processes on one Redis server. Leases are measured with tokio's clock, so a test that pauses the
/// clock does not wait for them.
///
/// A name takes no memory while it has no holders and no waiters, with two exceptions: replies to
/// requests for a latch are remembered for a minute, and the size of a semaphore that was resized
/// is never forgotten.
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
    pub(crate) names: Arc<ExpiringMap<LockName, NameState>>,
    pub(crate) conditions: Arc<ExpiringMap<ConditionId, ConditionQueue>>,
    pub(crate) clients: Arc<ClientRecords>,
    /// One sequence for all names, so that a free name needs no memory for its last token.
    last_token: Arc<AtomicU64>,
}

impl MemoryBackend {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts the names and conditions that are in use: those that have holds, waiters or
    /// subscribers, a latch that is closed, or a semaphore that was resized.
    ///
    /// Tests use it to check that nothing is left behind.
    #[must_use]
    pub fn names_in_use(&self) -> usize {
        self.names.count(NameState::is_in_use) + self.conditions.count(|_| true)
    }

    /// The first of `count` new tokens, which is at least `least`.
    fn next_token(&self, count: u32, least: Option<FencingToken>) -> FencingToken {
        let (count, least) = (u64::from(count.max(1)), least.map_or(0, u64::from));
        let first_after = |last: u64| last.saturating_add(1).max(least);
        let last_of = |last| Some(first_after(last).saturating_add(count - 1));
        let (Ok(last) | Err(last)) =
            self.last_token.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last_of);
        FencingToken::from(first_after(last))
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
            | Capabilities::DEMAND
            | Capabilities::DIRECT_GRANT
            | Capabilities::PROPOSED_TOKENS
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn intact_for(&self) -> Option<Duration> {
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        let next_token = || self.next_token(request.tokens, request.least_token);
        self.names.update(&request.name, |state, now| state.acquire(request, now, next_token))
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let renew = |request: &RenewRequest| {
            self.names.update(&request.name, |state, now| state.renew(request, now))
        };
        Ok(holds.iter().map(renew).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let next_token = || self.next_token(1, None);
        Ok(self.names.update(&request.name, |state, _| state.release(request, next_token)))
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.names.update(name, |state, _| state.force_release())
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        Ok(self.names.update(name, |state, now| state.inspect(now)))
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        if request.awaited == Awaited::Demand && request.mode != Mode::Exclusive {
            let what = format_args!("messages about the demand for locks in {} mode", request.mode);
            return Err(BackendError::unsupported(what));
        }
        let hold = (request.mode == Mode::Fair).then(|| request.hold.clone());
        Ok(self.names.subscribe(&request.name, hold, |state| state.subscribe(request.awaited)))
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        self.names.update(&request.name, |state, _| state.resize(request))
    }

    async fn raise_token(&self, _: &LockName, token: FencingToken) -> Result<(), BackendError> {
        self.last_token.fetch_max(token.into(), Ordering::Relaxed);
        Ok(())
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}
