//! The races of handwritten locks with SETNX and GETSET, one test each, on both backends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    Clock, FencingToken, LockError, LockName, Locks, LocksBuilder,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, ReleaseRequest},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::RedisServer;

use crate::support::{connect, soon};

/// A store that several processes use.
enum Store {
    Memory(MemoryBackend),
    Redis(RedisServer),
}

impl Store {
    /// A separate client, as if in another process.
    async fn client(&self) -> LocksBuilder {
        match self {
            Self::Memory(store) => Locks::builder(store.clone()),
            Self::Redis(server) => Locks::builder(connect(server).await),
        }
    }

    async fn locks(&self) -> Locks {
        self.client().await.build().unwrap()
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Redis(server) => Arc::new(connect(server).await),
        }
    }
}

/// Runs each test on both stores.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Store::Memory(super::MemoryBackend::new())).await;
            })*
        }
        mod redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Store::Redis(super::RedisServer::start())).await;
            })*
        }
    };
}

on_both! {
    crash_between_taking_the_lock_and_setting_its_expiry
    two_waiters_that_both_see_it_expired_and_both_take_it
    a_holder_that_finishes_late_and_deletes_its_successors_lock
    clients_whose_clocks_differ_by_an_hour
    a_release_by_someone_who_never_held_it
    a_process_stopped_for_longer_than_its_lease_that_goes_on_working
}

/// The protected resource: it refuses a token that is older than the last one.
#[derive(Default)]
struct Resource {
    greatest: AtomicU64,
}

impl Resource {
    fn write(&self, token: FencingToken) -> bool {
        let token = u64::from(token);
        self.greatest.fetch_max(token, Ordering::SeqCst) <= token
    }
}

fn name() -> LockName {
    LockName::new("race").unwrap()
}

/// SETNX, then EXPIRE: a client that dies in between leaves a lock forever.
async fn crash_between_taking_the_lock_and_setting_its_expiry(store: Store) {
    let lease = Duration::from_millis(400);
    let request = AcquireRequest::new(name(), HoldId::unique("crashed:1"), lease);
    let crashed = store.backend().await.acquire(&request).await.unwrap();
    assert!(matches!(crashed, AcquireOutcome::Acquired { .. }));
    // Nothing more is ever heard of it. The expiry was part of the acquisition.
    let locks = store.locks().await;
    let left = locks.lock("race").state().await.unwrap().remaining();
    assert!(left.is_some_and(|left| left <= lease), "{left:?}");
    let start = Instant::now();
    soon("the end of the lease", locks.lock("race").acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(start.elapsed() < lease + Duration::from_millis(300), "{:?}", start.elapsed());
}

/// GETSET with time stamps: both clients read that the lock has expired, and both write.
async fn two_waiters_that_both_see_it_expired_and_both_take_it(store: Store) {
    let (backend, one, other) = (store.backend().await, store.locks().await, store.locks().await);
    for round in 0..10 {
        let abandoned = HoldId::unique(format!("abandoned:{round}"));
        let request = AcquireRequest::new(name(), abandoned, Duration::from_millis(60));
        backend.acquire(&request).await.unwrap();
        let (first, second) = (one.lock("race"), other.lock("race"));
        let (mut first, mut second) = (Box::pin(first.acquire()), Box::pin(second.acquire()));
        // Both wait for the same end; the first to enter keeps the other out for as long as it
        // likes.
        let (inside, outside) = tokio::select! {
            guard = &mut first => (guard.unwrap(), second),
            guard = &mut second => (guard.unwrap(), first),
        };
        let both = tokio::time::timeout(Duration::from_millis(100), outside).await;
        assert!(both.is_err(), "round {round}: two are inside");
        inside.release().await.unwrap();
    }
}

/// DEL without a check: a late holder deletes the lock of its successor.
async fn a_holder_that_finishes_late_and_deletes_its_successors_lock(store: Store) {
    let (slow, next) = (store.locks().await, store.locks().await);
    let late = slow.lock("race").lease(Duration::from_millis(100)).acquire().await.unwrap();
    let successor = soon("the end of the lease", next.lock("race").acquire()).await.unwrap();
    assert!(matches!(late.release().await, Err(LockError::Lost { .. })));
    let state = slow.lock("race").state().await.unwrap();
    assert_eq!(state.holders()[0].owner(), successor.wire_owner());
    assert!(slow.lock("race").try_acquire().await.unwrap().is_none());
    successor.release().await.unwrap();
}

/// Client time stamps as values: a client whose clock is ahead takes every lock.
async fn clients_whose_clocks_differ_by_an_hour(store: Store) {
    let ahead = store
        .client()
        .await
        .clock(Clock::with_suspension(|| Duration::from_secs(3600)))
        .build()
        .unwrap();
    let behind = store.locks().await;
    for (holder, other) in [(&behind, &ahead), (&ahead, &behind)] {
        let lease = Duration::from_millis(500);
        let start = Instant::now();
        let guard = holder.lock("race").lease(lease).acquire().await.unwrap();
        assert!(
            other.lock("race").try_acquire().await.unwrap().is_none(),
            "it has not expired for anybody"
        );
        assert!(guard.is_held());
        let next = soon("the end of the lease", other.lock("race").acquire()).await.unwrap();
        assert!(
            (lease - Duration::from_millis(20)..lease * 2).contains(&start.elapsed()),
            "{:?}",
            start.elapsed()
        );
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
}

/// DEL by anybody: a lock is only as good as its worst user.
async fn a_release_by_someone_who_never_held_it(store: Store) {
    let (backend, locks) = (store.backend().await, store.locks().await);
    let guard = locks.lock("race").acquire().await.unwrap();
    for stranger in [
        HoldId::unique("stranger:1"),
        HoldId::named("stranger", "stranger:2"),
        HoldId::named(guard.wire_owner(), "stranger:3"),
    ] {
        let answer = backend.release(&ReleaseRequest::new(name(), stranger)).await.unwrap();
        assert_eq!(answer, ReleaseOutcome::NotHeld);
    }
    assert!(locks.lock("race").state().await.unwrap().is_held());
    guard.release().await.unwrap();
    let nobody = ReleaseRequest::new(name(), HoldId::unique("stranger:1"));
    assert_eq!(backend.release(&nobody).await.unwrap(), ReleaseOutcome::NotHeld);
}

/// A pause by the garbage collector, the hypervisor or a debugger: the process does not know that
/// it was stopped.
async fn a_process_stopped_for_longer_than_its_lease_that_goes_on_working(store: Store) {
    let lease = Duration::from_millis(300);
    let resource = Arc::new(Resource::default());
    let (stopped, entered) = tokio::sync::oneshot::channel();
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    let builder = match &store {
        Store::Memory(store) => Ok(store.clone()),
        Store::Redis(server) => Err(server.url()),
    };
    // The whole process is one thread: while it is stopped, no timer and no renewal of this client
    // runs.
    let process = std::thread::spawn({
        let resource = resource.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let locks = match builder {
                    Ok(store) => Locks::builder(store),
                    Err(url) => {
                        Locks::builder(lockcore_redis::RedisBackend::connect(url).await.unwrap())
                    }
                };
                let locks = locks.lease(lease).build().unwrap();
                let guard = locks.lock("race").acquire().await.unwrap();
                assert!(resource.write(guard.token()), "inside, and the first");
                stopped.send(()).unwrap();
                resumed.recv().unwrap();
                let refused = !resource.write(guard.token());
                (refused, guard.is_held(), guard.release().await)
            })
        }
    });
    entered.await.unwrap();
    let next =
        soon("the end of the lease", store.locks().await.lock("race").acquire()).await.unwrap();
    assert!(resource.write(next.token()));
    resume.send(()).unwrap();
    let (refused, believed, released) =
        tokio::task::spawn_blocking(|| process.join().unwrap()).await.unwrap();
    assert!(refused, "the resource refuses its token");
    assert!(!believed, "and it knows as soon as it looks");
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    assert!(next.is_held(), "its late release has freed nothing");
    next.release().await.unwrap();
}
