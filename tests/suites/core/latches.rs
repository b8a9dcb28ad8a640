//! Waits for a latch that receive no wake-up.

use std::time::Duration;

use lockcore::BackendErrorKind;
use lockcore_testkit::{Fault, Op};

use super::{SECOND, SLACK, Scene, within};

/// The time after which a waiter without wake-ups checks again, as for a lock.
const LOOKS_AGAIN: Duration = Duration::from_secs(10);

/// The message is lost, but the connection is not.
#[tokio::test(start_paused = true)]
async fn a_latch_waiter_looks_again_when_it_hears_nothing() {
    let scene = Scene::new();
    scene.other.latch("a").set_count(1).await.unwrap();
    scene.faults.every(Op::Woken, Fault::LostReply);
    let latch = scene.locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait().await });
    within(SECOND, "its look after it has subscribed", scene.faults.reached(Op::Count, 2)).await;
    scene.other.latch("a").count_down().await.unwrap();
    within(LOOKS_AGAIN + SLACK, "the end of the wait", waiter).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_latch_waiter_with_a_time_out_looks_again_when_it_hears_nothing() {
    let scene = Scene::new();
    scene.other.latch("a").set_count(1).await.unwrap();
    scene.faults.every(Op::Woken, Fault::LostReply);
    let latch = scene.locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait_timeout(60 * SECOND).await });
    within(SECOND, "its look after it has subscribed", scene.faults.reached(Op::Count, 2)).await;
    scene.other.latch("a").count_down().await.unwrap();
    within(LOOKS_AGAIN + SLACK, "the end of the wait", waiter).await.unwrap().unwrap();
}

/// As for a lock: the backend answers all requests, and only subscribing fails.
#[tokio::test(start_paused = true)]
async fn a_latch_waiter_that_cannot_listen_goes_on_looking() {
    let scene = Scene::new();
    scene.other.latch("a").set_count(1).await.unwrap();
    scene.faults.every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    let latch = scene.locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait().await });
    tokio::time::sleep(60 * SECOND).await;
    assert!(
        !waiter.is_finished(),
        "the backend answers, but the wait has failed: {:?}",
        waiter.await
    );
    let looks = scene.faults.calls(Op::Count);
    assert!(looks < 150, "{looks} looks in a minute");
    scene.other.latch("a").count_down().await.unwrap();
    within(LOOKS_AGAIN + SLACK, "the end of the wait", waiter).await.unwrap().unwrap();
}
