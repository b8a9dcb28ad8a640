//! Acquisitions that require replicas, beside others that do not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, LockError, Locks,
    backend::{AcquireOutcome, AcquireRequest, Backend, Replicas, async_trait},
};
use lockcore_memory::MemoryBackend;
use tokio::{task::yield_now, time::Instant};

use super::{MS, SECOND, within};
use crate::hooked::{Hooked, Hooks};

/// How long failures are tolerated.
const PATIENCE: Duration = SECOND;

/// A store with replicas, some of which acknowledge their writes.
#[derive(Debug)]
struct Group {
    store: MemoryBackend,
    acknowledging: AtomicU32,
    /// The requirement of requests without their own.
    demand: Option<Replicas>,
}

impl Group {
    fn new(demand: Option<Replicas>) -> (Arc<Self>, Locks) {
        let store = MemoryBackend::new();
        let group = Self { store: store.clone(), acknowledging: AtomicU32::new(0), demand };
        let group = Arc::new(group);
        let backend = Hooked::new(store, group.clone());
        (group, Locks::builder(backend).retry_for(PATIENCE).build().unwrap())
    }
}

#[async_trait]
impl Hooks for Group {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let demand = request.replicas.or(self.demand).filter(|demand| demand.count > 0)?;
        let granted = self.store.acquire(request).await;
        let Ok(AcquireOutcome::Acquired { token }) = granted else { return Some(granted) };
        let replicas = self.acknowledging.load(Ordering::Relaxed);
        if replicas >= demand.count {
            return Some(Ok(AcquireOutcome::Acknowledged { token, replicas }));
        }
        tokio::time::sleep(demand.timeout).await;
        self.store.release(&request.release()).await.unwrap();
        let error = BackendError::new(BackendErrorKind::Unavailable, "too few replicas");
        Some(Err(error.not_applied()))
    }

    fn has_replicas(&self) -> bool {
        true
    }
}

fn is_too_few(error: &LockError) -> bool {
    error.to_string().contains("too few replicas")
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_goes_on_until_the_replicas_that_it_asks_for_are_back() {
    let (group, locks) = Group::new(None);
    let acquiring = tokio::spawn(locks.lock("a").replicas(2, 10 * MS).acquire());
    tokio::time::sleep(PATIENCE / 2).await;
    group.acknowledging.store(2, Ordering::Relaxed);
    let guard = within(SECOND, "the lock", acquiring).await.unwrap().unwrap();
    assert_eq!(guard.replicas(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_asks_for_too_many_replicas_fails_alone() {
    let (_group, locks) = Group::new(None);
    let start = Instant::now();
    let strict = tokio::spawn(locks.lock("a").replicas(2, 10 * MS).acquire());
    yield_now().await;
    let behind = tokio::spawn(locks.lock("a").acquire());
    let short = tokio::spawn(locks.lock("a").acquire_timeout(PATIENCE / 2));
    let error = within(2 * PATIENCE, "the error", strict).await.unwrap().unwrap_err();
    assert!(is_too_few(&error) && start.elapsed() >= PATIENCE, "{error} {:?}", start.elapsed());
    let error = short.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "not the error of another: {error}");
    let guard = within(SECOND, "the next in line", behind).await.unwrap().unwrap();
    assert_eq!(guard.replicas(), None);
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_behind_such_a_waiter_is_refused_at_once() {
    let (_group, locks) = Group::new(None);
    let strict = tokio::spawn(locks.lock("a").replicas(2, 10 * MS).acquire());
    tokio::time::sleep(PATIENCE / 2).await;
    let attempt = locks.lock("a").try_acquire();
    assert!(within(PATIENCE / 4, "the refusal", attempt).await.unwrap().is_none());
    assert!(is_too_few(&strict.await.unwrap().unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_asks_for_no_replicas_does_not_bear_that_others_lack_some() {
    let (_group, locks) = Group::new(Some(Replicas::new(1, 10 * MS)));
    let strict = tokio::spawn(locks.lock("a").acquire());
    yield_now().await;
    let alike = tokio::spawn(locks.lock("a").acquire());
    let loose = tokio::spawn(locks.lock("a").replicas(0, MS).acquire());
    assert!(is_too_few(&within(2 * PATIENCE, "the error", strict).await.unwrap().unwrap_err()));
    let alike = within(SECOND, "the same error", alike).await.unwrap();
    assert!(is_too_few(&alike.unwrap_err()), "it has waited as long");
    let guard = within(SECOND, "the lock", loose).await.unwrap().unwrap();
    assert_eq!(guard.replicas(), None);
}
