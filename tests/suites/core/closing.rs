//! `Locks::close` waits for pending releases, and for nothing else.

use std::{
    io,
    pin::pin,
    sync::{Mutex, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use lockcore::{LockError, Locks, LossReason};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};

use super::{Acquiring, LONG, MS, SECOND, SLACK, Scene, clock, paused_runtime, took, within};

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_a_renewal_that_hangs() {
    let scene = Scene::new();
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    scene.faults.every(Op::Renew, Fault::NeverAnswer);
    within(11 * SECOND, "a renewal", scene.faults.reached(Op::Renew, 1)).await;
    let (closed, waited) = took(scene.locks.close()).await;
    closed.expect("there was one hold, and its release was confirmed");
    assert!(waited < SLACK, "closed after {waited:?}");
    assert_eq!(scene.store.names_in_use(), 0);
    drop(guard);
}

/// A hanging renewal does not keep `close` from waiting for real releases.
#[tokio::test(start_paused = true)]
async fn close_beside_a_renewal_that_hangs_waits_for_the_guards_that_were_dropped() {
    let scene = Scene::new();
    let (stays, goes) = (scene.locks.lock("a"), scene.locks.lock("b"));
    let (stays, goes) = (stays.acquire().await.unwrap(), goes.acquire().await.unwrap());
    scene.faults.every(Op::Renew, Fault::NeverAnswer);
    within(11 * SECOND, "a renewal", scene.faults.reached(Op::Renew, 1)).await;
    scene.faults.every(Op::Release, Fault::Delay(500 * MS));
    drop(goes);
    let (closed, waited) = took(scene.locks.close()).await;
    closed.expect("both releases were confirmed");
    assert_eq!(scene.store.names_in_use(), 0, "a release was not waited for");
    assert!(waited <= 500 * MS + SLACK, "closed after {waited:?}");
    drop(stays);
}

#[tokio::test(start_paused = true)]
async fn two_closes_at_once_do_not_wait_for_each_other() {
    let scene = Scene::new();
    scene.faults.next(Op::Acquire, Fault::NeverAnswer);
    let cut_off = tokio::spawn(scene.locks.lock("a").acquire());
    within(SECOND, "its request", scene.faults.reached(Op::Acquire, 1)).await;
    let (one, other) = (scene.locks.clone(), scene.locks.clone());
    let ((one, other), waited) = took(async { tokio::join!(one.close(), other.close()) }).await;
    one.unwrap();
    other.unwrap();
    assert!(waited < SLACK, "one of them returned after {waited:?}");
    assert!(cut_off.await.unwrap().is_err());
}

/// A second `close` makes the same promise as the first one.
#[tokio::test(start_paused = true)]
async fn the_second_of_two_closes_waits_for_the_releases_of_the_first() {
    for is_dropped in [false, true] {
        let scene = Scene::new();
        scene.faults.every(Op::Release, Fault::Delay(500 * MS));
        let guard = scene.locks.lock("a").acquire().await.unwrap();
        let kept = if is_dropped {
            drop(guard);
            None
        } else {
            Some(guard)
        };
        let first = scene.locks.clone();
        let first = tokio::spawn(async move { first.close().await });
        within(SECOND, "the release", scene.faults.reached(Op::Release, 1)).await;
        scene.locks.close().await.unwrap();
        assert_eq!(scene.store.names_in_use(), 0, "dropped: {is_dropped}, it is not released yet");
        within(SECOND, "the first close", first).await.unwrap().unwrap();
        drop(kept);
    }
}

/// A watcher of a guard learns that the client was closed, even if the guard is gone by the time of
/// its first poll.
#[tokio::test(start_paused = true)]
async fn lost_of_a_guard_that_is_dropped_after_close_resolves() {
    let scene = Scene::new();
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    let (lost, ended) = (guard.lost(), guard.ended());
    scene.locks.close().await.unwrap();
    drop(guard);
    assert_eq!(within(SECOND, "`lost()`", lost).await, LossReason::Closed);
    let ended = within(SECOND, "`ended()`", ended).await.expect("it was no normal end");
    assert_eq!(ended, LossReason::Closed);
}

/// The hold is lost only by the clock of the client: the backend still has it.
#[tokio::test(start_paused = true)]
async fn close_releases_what_only_our_own_clock_calls_lost() {
    let (store, (clock, asleep)) = (MemoryBackend::new(), clock());
    let locks = Locks::builder(store.clone()).clock(clock).build().unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    asleep.store(3600, Ordering::SeqCst);
    assert!(!guard.is_held() && store.names_in_use() == 1);
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "it is left to its lease");
    drop(guard);
}

/// The future is no longer polled, so it cannot undo its request itself.
#[tokio::test(start_paused = true)]
async fn close_undoes_the_request_of_an_acquisition_that_nobody_polls() {
    let scene = Scene::new();
    scene.faults.next(Op::Acquire, Fault::DelayReply(10 * MS));
    let mut left_alone: Acquiring = Box::pin(scene.locks.lock("a").acquire());
    assert!(poll_times(1, left_alone.as_mut()).await.is_none(), "the reply is on its way");
    within(SECOND, "its request", scene.faults.reached(Op::Acquire, 1)).await;
    within(2 * SECOND, "close", scene.locks.close()).await.unwrap();
    let (next, waited) = took(scene.other.lock("a").acquire_timeout(10 * SECOND)).await;
    let next = next.expect("the hold of a closed client keeps others out");
    assert!(waited < SECOND, "it was kept out for {waited:?}");
    assert!(left_alone.await.is_err(), "both are inside");
    drop(next);
}

/// A cancelled fair waiter has a place in the queue of the backend, which would keep others out
/// until it lapses.
#[tokio::test(start_paused = true)]
async fn close_waits_until_the_waiters_that_it_cuts_off_have_left_the_queue_of_the_backend() {
    let scene = Scene::new();
    let held = scene.other.fair_lock("a").acquire().await.unwrap();
    let cut_off = tokio::spawn(scene.locks.fair_lock("a").acquire());
    within(SECOND, "its subscription", scene.faults.reached(Op::Subscribe, 1)).await;
    scene.faults.every(Op::Release, Fault::Delay(20 * MS));
    scene.locks.close().await.unwrap();
    held.release().await.unwrap();
    let next = scene.other.fair_lock("a").try_acquire().await.unwrap();
    drop(next.expect("the place of a closed client keeps others out"));
    let cut_off = within(SECOND, "the waiter", cut_off).await.unwrap();
    assert!(matches!(cut_off, Err(LockError::Closed { .. })), "{cut_off:?}");
    scene.nothing_is_left().await;
}

/// The place is left in the background, as after any other end of a wait.
#[tokio::test(start_paused = true)]
async fn a_time_out_that_is_leaving_ends_when_its_client_is_closed() {
    let scene = Scene::new();
    let _held = scene.other.fair_lock("a").acquire().await.unwrap();
    scene.faults.next(Op::Release, Fault::NeverReply);
    let leaving = tokio::spawn(scene.locks.fair_lock("a").acquire_timeout(50 * MS));
    within(SECOND, "its release", scene.faults.reached(Op::Release, 1)).await;
    let (closed, waited) = took(scene.locks.close()).await;
    closed.expect("the second attempt was confirmed");
    assert!(waited < SLACK, "closed after {waited:?}");
    let (timed_out, waited) = took(leaving).await;
    let timed_out = timed_out.unwrap();
    assert!(matches!(timed_out, Err(LockError::Timeout { .. })), "{timed_out:?}");
    assert!(waited < SLACK, "it went on for {waited:?} after its client was closed");
}

/// The same for the locks that a multi-lock returns because it did not get all.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_gives_back_ends_when_its_client_is_closed() {
    let scene = Scene::new();
    let _held = scene.other.lock("b").acquire().await.unwrap();
    scene.faults.next(Op::Release, Fault::NeverReply);
    let tried = tokio::spawn(scene.locks.multi_lock(["a", "b"]).try_acquire());
    within(SECOND, "its release", scene.faults.reached(Op::Release, 1)).await;
    let (closed, waited) = took(scene.locks.close()).await;
    closed.expect("the second attempt was confirmed");
    assert!(waited < SLACK, "closed after {waited:?}");
    let (tried, waited) = took(tried).await;
    assert!(tried.unwrap().unwrap().is_none(), "one of them is held");
    assert!(waited < SLACK, "it went on for {waited:?} after its client was closed");
}

/// After `close`, a program that has shut down everything else may end the runtime, together with
/// the task that releases.
#[tokio::test(start_paused = true)]
async fn close_waits_for_a_release_that_a_task_awaits() {
    let scene = Scene::new();
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    scene.faults.every(Op::Release, Fault::Delay(500 * MS));
    let released = tokio::spawn(guard.release());
    within(SECOND, "the release", scene.faults.reached(Op::Release, 1)).await;
    scene.locks.close().await.unwrap();
    assert_eq!(scene.store.names_in_use(), 0, "a release was not waited for");
    within(SECOND, "the release", released).await.unwrap().unwrap();
}

/// A place in a condition lapses by itself: it is not an unreleased hold.
#[tokio::test(start_paused = true)]
async fn close_does_not_report_a_waiter_that_cannot_leave_its_condition_as_a_release() {
    let scene = Scene::new();
    let lock = scene.locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let wait = tokio::spawn(lock.condition("c").wait(guard));
    within(SECOND, "the wait", scene.faults.reached(Op::Release, 1)).await;
    scene.faults.every(Op::Leave, Fault::NeverAnswer);
    wait.abort();
    within(SECOND, "its leaving", scene.faults.reached(Op::Leave, 1)).await;
    let closed = within(10 * SECOND, "close", scene.locks.close()).await;
    assert!(closed.is_ok(), "every hold was released before: {closed:?}");
}

/// The background task is on a runtime that exists but is not driven. There is nothing to release
/// in the background, so there is nothing to report.
#[test]
fn close_on_another_runtime_reports_no_release_that_does_not_exist() {
    let backend = Faulty::new(MemoryBackend::new());
    let store = backend.inside().clone();
    let locks = Locks::new(backend);
    let (idle, busy) = (paused_runtime(), paused_runtime());
    idle.block_on(async {
        locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    });
    busy.block_on(async {
        let guard = locks.lock("a").acquire().await.unwrap();
        let (closed, waited) = took(locks.close()).await;
        closed.expect("there was one hold, and its release was confirmed");
        assert!(waited < SLACK, "closed after {waited:?}");
        assert_eq!(store.names_in_use(), 0);
        drop(guard);
    });
}

/// A close that is dropped leaves its work to the background, and the next close waits for that.
#[tokio::test(start_paused = true)]
async fn a_close_after_one_that_was_dropped_waits_for_its_releases() {
    let scene = Scene::new();
    scene.faults.every(Op::Release, Fault::Delay(500 * MS));
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    {
        let mut dropped = pin!(scene.locks.close());
        let some_time = tokio::time::timeout(Duration::from_millis(100), dropped.as_mut()).await;
        assert!(some_time.is_err(), "the release is on its way");
    }
    scene.locks.close().await.unwrap();
    assert_eq!(scene.store.names_in_use(), 0, "it is not released yet");
    drop(guard);
}

/// A log that blocks on the line about a release.
struct SlowLog {
    reached: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl io::Write for SlowLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(line).contains("released") {
            self.reached.send(()).unwrap();
            self.go_on.recv_timeout(LONG).unwrap();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The release of a dropped guard is pending from the moment its hold is no longer live.
#[test]
fn close_waits_for_the_release_of_a_guard_that_another_thread_is_dropping() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let store = MemoryBackend::new();
    let locks = Locks::new(store.clone());
    let guard = runtime.block_on(locks.lock("a").acquire()).unwrap();
    let ((reached, is_reached), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let dropping = thread::spawn(move || {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        let log = log.with_writer(Mutex::new(SlowLog { reached, go_on: may_go_on }));
        tracing::subscriber::with_default(log.finish(), || drop(guard));
    });
    is_reached.recv_timeout(LONG).unwrap();
    runtime.block_on(async {
        let mut closing = pin!(locks.close());
        let early = poll_times(1, closing.as_mut()).await;
        assert!(early.is_none(), "closed while the lock is still held: {early:?}");
        go_on.send(()).unwrap();
        within(LONG, "the end of the client", closing).await.expect("it was released");
    });
    assert_eq!(store.names_in_use(), 0);
    dropping.join().unwrap();
}
