//! Undeclared features are refused before the backend is asked.

use std::time::Duration;

use lockcore::{
    BackendError, FencingToken, LockError, LockName, LockState, Locks,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, Conditions, Directory, Latches,
        Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::Faulty;

/// A third party's first backend: exclusive locks, and nothing else.
#[derive(Debug)]
struct Modest(Faulty<MemoryBackend>);

#[async_trait]
impl Backend for Modest {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn intact_for(&self) -> Option<Duration> {
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.0.renew(holds).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        self.0.release(request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.0.force_release(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        self.0.inspect(name).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Backend::subscribe(&self.0, request).await
    }

    async fn resize(&self, _: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        Err(BackendError::unsupported("semaphores"))
    }

    async fn raise_token(&self, _: &LockName, _: FencingToken) -> Result<(), BackendError> {
        Err(BackendError::unsupported("proposed tokens"))
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        None
    }

    fn directory(&self) -> Option<&dyn Directory> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_declared_is_refused_by_name_and_without_a_call() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(Modest(backend));
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let calls = faults.all_calls();

    let condition = lock.condition("c");
    let refusals = [
        ("fair locks", locks.fair_lock("b").acquire().await.err()),
        ("read-write locks", locks.rw_lock("b").read().acquire().await.err()),
        ("read-write locks", locks.rw_lock("b").write().try_acquire().await.err()),
        ("semaphores", locks.semaphore("b", 2).acquire().await.err()),
        ("semaphores", locks.semaphore("b", 2).resize(3).await.err()),
        ("semaphores", locks.plain_semaphore("b", 2).permits(2).acquire().await.err()),
        ("latches", locks.latch("b").set_count(1).await.err()),
        ("latches", locks.latch("b").wait().await.err()),
        ("replicas", locks.lock("b").replicas(1, Duration::from_millis(1)).acquire().await.err()),
        ("conditions", condition.notify_all(&guard).await.err()),
        ("conditions", condition.wait(guard).await.err().map(LockError::from)),
    ];
    for (what, refusal) in refusals {
        let error = refusal.expect(what);
        let name = if what == "conditions" { "`a`" } else { "`b`" };
        assert!(matches!(error, LockError::Unsupported { .. }), "{what}: {error}");
        assert!(error.to_string().contains(what) && error.to_string().contains(name), "{error}");
    }
    // The guard of the wait was released: that is the only call.
    drop(lock.acquire().await.unwrap());
    assert_eq!(faults.all_calls(), calls + 2);
}

#[tokio::test]
async fn a_lock_is_kept_only_where_others_can_be_heard() {
    let builder = Locks::builder(Modest(Faulty::new(MemoryBackend::new())));
    let error = builder.linger(Duration::from_millis(20)).build().unwrap_err();
    assert!(matches!(error, LockError::InvalidOption { option: "linger", .. }), "{error:?}");
    assert!(error.to_string().contains("the backend cannot tell"), "{error}");
}
