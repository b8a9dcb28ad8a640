//! `Locks::abandon`: like a crash, as seen by others.

use std::time::Duration;

use lockcore::{LockError, Locks, LossReason, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use tokio::time::Instant;

use crate::clients::{SECOND, assert_all_free};

#[tokio::test(start_paused = true)]
async fn what_an_abandoned_client_held_is_free_when_its_lease_ends_and_no_earlier() {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let (crashing, other) = (Locks::new(backend), Locks::new(store.clone()));
    let renewed = crashing.lock("a").acquire().await.unwrap();
    let fixed = crashing.lock("b").lease(50 * SECOND).acquire().await.unwrap();
    let owner = Owner::new();
    let nested = crashing.lock("c").owned_by(&owner);
    let (outer, inner) = (nested.acquire().await.unwrap(), nested.acquire().await.unwrap());
    drop(inner);
    tokio::time::sleep(SECOND).await;

    let calls = faults.all_calls();
    crashing.abandon();
    let start = Instant::now();
    for guard in [&renewed, &fixed, &outer] {
        assert_eq!(guard.lost().await, LossReason::Closed);
        assert!(!guard.is_held() && guard.remaining().is_zero());
    }
    assert!(matches!(renewed.release().await, Err(LockError::NotHeld { .. })));
    assert!(matches!(fixed.extend(SECOND).await, Err(LockError::NotHeld { .. })));
    drop((fixed, outer));
    for name in ["a", "b", "c"] {
        assert!(other.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
    for name in ["a", "c", "b"] {
        drop(other.lock(name).acquire().await.unwrap());
        let least = if name == "b" { 49 } else { 29 };
        assert!(start.elapsed() >= least * SECOND, "{name}: after {:?}", start.elapsed());
    }
    assert!(start.elapsed() < 51 * SECOND);
    assert_eq!(faults.all_calls(), calls, "nothing was asked of the backend any more");
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_an_abandoned_client_is_told_and_its_hold_is_handed_to_nobody() {
    let store = MemoryBackend::new();
    let (crashing, other) = (Locks::new(store.clone()), Locks::new(store.clone()));
    let guard = crashing.lock("a").acquire().await.unwrap();
    let waiting = ["lock", "fair"].map(|kind| {
        let lock = if kind == "lock" { crashing.lock("a") } else { crashing.fair_lock("a") };
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    });
    let latch = crashing.latch("gate");
    latch.set_count(1).await.unwrap();
    let opened = tokio::spawn(async move { latch.wait().await });
    tokio::time::sleep(SECOND).await;
    crashing.abandon();
    for waiter in waiting.into_iter().chain([opened]) {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::Closed { .. }), "{error}");
    }
    let late = crashing.lock("b").acquire().await.unwrap_err();
    assert!(matches!(late, LockError::Closed { .. }), "{late}");
    drop(guard);
    tokio::time::sleep(SECOND).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    drop(other.lock("a").acquire().await.unwrap());

    // Closing it changes nothing.
    crashing.close().await.unwrap();
    crashing.abandon();
}

#[tokio::test(start_paused = true)]
async fn releases_and_undoings_that_were_under_way_are_forgotten() {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let (crashing, other) = (Locks::new(backend), Locks::new(store));
    // A release that is being repeated.
    faults.every(Op::Release, Fault::LostRequest);
    drop(crashing.lock("a").acquire().await.unwrap());
    // An acquisition whose answer is on its way.
    faults.every(Op::Acquire, Fault::DelayReply(SECOND));
    let acquiring = tokio::spawn({
        let lock = crashing.lock("b");
        async move { lock.acquire().await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    crashing.abandon();
    faults.heal();
    assert!(acquiring.await.unwrap().is_err());
    let released = faults.calls(Op::Release);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(faults.calls(Op::Release), released);
    for name in ["a", "b"] {
        assert!(other.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_being_repeated_ends_as_if_nothing_were_held() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let crashing = Locks::new(backend);
    let guard = crashing.lock("a").acquire().await.unwrap();
    faults.every(Op::Release, Fault::LostRequest);
    let releasing = tokio::spawn(guard.release_now());
    faults.reached(Op::Release, 1).await;
    crashing.abandon();
    let error = releasing.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::NotHeld { .. }), "{error}");
}
