//! Waits for a notification that are dropped while they end.

use lockcore::{Lock, LockGuard, WaitError, WaitOutcome};
use lockcore_testkit::{Fault, Op};
use tokio::task::JoinHandle;

use super::{MS, SECOND, Scene, within};

/// A wait of one second, then an endless one of another client, and the lock of the other client.
async fn two_waits(
    scene: &Scene,
) -> (
    JoinHandle<Result<(LockGuard, WaitOutcome), WaitError>>,
    Lock,
    JoinHandle<Result<LockGuard, WaitError>>,
) {
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    let condition = scene.locks.lock("a").condition("c");
    let first = tokio::spawn(condition.wait_timeout(guard, SECOND));
    within(SECOND, "the first wait", scene.faults.reached(Op::Release, 1)).await;
    let other = scene.other.lock("a");
    let guard = other.acquire().await.unwrap();
    let second = tokio::spawn(other.condition("c").wait(guard));
    (first, other, second)
}

/// The wait has timed out without a notification, so there is none to pass on.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_while_it_leaves_passes_no_notification_on() {
    for fault in [Fault::DelayReply(SECOND), Fault::Delay(SECOND)] {
        let scene = Scene::new();
        let (late, other, next) = two_waits(&scene).await;
        scene.faults.next(Op::Leave, fault);
        within(2 * SECOND, "its time-out", scene.faults.reached(Op::Leave, 1)).await;
        tokio::time::sleep(10 * MS).await;
        late.abort();
        tokio::time::sleep(60 * SECOND).await;
        assert!(!next.is_finished(), "{fault:?}: nobody has notified it: {:?}", next.await);

        let guard = other.acquire().await.unwrap();
        assert_eq!(other.condition("c").notify_all(&guard).await.unwrap(), 1, "{fault:?}");
        guard.release().await.unwrap();
        within(SECOND, "the next one", next).await.unwrap().unwrap().release().await.unwrap();
        scene.nothing_is_left().await;
    }
}

/// The other side: the notification came while the wait was leaving.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_notified_and_dropped_while_it_leaves_passes_its_notification_on() {
    let scene = Scene::new();
    let (late, other, next) = two_waits(&scene).await;
    scene.faults.next(Op::Leave, Fault::Delay(SECOND));
    within(2 * SECOND, "its time-out", scene.faults.reached(Op::Leave, 1)).await;
    let guard = other.acquire().await.unwrap();
    assert!(other.condition("c").notify_one(&guard).await.unwrap(), "both wait");
    guard.release().await.unwrap();
    tokio::time::sleep(10 * MS).await;
    late.abort();
    let guard = within(10 * SECOND, "the next one", next).await.unwrap().unwrap();
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}
