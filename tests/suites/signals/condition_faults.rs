//! Conditions whose store fails, and waits that are dropped.

use std::time::Duration;

use lockcore::{BackendErrorKind, Lock, LockError, LockGuard};
use lockcore_testkit::{Fault, Faults, Fixture, Op, poll_times};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::bench::{
    A_WHILE, FAULTS, client, faulty, joined, nothing_is_left, soon, waits, waits_and_releases,
};

type WaitingTask = JoinHandle<Result<LockGuard, LockError>>;

/// Two clients: the first, with faults, waits ahead of the second.
struct Bench {
    faults: Faults,
    lock: Lock,
    other: Lock,
}

impl Bench {
    async fn new<F: Fixture>(fixture: &F) -> Self {
        let (locks, faults) = faulty(fixture).await;
        Self { faults, lock: locks.lock("a"), other: client(fixture).await.lock("a") }
    }

    /// The second client notifies one waiter, and keeps the lock.
    async fn notifies(&self) -> LockGuard {
        let guard = self.other.acquire().await.unwrap();
        assert!(self.other.condition("c").notify_one(&guard).await.unwrap(), "somebody waits");
        guard
    }

    /// Shows that `next` has not been notified, that the next notification goes to it, and that
    /// nobody else waits.
    async fn only_next_waits<F: Fixture>(&self, fixture: &F, next: WaitingTask, what: &str) {
        fixture.pass(A_WHILE).await;
        assert!(!next.is_finished(), "{what}: nobody was notified");
        let guard = self.notifies().await;
        assert!(
            !self.other.condition("c").notify_one(&guard).await.unwrap(),
            "{what}: another one waits"
        );
        guard.release().await.unwrap();
        joined(what, next).await.unwrap().release().await.unwrap();
        nothing_is_left(fixture, what).await;
    }
}

pub(crate) async fn a_cancelled_waiter_passes_its_notification_on<F: Fixture>(fixture: &F) {
    for knows_of_it in [true, false] {
        let bench = Bench::new(fixture).await;
        let cancelled = waits(&bench.lock, &bench.lock.condition("c")).await;
        let next = waits(&bench.other, &bench.other.condition("c")).await;
        let guard = bench.notifies().await;
        if knows_of_it {
            bench.faults.reached(Op::Acquire, 2).await;
        }
        assert!(!next.is_finished());
        cancelled.abort();
        guard.release().await.unwrap();
        joined("the next", next).await.unwrap().release().await.unwrap();
        nothing_is_left(fixture, "a cancelled waiter").await;
    }
}

pub(crate) async fn a_wait_that_is_dropped_leaves_nothing_and_wakes_nobody<F: Fixture>(
    fixture: &F,
) {
    let late = Duration::from_millis(2);
    for fault in [Fault::Delay(late), Fault::DelayReply(late)] {
        for polls in 0.. {
            let (bench, what) =
                (Bench::new(fixture).await, format!("{fault:?}, dropped after {polls} polls"));
            for op in [Op::Subscribe, Op::Join, Op::Release, Op::Stay] {
                bench.faults.every(op, fault);
            }
            let next = waits(&bench.other, &bench.other.condition("c")).await;
            let guard = bench.lock.acquire().await.unwrap();
            let wait = bench.lock.condition("c").wait(guard);
            let ended = timeout(A_WHILE, poll_times(polls, wait)).await;
            if bench.faults.calls(Op::Join) > 0 {
                soon("it leaves", bench.faults.ended(Op::Leave, 1)).await;
            }
            bench.only_next_waits(fixture, next, &what).await;
            // A machine that stands still for a while is no reason to end.
            if ended.is_err() && bench.faults.calls(Op::Release) > 0 {
                break;
            }
        }
    }
}

pub(crate) async fn a_wait_that_ran_out_of_time_and_is_dropped_wakes_nobody<F: Fixture>(
    fixture: &F,
) {
    let bench = Bench::new(fixture).await;
    let guard = bench.lock.acquire().await.unwrap();
    // Long enough for two others to get the lock meanwhile, even from a slow store.
    let late = tokio::spawn(bench.lock.condition("c").wait_timeout(guard, 30 * A_WHILE));
    let next = waits(&bench.other, &bench.other.condition("c")).await;
    let guard = bench.other.acquire().await.unwrap();
    // It has left the condition, and waits for the lock.
    bench.faults.reached(Op::Acquire, 2).await;
    late.abort();
    guard.release().await.unwrap();
    bench.only_next_waits(fixture, next, "a wait that ran out of time").await;
}

pub(crate) async fn whatever_happens_to_a_request_the_wait_ends<F: Fixture>(fixture: &F) {
    for op in [Op::Subscribe, Op::Join, Op::Stay, Op::Release, Op::Acquire] {
        for fault in FAULTS.into_iter().flatten() {
            // A place or a hold that a straggler takes is no worse than that of a dead client.
            let takes = matches!(op, Op::Join | Op::Acquire);
            let may_stay = takes && matches!(fault, Fault::Straggles(_));
            if may_stay {
                continue;
            }
            let what = format!("{op:?}, {fault:?}");
            let bench = Bench::new(fixture).await;
            let guard = bench.lock.acquire().await.unwrap();
            bench.faults.next(op, fault);
            let waiter = tokio::spawn(bench.lock.condition("c").wait(guard));
            bench.notifies().await.release().await.unwrap();
            joined(&what, waiter).await.unwrap().release().await.unwrap();
            nothing_is_left(fixture, &what).await;
        }
    }
    for fault in FAULTS.into_iter().flatten() {
        let (bench, what) = (Bench::new(fixture).await, format!("{fault:?}"));
        let waiter = waits_and_releases(&bench.other, &bench.other.condition("c")).await;
        bench.faults.next(Op::Notify, fault);
        let guard = bench.lock.acquire().await.unwrap();
        bench.lock.condition("c").notify_one(&guard).await.expect(&what);
        bench.faults.next(Op::Leave, fault);
        let (guard, _) = bench.lock.condition("c").wait_timeout(guard, A_WHILE).await.expect(&what);
        guard.release().await.unwrap();
        joined(&what, waiter).await.unwrap();
        nothing_is_left(fixture, &what).await;
    }
}

pub(crate) async fn a_notification_during_an_interruption_is_heard<F: Fixture>(fixture: &F) {
    let bench = Bench::new(fixture).await;
    let waiter = waits(&bench.lock, &bench.lock.condition("c")).await;
    bench.other.acquire().await.unwrap().release().await.unwrap();
    bench.faults.interrupt_subscriptions();
    bench.notifies().await.release().await.unwrap();
    fixture.pass(Duration::from_millis(20)).await;
    assert!(!waiter.is_finished(), "it could not hear of it");
    let restored = Instant::now();
    bench.faults.restore_subscriptions();
    drop(joined("the end of the interruption", waiter).await.unwrap());
    assert!(restored.elapsed() < Duration::from_secs(1), "{:?}", restored.elapsed());
    // If the connection stays down, it asks.
    let waiter = waits(&bench.lock, &bench.lock.condition("c")).await;
    bench.other.acquire().await.unwrap().release().await.unwrap();
    bench.faults.interrupt_subscriptions();
    bench.notifies().await.release().await.unwrap();
    drop(joined("a third of the time that its place is kept", waiter).await.unwrap());
    nothing_is_left(fixture, "an interruption").await;
}

pub(crate) async fn who_cannot_get_the_lock_back_passes_its_notification_on<F: Fixture>(
    fixture: &F,
) {
    let bench = Bench::new(fixture).await;
    let fails = waits(&bench.lock, &bench.lock.condition("c")).await;
    let next = waits(&bench.other, &bench.other.condition("c")).await;
    bench.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Auth));
    bench.notifies().await.release().await.unwrap();
    let error = joined("the failure", fails).await.unwrap_err();
    assert!(
        matches!(&error, LockError::Backend(cause) if cause.kind() == BackendErrorKind::Auth),
        "{error}"
    );
    joined("the next", next).await.unwrap().release().await.unwrap();
    nothing_is_left(fixture, "who could not get the lock back").await;
}
