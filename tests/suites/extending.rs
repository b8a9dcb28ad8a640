//! `LockGuard::extend`.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError, Locks, LossReason, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::time::Instant;

use crate::clients::{SECOND, assert_all_free, two_clients};

fn faulty() -> (MemoryBackend, Locks, Faults) {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    (store, Locks::new(backend), faults)
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_extended_and_ends_when_it_was_extended_to() {
    let (store, one, other) = two_clients();
    let handles = |locks: &Locks| {
        [
            locks.lock("lock"),
            locks.fair_lock("fair"),
            locks.rw_lock("shared").read(),
            locks.rw_lock("alone").write(),
            locks.semaphore("leased", 2).permits(2),
            locks.plain_semaphore("plain", 2).permits(2),
        ]
    };
    for (lock, next) in handles(&one).into_iter().zip(handles(&other)) {
        let guard = lock.lease(10 * SECOND).acquire().await.unwrap();
        let name = guard.name().to_owned();
        tokio::time::sleep(5 * SECOND).await;
        let extended = Instant::now();
        guard.extend(20 * SECOND).await.unwrap();
        assert!(guard.remaining() > 19 * SECOND && guard.remaining() < 20 * SECOND, "{name}");
        if name != "shared" {
            drop(next.acquire().await.unwrap());
            assert!(extended.elapsed() >= 20 * SECOND, "{name}: after {:?}", extended.elapsed());
        }
        assert_eq!(guard.lost().await, LossReason::LeaseEnded, "{name}");
        assert!(extended.elapsed() > 19 * SECOND, "{name}: after {:?}", extended.elapsed());
        drop(guard);
    }
    tokio::time::sleep(100_000 * SECOND).await;
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_never_shortened() {
    let (store, locks, faults) = faulty();
    let guard = locks.lock("a").lease(60 * SECOND).acquire().await.unwrap();
    for lease in [SECOND, Duration::from_millis(1), 30 * SECOND] {
        guard.extend(lease).await.unwrap();
        assert!(guard.remaining() > 59 * SECOND, "{lease:?}");
    }
    assert_eq!(faults.calls(Op::Renew), 3);
    tokio::time::sleep(59 * SECOND).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewed_hold_keeps_what_it_was_extended_to_when_it_is_renewed() {
    let (store, locks, faults) = faulty();
    let guard = locks.lock("a").acquire().await.unwrap();
    guard.extend(1000 * SECOND).await.unwrap();
    assert!(guard.remaining() > 980 * SECOND);
    // Without answers from now on, the hold lasts as long as the last extension said.
    tokio::time::sleep(100 * SECOND).await;
    assert!(faults.calls(Op::Renew) > 5, "it is renewed all the same");
    faults.every(Op::Renew, Fault::NeverAnswer);
    tokio::time::sleep(850 * SECOND).await;
    assert!(guard.is_held());
    faults.heal();
    tokio::time::sleep(1000 * SECOND).await;
    assert!(guard.is_held() && guard.remaining() < 31 * SECOND, "the promise is over");
    guard.release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_or_given_back_is_not_extended() {
    let (_, one, other) = two_clients();
    let lost = |result: Result<(), LockError>, expected: LossReason| {
        let error = result.unwrap_err();
        assert!(matches!(&error, LockError::Lost { reason, .. } if *reason == expected), "{error}");
    };
    let guard = one.lock("a").lease(SECOND).acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    lost(guard.extend(SECOND).await, LossReason::LeaseEnded);

    let guard = one.lock("b").lease(10 * SECOND).acquire().await.unwrap();
    assert!(other.lock("b").force_release().await.unwrap());
    lost(guard.extend(SECOND).await, LossReason::Gone);
    assert!(!guard.is_held());
    lost(guard.extend(SECOND).await, LossReason::Gone);

    let next = other.lock("b").acquire().await.unwrap();
    lost(guard.extend(SECOND).await, LossReason::Gone);
    assert!(next.is_held());

    let guard = one.lock("c").acquire().await.unwrap();
    one.close().await.unwrap();
    let error = guard.extend(SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::NotHeld { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_out_of_range_is_refused_without_a_call() {
    let (_, locks, faults) = faulty();
    let guard = locks.lock("a").acquire().await.unwrap();
    for lease in [Duration::ZERO, Duration::from_secs(366 * 24 * 60 * 60), Duration::MAX] {
        let error = guard.extend(lease).await.unwrap_err();
        assert!(
            matches!(error, LockError::InvalidOption { option: "extend", .. }),
            "{lease:?}: {error}"
        );
    }
    assert_eq!(faults.calls(Op::Renew), 0);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_fails_says_so_and_the_hold_is_as_it_was() {
    let (store, locks, faults) = faulty();
    let guard = locks.lock("a").lease(10 * SECOND).acquire().await.unwrap();
    for fault in [
        Fault::Refuse(BackendErrorKind::OutOfMemory),
        Fault::LostRequest,
        Fault::LostReply,
        Fault::NeverAnswer,
    ] {
        faults.next(Op::Renew, fault);
        let error = guard.extend(100 * SECOND).await.unwrap_err();
        assert!(matches!(error, LockError::Backend(_)), "{fault:?}: {error}");
        assert!(error.to_string().contains("`a`"), "{fault:?}: {error}");
        assert!(guard.is_held() && guard.remaining() < 10 * SECOND, "{fault:?}");
    }
    guard.extend(100 * SECOND).await.unwrap();
    tokio::time::sleep(90 * SECOND).await;
    guard.release().await.unwrap();
    assert_all_free(&store).await;
}

/// A pending request for a longer lease must not affect the task that gets the lock next.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_extension_was_dropped_is_given_back_and_not_handed_on() {
    for polls in 1..8 {
        let (store, locks, faults) = faulty();
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        let next = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        tokio::task::yield_now().await;
        faults.next(Op::Renew, Fault::Straggles(Duration::from_millis(20)));
        drop(poll_times(polls, guard.extend(1000 * SECOND)).await);
        let owner = guard.wire_owner().to_owned();
        drop(guard);
        let next = next.await.unwrap();
        if faults.calls(Op::Renew) > 0 {
            assert_ne!(next.wire_owner(), owner, "{polls} polls: it has a hold of its own");
        }
        tokio::time::sleep(SECOND).await;
        next.release().await.unwrap();
        assert!(!lock.state().await.unwrap().is_held(), "{polls} polls");
        assert_all_free(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_guard_of_a_hold_extends_it_for_all() {
    let (_, locks, _) = faulty();
    let owner = Owner::new();
    let lock = locks.lock("a").owned_by(&owner).lease(10 * SECOND);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    inner.extend(100 * SECOND).await.unwrap();
    inner.release().await.unwrap();
    tokio::time::sleep(90 * SECOND).await;
    outer.release().await.unwrap();
}
