//! A waiter listens all the time, even while it subscribes or pauses, and lets other tasks run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, Lock, LockError, LockGuard, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Op};

use super::{MS, SECOND, SLACK, Scene, begun, on_a_thread, took, within};
use crate::hooked::{Hooked, Hooks};

/// A scene without local hand-over: every waiter has to ask the backend.
fn scene() -> Scene {
    Scene::with(|builder| builder.hand_over(Duration::ZERO))
}

/// Releases `held` once its client has tried to subscribe a number of times for another acquisition
/// of `lock`, which must learn of the release within `limit`.
async fn hears_of_a_release(
    scene: &Scene,
    lock: Lock,
    held: LockGuard,
    (subscriptions, limit): (usize, Duration),
) {
    let waiter = tokio::spawn(lock.acquire());
    let subscribed = scene.faults.reached(Op::Subscribe, subscriptions);
    within(limit, "its subscriptions", subscribed).await;
    held.release().await.unwrap();
    let (guard, waited) = took(waiter).await;
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(waited < SLACK, "it heard of the release after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_subscribes_hears_a_release_of_its_own_client() {
    let scene = scene();
    let held = scene.locks.lock("a").acquire().await.unwrap();
    scene.faults.next(Op::Subscribe, Fault::NeverAnswer);
    hears_of_a_release(&scene, scene.locks.lock("a"), held, (1, SECOND)).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_permits_that_subscribes_hears_a_release_of_its_own_client() {
    let scene = scene();
    let semaphore = scene.locks.semaphore("a", 1);
    let held = semaphore.acquire().await.unwrap();
    scene.faults.next(Op::Subscribe, Fault::NeverAnswer);
    hears_of_a_release(&scene, semaphore.permits(1), held, (1, SECOND)).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_pauses_after_failed_subscriptions_hears_a_release_of_its_own_client() {
    let scene = scene();
    let held = scene.locks.lock("a").acquire().await.unwrap();
    scene.faults.every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    // By the tenth subscription a pause takes half a second or more.
    hears_of_a_release(&scene, scene.locks.lock("a"), held, (10, 60 * SECOND)).await;
}

/// A hold whose lease was extended is not handed over, so the waiters behind it have to listen.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_hold_that_was_extended_hears_of_a_forced_release() {
    let scene = Scene::new();
    let first = scene.locks.lock("a").acquire().await.unwrap();
    let second = begun(scene.locks.lock("a")).await;
    let third = begun(scene.locks.lock("a")).await;
    first.release().await.unwrap();
    // The grant covers the waiter behind it, which does not subscribe for now.
    let second = second.await.unwrap();
    let third = tokio::spawn(third);
    tokio::time::sleep(MS).await;
    second.extend(60 * SECOND).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert!(scene.other.lock("a").force_release().await.unwrap());
    let (third, waited) = took(third).await;
    drop(third.unwrap().unwrap());
    assert!(waited < SLACK, "it heard of the release after {waited:?}");
}

/// The waiters of `lock` and of `fair_lock` queue separately, but share their owners.
#[tokio::test(start_paused = true)]
async fn a_waiter_enters_as_soon_as_its_owner_is_in_by_a_lock_of_the_other_kind() {
    for is_fair in [true, false] {
        let (scene, owner) = (scene(), Owner::new());
        let (lock, fair) = (scene.locks.lock("a"), scene.locks.fair_lock("a"));
        let (first, second) = if is_fair { (lock, fair) } else { (fair, lock) };
        // Granted at once, but with a late reply: the second request is refused, and waits.
        scene.faults.next(Op::Acquire, Fault::DelayReply(500 * MS));
        let first = tokio::spawn(first.owned_by(&owner).acquire());
        within(SECOND, "the first request", scene.faults.reached(Op::Acquire, 1)).await;
        let second = tokio::spawn(second.owned_by(&owner).acquire());
        let first = within(SECOND, "the first reply", first).await.unwrap().unwrap();
        let (second, waited) = took(second).await;
        let second = second.unwrap().unwrap();
        assert!(waited < SLACK, "fair: {is_fair}, it entered after {waited:?}");
        assert_eq!((second.token(), second.hold_count()), (first.token(), 2), "fair: {is_fair}");
        first.release().await.unwrap();
        second.release().await.unwrap();
    }
}

/// Wake-ups that are always ready, until the test is over.
#[derive(Debug, Default)]
struct Restless {
    rests: AtomicBool,
}

impl Hooks for Restless {
    fn is_restless(&self) -> bool {
        !self.rests.load(Ordering::SeqCst)
    }
}

/// Runs `wait`, which has a timeout, beside another task. Neither may starve.
fn runs_out_of_time<T, F>(wait: impl FnOnce(Locks, Locks) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let restless = Arc::new(Restless::default());
    /// Stops the wake-ups, so that a failed test does not occupy a processor for the rest of the
    /// run.
    struct Ends(Arc<Restless>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.rests.store(true, Ordering::SeqCst);
        }
    }
    let _ends = Ends(restless.clone());
    on_a_thread("the time-out", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let store = MemoryBackend::new();
        let locks = Locks::new(Hooked::new(store.clone(), restless));
        let (result, turns) = runtime.block_on(async {
            let beside = tokio::spawn(async {
                let mut turns = 0_u32;
                while turns < 20 {
                    tokio::time::sleep(MS).await;
                    turns += 1;
                }
                turns
            });
            let result = wait(locks, Locks::new(store)).await;
            (result, beside.await.unwrap())
        });
        assert_eq!(turns, 20, "the task beside it had its turns");
        result
    })
}

#[test]
fn the_time_out_of_a_waiter_fires_although_its_wake_ups_are_always_ready() {
    let result = runs_out_of_time(|locks, other| async move {
        let _held = other.lock("a").acquire().await.unwrap();
        locks.lock("a").acquire_timeout(200 * MS).await
    });
    assert!(matches!(result, Err(LockError::Timeout { .. })), "{result:?}");
}

#[test]
fn the_time_out_of_a_latch_waiter_fires_although_its_wake_ups_are_always_ready() {
    let result = runs_out_of_time(|locks, other| async move {
        other.latch("a").set_count(1).await.unwrap();
        locks.latch("a").wait_timeout(200 * MS).await
    });
    assert!(result.is_err(), "{result:?}");
}

#[test]
fn the_time_out_of_a_condition_fires_although_its_wake_ups_are_always_ready() {
    let is_held = runs_out_of_time(|locks, _| async move {
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        lock.condition("c")
            .wait_timeout(guard, 200 * MS)
            .await
            .is_ok_and(|(guard, _)| guard.is_held())
    });
    assert!(is_held, "the lock is held again after the time-out");
}
