//! Places in the queue of a fair lock, and of waiting writers: they are gone when a wait is over,
//! and the client knows which of its requests are still pending.

use std::time::Duration;

use lockcore::LockError;
use lockcore_testkit::{Fault, Op};

use super::{MS, SECOND, Scene, within};

/// The time that a release takes to arrive.
const ON_ITS_WAY: Fault = Fault::Delay(Duration::from_millis(50));

// ---- a guard that was dropped

/// As `try_acquire` promises, a dropped guard does not block the next attempt.
#[tokio::test(start_paused = true)]
async fn a_fair_lock_can_be_tried_again_right_after_its_guard_was_dropped() {
    let scene = Scene::new();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    let lock = scene.locks.fair_lock("a");
    drop(lock.acquire().await.unwrap());
    let again = lock.try_acquire().await.unwrap();
    drop(again.expect("it was refused by its own hold, which was dropped before"));
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_fair_lock_can_be_tried_right_after_a_guard_of_the_lock_was_dropped() {
    let scene = Scene::new();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    drop(scene.locks.lock("a").acquire().await.unwrap());
    let again = scene.locks.fair_lock("a").try_acquire().await.unwrap();
    drop(again.expect("it was refused by its own hold, which was dropped before"));
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_can_be_tried_right_after_a_fair_guard_was_dropped() {
    let scene = Scene::new();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    drop(scene.locks.fair_lock("a").acquire().await.unwrap());
    let again = scene.locks.lock("a").try_acquire().await.unwrap();
    drop(again.expect("it was refused by its own hold, which was dropped before"));
    scene.nothing_is_left().await;
}

// ---- a wait that is over

/// The client gives up the place of a dropped waiter, and an attempt waits for that.
#[tokio::test(start_paused = true)]
async fn a_fair_lock_can_be_tried_right_after_a_waiter_of_its_client_was_dropped() {
    let scene = Scene::new();
    let held = scene.other.fair_lock("a").acquire().await.unwrap();
    let mut waiter = Box::pin(scene.locks.fair_lock("a").acquire());
    assert!(tokio::time::timeout(SECOND, waiter.as_mut()).await.is_err(), "it is held");
    scene.faults.every(Op::Release, ON_ITS_WAY);
    drop(waiter);
    held.release().await.unwrap();
    let tried = scene.locks.fair_lock("a").try_acquire().await.unwrap();
    drop(tried.expect("it was refused because of a waiter that was dropped before"));
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_fair_waiter_that_was_told_the_time_is_up_keeps_no_place() {
    let scene = Scene::new();
    let held = scene.other.fair_lock("a").acquire().await.unwrap();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    let late = scene.locks.fair_lock("a").acquire_timeout(SECOND).await;
    assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
    held.release().await.unwrap();
    let next = scene.other.fair_lock("a").try_acquire().await.unwrap();
    drop(next.expect("it was refused because of a waiter that had given up before"));
    scene.nothing_is_left().await;
}

/// A waiting writer blocks new readers.
#[tokio::test(start_paused = true)]
async fn a_writer_that_was_told_the_time_is_up_keeps_no_reader_out() {
    let scene = Scene::new();
    let reading = scene.other.rw_lock("a").read().acquire().await.unwrap();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    let late = scene.locks.rw_lock("a").write().acquire_timeout(SECOND).await;
    assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
    let next = scene.other.rw_lock("a").read().try_acquire().await.unwrap();
    drop(next.expect("it was kept out by a writer that had given up before"));
    drop(reading);
    scene.nothing_is_left().await;
}

/// A request that is pending at the timeout is undone before the answer as well.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_told_the_time_is_up_has_undone_its_last_request() {
    for is_fair in [false, true] {
        let scene = Scene::new();
        let lock = if is_fair { scene.locks.fair_lock("a") } else { scene.locks.lock("a") };
        scene.faults.next(Op::Acquire, Fault::DelayReply(2 * SECOND));
        let late = lock.acquire_timeout(SECOND).await;
        assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
        let next = scene.other.lock("a").try_acquire().await.unwrap();
        drop(next.expect("it was refused because of a request that had been given up before"));
        scene.nothing_is_left().await;
    }
}

/// Leaving before answering must not delay the answer forever when the backend is silent.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_time_is_up_is_told_so_although_it_cannot_leave() {
    let scene = Scene::new();
    let held = scene.other.fair_lock("a").acquire().await.unwrap();
    scene.faults.every(Op::Release, Fault::NeverAnswer);
    let late = scene.locks.fair_lock("a").acquire_timeout(SECOND);
    // The core waits 5 s for an answer.
    let late = within(SECOND + 5 * SECOND + 100 * MS, "the time-out", late).await;
    assert!(matches!(late, Err(LockError::Timeout { .. } | LockError::Backend(_))), "{late:?}");
    scene.faults.heal();
    drop(held);
}
