//! Grants that arrive after the deadline of their lease, and grants of acquisitions that are no
//! longer polled.
//!
//! A late grant is not a hold, so its acquisition has lost nothing: it returns the grant, and asks
//! again for as long as it is willing to wait.

use std::time::Duration;

use lockcore::{Lock, LockError, Owner};
use lockcore_testkit::{Fault, Op, poll_times};

use super::{Acquiring, MS, SECOND, Scene, took, within};

const LEASE: Duration = SECOND;

/// Longer than the lease.
const LATE: Fault = Fault::DelayReply(Duration::from_secs(2));

/// The time limit for a grant whose acquisition is no longer polled: it is returned after about a
/// second, however long the lease is. Other clients are not kept out for longer.
const UNFETCHED: Duration = Duration::from_secs(7);

fn short() -> Scene {
    Scene::with(|builder| builder.lease(LEASE))
}

/// Acquires the lock although the first grant comes too late.
async fn asks_again(scene: Scene, lock: Lock) {
    scene.faults.next(Op::Acquire, LATE);
    let (guard, waited) = took(lock.acquire()).await;
    let guard = guard.expect("nothing was lost: it was never held");
    assert!(guard.is_held());
    assert!(waited < 5 * SECOND, "the second attempt was fast, but this took {waited:?}");
    assert!(scene.faults.calls(Op::Acquire) >= 2, "the late grant is not used");
    assert!(scene.other.lock("a").try_acquire().await.unwrap().is_none(), "it is really held");
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_grant_came_too_late_asks_again() {
    let scene = short();
    let lock = scene.locks.lock("a");
    asks_again(scene, lock).await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_with_a_fixed_lease_whose_grant_came_too_late_asks_again() {
    let scene = Scene::new();
    let lock = scene.locks.lock("a").lease(LEASE);
    asks_again(scene, lock).await;
}

#[tokio::test(start_paused = true)]
async fn a_fair_acquisition_whose_grant_came_too_late_asks_again() {
    let scene = Scene::new();
    let lock = scene.locks.fair_lock("a").lease(LEASE);
    asks_again(scene, lock).await;
}

/// The same after a wait: the place in the queue is gone with the late grant.
#[tokio::test(start_paused = true)]
async fn a_fair_waiter_whose_grant_came_too_late_queues_again() {
    let scene = Scene::new();
    let held = scene.other.fair_lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(scene.locks.fair_lock("a").lease(LEASE).acquire());
    within(SECOND, "the waiter's second request", scene.faults.reached(Op::Acquire, 2)).await;
    scene.faults.next(Op::Acquire, LATE);
    held.release().await.unwrap();
    let guard = within(5 * SECOND, "the waiter", waiter).await.unwrap();
    let guard = guard.expect("nothing was lost: it was never held");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

/// A writer that also reads bypasses the queue of its client.
#[tokio::test(start_paused = true)]
async fn a_reader_within_its_own_write_hold_whose_grant_came_too_late_asks_again() {
    let (scene, owner) = (Scene::new(), Owner::new());
    let rw = scene.locks.rw_lock("a");
    let writing = rw.write().owned_by(&owner).acquire().await.unwrap();
    scene.faults.next(Op::Acquire, LATE);
    let reading = rw.read().owned_by(&owner).lease(LEASE).acquire().await;
    let reading = reading.expect("nothing was lost: it was never held");
    assert!(reading.is_held() && writing.is_held());
    reading.release().await.unwrap();
    writing.release().await.unwrap();
    scene.nothing_is_left().await;
}

/// An attempt is not repeated. Its answer is that the lock was not acquired, or that the backend
/// was too slow.
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_grant_came_too_late_has_lost_nothing() {
    for is_fair in [false, true] {
        let scene = Scene::new();
        let lock = if is_fair { scene.locks.fair_lock("a") } else { scene.locks.lock("a") };
        scene.faults.next(Op::Acquire, LATE);
        let tried = lock.lease(LEASE).try_acquire().await;
        assert!(
            matches!(tried, Ok(None) | Err(LockError::Backend(_))),
            "fair: {is_fair}, it was never held: {tried:?}"
        );
        assert_eq!(scene.faults.calls(Op::Acquire), 1);
        scene.nothing_is_left().await;
    }
}

/// A lease that is shorter than every round trip can never be acquired. The wait ends with its
/// timeout, and does not spin until then.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_always_over_on_arrival_is_waited_for_without_haste() {
    for (lease, round_trip) in [(10 * MS, 20 * MS), (MS, Duration::ZERO)] {
        let scene = Scene::new();
        scene.faults.every(Op::Acquire, Fault::DelayReply(round_trip));
        let acquired = scene.locks.lock("a").lease(lease).acquire_timeout(SECOND);
        let acquired = within(2 * SECOND, "the time-out", acquired).await;
        assert!(
            matches!(acquired, Err(LockError::Timeout { .. } | LockError::Backend(_))),
            "{lease:?}: {acquired:?}"
        );
        let calls = scene.faults.calls(Op::Acquire);
        assert!(calls <= 50, "{lease:?}: {calls} requests in a second");
        scene.nothing_is_left().await;
    }
}

/// Without a timeout it fails after `retry_for`, as if the backend did not answer.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_always_over_on_arrival_is_not_waited_for_for_ever() {
    for is_fair in [false, true] {
        let scene = Scene::with(|builder| builder.retry_for(3 * SECOND));
        let lock = if is_fair { scene.locks.fair_lock("a") } else { scene.locks.lock("a") };
        scene.faults.every(Op::Acquire, Fault::DelayReply(20 * MS));
        let acquired = lock.lease(10 * MS).acquire();
        let acquired = within(6 * SECOND, "the failure", acquired).await;
        assert!(matches!(acquired, Err(LockError::Backend(_))), "fair: {is_fair}, {acquired:?}");
        scene.nothing_is_left().await;
    }
}

/// Polls `acquiring` until its next request is sent, and then stops.
async fn is_polled_until_it_asks(scene: &Scene, acquiring: &mut Acquiring) {
    let asked = scene.faults.calls(Op::Acquire);
    let asks = async {
        tokio::select! {
            biased;
            acquired = acquiring.as_mut() => panic!("the reply is on its way: {acquired:?}"),
            () = scene.faults.reached(Op::Acquire, asked + 1) => {}
        }
    };
    within(SECOND, "its request", asks).await;
}

/// Asserts that another client gets the lock soon after it was granted to an acquisition that is no
/// longer polled, and that this acquisition gets its turn once it is polled again.
async fn keeps_nobody_out_for_long(scene: &Scene, lock: Lock, others: Lock) {
    scene.faults.next(Op::Acquire, Fault::DelayReply(10 * MS));
    let mut left_alone: Acquiring = Box::pin(lock.acquire());
    is_polled_until_it_asks(scene, &mut left_alone).await;
    let next = others.acquire_timeout(10 * SECOND);
    let (next, waited) = took(next).await;
    let next = next.expect("an acquisition that nobody polls keeps others out");
    assert!(waited <= UNFETCHED, "it was kept out for {waited:?}");
    assert!(poll_times(1, left_alone.as_mut()).await.is_none(), "both are inside");
    next.release().await.unwrap();
    let guard = within(SECOND, "its own turn", left_alone).await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_polled_once_keeps_other_clients_out_for_some_seconds_at_most() {
    let scene = Scene::new();
    let others = scene.other.lock("a");
    keeps_nobody_out_for_long(&scene, scene.locks.lock("a"), others).await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_polled_once_keeps_others_out_however_long_its_fixed_lease() {
    let scene = Scene::new();
    let others = scene.other.lock("a");
    keeps_nobody_out_for_long(&scene, scene.locks.lock("a").lease(3600 * SECOND), others).await;
}

#[tokio::test(start_paused = true)]
async fn a_fair_acquisition_that_is_polled_once_keeps_others_out_for_some_seconds_at_most() {
    let scene = Scene::new();
    let others = scene.other.fair_lock("a");
    keeps_nobody_out_for_long(&scene, scene.locks.fair_lock("a"), others).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_is_polled_once_keeps_readers_out_for_some_seconds_at_most() {
    let scene = Scene::new();
    let others = scene.other.rw_lock("a").read();
    keeps_nobody_out_for_long(&scene, scene.locks.rw_lock("a").write(), others).await;
}

/// The same bound holds for a waiter that is granted the lock while it is not polled.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_left_alone_while_it_asks_keeps_others_out_for_some_seconds_at_most() {
    let scene = Scene::new();
    let held = scene.other.lock("a").acquire().await.unwrap();
    let mut waiter: Acquiring = Box::pin(scene.locks.lock("a").acquire());
    let waits = tokio::time::timeout(SECOND, waiter.as_mut()).await;
    assert!(waits.is_err(), "it is held");
    scene.faults.next(Op::Acquire, Fault::DelayReply(10 * MS));
    held.release().await.unwrap();
    is_polled_until_it_asks(&scene, &mut waiter).await;
    let (next, waited) = took(scene.other.lock("a").acquire_timeout(10 * SECOND)).await;
    next.expect("a waiter that nobody polls keeps others out").release().await.unwrap();
    assert!(waited <= UNFETCHED, "it was kept out for {waited:?}");
    let guard = within(SECOND, "its own turn", waiter).await.unwrap();
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}
