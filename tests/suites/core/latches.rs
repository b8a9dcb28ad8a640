//! Waits for a latch that receive no wake-up, and waits that share a request.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lockcore::{BackendErrorKind, CountDownLatch, LockError, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Op};
use tokio::task::JoinSet;

use super::{SECOND, SLACK, Scene, within};
use crate::hooked::{Hooked, Hooks};

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

/// A scene with a closed latch, and waiters for it in one client that have looked and subscribed.
async fn waiters(number: usize) -> (Scene, CountDownLatch, JoinSet<()>) {
    let (scene, mut waiters) = (Scene::new(), JoinSet::new());
    let latch = scene.locks.latch("a");
    scene.other.latch("a").set_count(1).await.unwrap();
    for _ in 0..number {
        let latch = latch.clone();
        waiters.spawn(async move { latch.wait().await.unwrap() });
    }
    within(SECOND, "the subscriptions", scene.faults.reached(Op::Subscribe, number)).await;
    tokio::time::sleep(SECOND).await;
    (scene, latch, waiters)
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_woken_together_share_a_look() {
    let (scene, _, waiters) = waiters(200).await;
    let looks = scene.faults.calls(Op::Count);
    scene.other.latch("a").count_down().await.unwrap();
    within(SECOND, "200 waiters", waiters.join_all()).await;
    assert_eq!(scene.faults.calls(Op::Count) - looks, 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_that_hear_nothing_share_a_look() {
    let (scene, _, waiters) = waiters(200).await;
    let looks = scene.faults.calls(Op::Count);
    tokio::time::sleep(6 * LOOKS_AGAIN).await;
    assert_eq!(scene.faults.calls(Op::Count) - looks, 6);
    drop(waiters);
}

/// A request that was sent before the latch opened may return the old count.
#[tokio::test(start_paused = true)]
async fn a_look_that_was_sent_is_not_shared() {
    let (scene, latch, mut first) = waiters(1).await;
    scene.faults.next(Op::Count, Fault::DelayReply(4 * SECOND));
    let looks = scene.faults.calls(Op::Count);
    tokio::time::sleep(LOOKS_AGAIN - SECOND / 2).await;
    assert_eq!(scene.faults.calls(Op::Count), looks + 1);
    let second = tokio::spawn(async move { latch.wait().await });
    within(SECOND, "the other's look", scene.faults.reached(Op::Count, looks + 3)).await;
    scene.other.latch("a").count_down().await.unwrap();
    within(SECOND, "the other waiter", second).await.unwrap().unwrap();
    assert!(first.try_join_next().is_none(), "its answer is late");
    within(5 * SECOND, "the first waiter", first.join_all()).await;
}

/// It is given up when nobody waits for it any more, however many have.
#[tokio::test(start_paused = true)]
async fn a_look_without_an_answer_ends_with_its_waiters() {
    const WAITERS: usize = 200;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (scene, _, waiters) = waiters(WAITERS).await;
    let before = tasks();
    scene.faults.next(Op::Count, Fault::DelayReply(3_600 * SECOND));
    tokio::time::sleep(LOOKS_AGAIN - SECOND / 2).await;
    assert_eq!(tasks(), before + 1, "they share a look");
    drop(waiters);
    tokio::time::sleep(SECOND).await;
    assert_eq!(tasks(), before - WAITERS);
}

#[derive(Debug, Default)]
struct Panics {
    looks: AtomicUsize,
    looks_that_do_not: usize,
}

impl Hooks for Panics {
    fn look_at_latch(&self) {
        let looks = self.looks.fetch_add(1, Ordering::SeqCst);
        assert!(looks < self.looks_that_do_not, "the backend panics on purpose");
    }
}

/// A panic of the backend is an error for all waiters that share the request, at the same time.
#[tokio::test(start_paused = true)]
async fn a_look_that_panics_fails_for_all_at_once() {
    let (store, mut waiters) = (MemoryBackend::new(), JoinSet::new());
    // Each waiter looks before it subscribes, and all together after that.
    let panics = Panics { looks_that_do_not: 20 + 1, ..Panics::default() };
    let locks = Locks::new(Hooked::new(store.clone(), Arc::new(panics)));
    let other = Locks::new(store).latch("a");
    other.set_count(1).await.unwrap();
    for _ in 0..20 {
        let latch = locks.latch("a");
        waiters.spawn(async move { latch.wait().await });
    }
    tokio::time::sleep(SECOND).await;
    other.count_down().await.unwrap();
    for waited in within(SECOND, "20 waiters", waiters.join_all()).await {
        let error = waited.unwrap_err();
        let LockError::Backend(cause) = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), BackendErrorKind::Other, "{error}");
        assert!(error.to_string().contains("the backend panicked"), "{error}");
    }
}

/// As in a `select!` whose handler takes its time.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_or_no_longer_polled_holds_up_nobody() {
    for is_dropped in [false, true] {
        for polls in 0..12 {
            let (scene, latch, others) = waiters(3).await;
            let mut idle = Box::pin(latch.wait());
            for _ in 0..polls {
                let polled = poll_fn(|context| Poll::Ready(idle.as_mut().poll(context))).await;
                assert!(polled.is_pending(), "the latch is closed");
            }
            let idle = (!is_dropped).then_some(idle);
            scene.other.latch("a").count_down().await.unwrap();
            within(SECOND, "the other waiters", others.join_all()).await;
            if let Some(idle) = idle {
                within(SECOND, "the idle waiter", idle).await.unwrap();
            }
            scene.nothing_is_left().await;
        }
    }
}
