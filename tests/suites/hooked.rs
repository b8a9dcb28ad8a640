//! [`Hooked`]: the memory backend, with hooks before its calls.

use std::{fmt, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, Departure,
        Directory, Latches, Limits, Page, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest, ResizeOutcome, ResizeRequest, Start, StoredEntry, SubscribeRequest, Wakeup,
        Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;

/// Hooks that a [`Hooked`] calls. By default they do nothing.
#[async_trait]
pub(crate) trait Hooks: fmt::Debug + Send + Sync + 'static {
    /// An answer replaces that of the store.
    async fn acquire(&self, _: &AcquireRequest) -> Option<Result<AcquireOutcome, BackendError>> {
        None
    }

    /// Returns `true` if [`acquire`](Self::acquire) heeds the replicas that are asked for.
    fn has_replicas(&self) -> bool {
        false
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn renew(&self, _: &[RenewRequest]) {}

    async fn release(&self) {}

    fn remove_client(&self) {}

    fn look_at_latch(&self) {}

    /// `mode` is that of a lock, or `None` for a latch or a condition. The returned wake-ups
    /// replace those of the store.
    async fn subscribe(&self, _mode: Option<Mode>) -> Option<Box<dyn Wakeups>> {
        None
    }

    /// Returns `true` if wake-ups are always ready, as the contract allows.
    fn is_restless(&self) -> bool {
        false
    }
}

/// The memory backend, with hooks before its calls.
#[derive(Debug)]
pub(crate) struct Hooked<H> {
    store: MemoryBackend,
    hooks: std::sync::Arc<H>,
}

impl<H: Hooks> Hooked<H> {
    pub(crate) fn new(store: MemoryBackend, hooks: std::sync::Arc<H>) -> Self {
        Self { store, hooks }
    }

    fn wakeups(&self, wakeups: Box<dyn Wakeups>) -> Box<dyn Wakeups> {
        Box::new(HookedWakeups { wakeups, hooks: self.hooks.clone() })
    }
}

#[async_trait]
impl<H: Hooks> Backend for Hooked<H> {
    fn capabilities(&self) -> Capabilities {
        match self.hooks.has_replicas() {
            true => self.store.capabilities() | Capabilities::REPLICAS,
            false => self.store.capabilities(),
        }
    }

    fn limits(&self) -> Limits {
        self.hooks.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.store.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        match self.hooks.acquire(request).await {
            Some(outcome) => outcome,
            None => self.store.acquire(request).await,
        }
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.hooks.renew(holds);
        self.store.renew(holds).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        self.hooks.release().await;
        self.store.release(request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.store.force_release(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        self.store.inspect(name).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        match self.hooks.subscribe(Some(request.mode)).await {
            Some(wakeups) => Ok(wakeups),
            None => Ok(self.wakeups(Backend::subscribe(&self.store, request).await?)),
        }
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        self.store.resize(request).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        self.store.raise_token(name, token).await
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

impl<H: Hooks> Hooked<H> {
    fn stored(&self) -> Result<&dyn Directory, BackendError> {
        self.store.directory().ok_or_else(|| BackendError::unsupported("records of clients"))
    }
}

#[async_trait]
impl<H: Hooks> Directory for Hooked<H> {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        self.stored()?.names(start).await
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        self.stored()?.put_client(id, record, lifetime).await
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        self.hooks.remove_client();
        self.stored()?.remove_client(id).await
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        self.stored()?.clients(start).await
    }

    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        self.stored()?.storage(name, conditions).await
    }
}

#[async_trait]
impl<H: Hooks> Latches for Hooked<H> {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        self.store.set_count(name, count, id).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        self.store.count_down(name, id).await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        self.hooks.look_at_latch();
        self.store.count(name).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        self.store.open(name).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        match self.hooks.subscribe(None).await {
            Some(wakeups) => Ok(wakeups),
            None => Ok(self.wakeups(Latches::subscribe(&self.store, name).await?)),
        }
    }
}

#[async_trait]
impl<H: Hooks> Conditions for Hooked<H> {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        self.store.join(condition, waiter, keep).await
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        self.store.stay(condition, waiter, keep).await
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        self.store.leave(condition, waiter, departure).await
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        self.store.notify(condition, count).await
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        match self.hooks.subscribe(None).await {
            Some(wakeups) => Ok(wakeups),
            None => Ok(self.wakeups(Conditions::subscribe(&self.store, condition, waiter).await?)),
        }
    }
}

#[derive(Debug)]
struct HookedWakeups<H> {
    wakeups: Box<dyn Wakeups>,
    hooks: std::sync::Arc<H>,
}

#[async_trait]
impl<H: Hooks> Wakeups for HookedWakeups<H> {
    async fn woken(&mut self) -> Wakeup {
        match self.hooks.is_restless() {
            true => Wakeup::Changed,
            false => self.wakeups.woken().await,
        }
    }
}
