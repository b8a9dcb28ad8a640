//! Requests that overlap with a release of their client, with another request of their owner, or
//! with their own undoing.

use std::time::Duration;

use lockcore::{BackendErrorKind, Lock, LockError, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::time::{Instant, sleep};

use crate::clients::{SECOND, assert_all_free};

/// After this time, a request that is not polled is undone: 6 s, and some slack.
const UNPOLLED: Duration = Duration::from_secs(7);

/// A store, and two clients of it, of which the first has faults.
struct Scene {
    store: MemoryBackend,
    faults: Faults,
    here: Locks,
    there: Locks,
}

impl Scene {
    fn new() -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        Self { faults, here: Locks::new(backend), there: Locks::new(store.clone()), store }
    }
}

/// A refusal says nothing about a release that came after it.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_older_than_a_release_of_the_own_client_is_not_believed() {
    let scene = Scene::new();
    // Only the client itself knows of the release.
    scene.faults.every(Op::Woken, Fault::LostRequest);
    // A hold with a fixed lease is not handed over.
    let lock = scene.here.lock("a").lease(60 * SECOND);
    let held = lock.acquire().await.unwrap();
    scene.faults.every(Op::Acquire, Fault::DelayReply(SECOND));
    let asked = scene.faults.calls(Op::Acquire);
    let waiting = tokio::spawn(lock.acquire());
    scene.faults.reached(Op::Acquire, asked + 1).await;
    sleep(SECOND / 2).await;
    let start = Instant::now();
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() <= 2 * SECOND, "{:?}", start.elapsed());
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_during_a_release_of_its_client_is_made_when_that_is_answered() {
    let kinds: [fn(&Locks) -> Lock; 3] = [
        |locks| locks.lock("a"),
        |locks| locks.rw_lock("a").write(),
        |locks| locks.semaphore("a", 1).permits(1),
    ];
    for kind in kinds {
        let scene = Scene::new();
        scene.faults.every(Op::Release, Fault::DelayReply(SECOND));
        let lock = kind(&scene.here);
        drop(lock.acquire().await.unwrap());
        let start = Instant::now();
        let next = lock.try_acquire().await.unwrap().expect("it was given back");
        assert!(start.elapsed() <= SECOND, "{:?}", start.elapsed());
        next.release().await.unwrap();
        assert_all_free(&scene.store).await;
    }
}

/// Otherwise, the store may mistake one for the other, or each has its own hold.
#[tokio::test(start_paused = true)]
async fn two_acquisitions_of_one_owner_at_once_make_one_request() {
    for owner in [Owner::new(), Owner::named("job-17")] {
        let scene = Scene::new();
        let kinds: [fn(&Locks) -> Lock; 3] = [
            |locks| locks.lock("a"),
            |locks| locks.fair_lock("a"),
            |locks| locks.rw_lock("a").read(),
        ];
        for kind in kinds {
            let lock = kind(&scene.here).owned_by(&owner);
            scene.faults.next(Op::Acquire, Fault::DelayReply(SECOND));
            let asked = scene.faults.calls(Op::Acquire);
            let (one, other) = tokio::join!(lock.acquire(), lock.acquire());
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!(scene.faults.calls(Op::Acquire), asked + 1, "{lock:?}");
            assert_eq!((one.hold_count(), one.token()), (2, other.token()), "{lock:?}");
            one.release().await.unwrap();
            assert!(other.is_held(), "{lock:?}");
            other.release().await.unwrap();
            assert_all_free(&scene.store).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_polls_keeps_others_out_for_a_few_seconds() {
    let kinds: [fn(&Locks) -> Lock; 4] = [
        |locks| locks.lock("a"),
        |locks| locks.lock("a").lease(3600 * SECOND),
        |locks| locks.fair_lock("a"),
        |locks| locks.semaphore("a", 1).permits(1),
    ];
    for kind in kinds {
        let scene = Scene::new();
        scene.faults.next(Op::Acquire, Fault::DelayReply(SECOND));
        let mut unpolled = Box::pin(kind(&scene.here).acquire());
        assert!(poll_times(1, unpolled.as_mut()).await.is_none(), "the answer is on its way");
        assert!(scene.store.names_in_use() > 0, "it was granted");
        let start = Instant::now();
        let taken = kind(&scene.there).acquire().await.unwrap();
        assert!(start.elapsed() <= UNPOLLED, "{:?}", start.elapsed());
        // It sees its grant only now, after the undo.
        assert!(poll_times(1, unpolled.as_mut()).await.is_none(), "two are inside");
        taken.release().await.unwrap();
        let own = unpolled.await.unwrap();
        assert!(own.is_held());
        own.release().await.unwrap();
        assert_all_free(&scene.store).await;
    }
}

/// The last attempt was refused, but an earlier one may have counted, and has.
#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_not_forgotten_when_the_next_ones_are_refused() {
    let scene = Scene::new();
    let latch = scene.here.latch("l");
    for (first, is_unknown) in
        [(Fault::LostReply, true), (Fault::Refuse(BackendErrorKind::Timeout), false)]
    {
        latch.open().await.unwrap();
        latch.set_count(2).await.unwrap();
        scene.faults.every(Op::CountDown, Fault::Refuse(BackendErrorKind::Connection));
        scene.faults.next(Op::CountDown, first);
        let LockError::Backend(error) = latch.count_down().await.unwrap_err() else {
            panic!("another error");
        };
        assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
        assert_eq!(error.is_outcome_unknown(), is_unknown, "{error}");
        assert_eq!(latch.count().await.unwrap(), 2 - u32::from(is_unknown));
        scene.faults.heal();
    }
}
