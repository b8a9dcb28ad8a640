//! Latches whose store fails.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError};
use lockcore_testkit::{Fault, Fixture, Op, poll_times};

use super::bench::{A_WHILE, FAULTS, client, faulty, joined, nothing_is_left, soon};

pub(crate) async fn whatever_happens_to_a_count_it_counts_once<F: Fixture>(fixture: &F) {
    let operator = client(fixture).await.latch("a");
    for first in FAULTS {
        for second in [None, Some(Fault::LostReply)] {
            let (locks, faults) = faulty(fixture).await;
            operator.set_count(3).await.unwrap();
            for fault in [first, second].into_iter().flatten() {
                faults.next(Op::CountDown, fault);
            }
            let left = locks.latch("a").count_down().await.unwrap();
            assert_eq!(left, 2, "{first:?}, {second:?}");
            // By then the straggler has arrived.
            fixture.pass(2 * A_WHILE).await;
            assert_eq!(operator.open().await.unwrap(), 2, "{first:?}, {second:?}");
        }
    }
    nothing_is_left(fixture, "counts that failed").await;
}

pub(crate) async fn whatever_happens_to_the_setting_it_is_set_once<F: Fixture>(fixture: &F) {
    let operator = client(fixture).await.latch("a");
    for first in FAULTS {
        for second in [None, Some(Fault::LostReply)] {
            let (locks, faults) = faulty(fixture).await;
            for fault in [first, second].into_iter().flatten() {
                faults.next(Op::SetCount, fault);
            }
            let set = locks.latch("a").set_count(2).await;
            assert!(set.is_ok(), "nobody else has set it: {set:?} after {first:?}, {second:?}");
            assert_eq!(operator.open().await.unwrap(), 2, "{first:?}, {second:?}");
            // The straggler arrives now, and closes nothing.
            fixture.pass(2 * A_WHILE).await;
            assert_eq!(operator.count().await.unwrap(), 0, "{first:?}, {second:?}");
        }
    }
    nothing_is_left(fixture, "settings that failed").await;
}

pub(crate) async fn a_dropped_count_counts_once_at_most<F: Fixture>(fixture: &F) {
    let operator = client(fixture).await.latch("a");
    for fault in FAULTS {
        for polls in 0..8 {
            let (locks, faults) = faulty(fixture).await;
            operator.set_count(3).await.unwrap();
            if let Some(fault) = fault {
                faults.next(Op::CountDown, fault);
            }
            let latch = locks.latch("a");
            let count = tokio::time::timeout(A_WHILE / 3, poll_times(polls, latch.count_down()));
            drop(count.await);
            fixture.pass(2 * A_WHILE).await;
            let left = operator.open().await.unwrap();
            assert!(left == 2 || left == 3, "{left} left after {polls} polls, {fault:?}");
        }
    }
    nothing_is_left(fixture, "counts that were dropped").await;
}

pub(crate) async fn waiters_bear_failures<F: Fixture>(fixture: &F) {
    let operator = client(fixture).await.latch("a");
    for op in [Op::Count, Op::Subscribe] {
        for fault in FAULTS {
            let (locks, faults) = faulty(fixture).await;
            operator.set_count(1).await.unwrap();
            if let Some(fault) = fault {
                faults.next(op, fault);
                faults.next(op, Fault::LostRequest);
            }
            let latch = locks.latch("a");
            let waiter = tokio::spawn(async move { latch.wait().await });
            faults.reached(Op::Count, 1).await;
            operator.count_down().await.unwrap();
            joined("a latch with failures", waiter).await.unwrap();
        }
    }
    let (locks, faults) = faulty(fixture).await;
    operator.set_count(1).await.unwrap();
    faults.every(Op::Count, Fault::Refuse(BackendErrorKind::Auth));
    let error = soon("what no retry helps", locks.latch("a").wait()).await.unwrap_err();
    assert!(
        matches!(&error, LockError::Backend(cause) if cause.kind() == BackendErrorKind::Auth),
        "{error}"
    );
    operator.open().await.unwrap();
    nothing_is_left(fixture, "waits with failures").await;
}

pub(crate) async fn an_opening_during_an_interruption_is_heard<F: Fixture>(fixture: &F) {
    let operator = client(fixture).await.latch("a");
    let (locks, faults) = faulty(fixture).await;
    operator.set_count(1).await.unwrap();
    let latch = locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait().await });
    faults.reached(Op::Count, 2).await;
    fixture.pass(4 * A_WHILE).await;
    faults.interrupt_subscriptions();
    operator.count_down().await.unwrap();
    fixture.pass(Duration::from_millis(20)).await;
    assert!(!waiter.is_finished(), "it could not hear of it");
    faults.restore_subscriptions();
    joined("the end of the interruption", waiter).await.unwrap();
    nothing_is_left(fixture, "an interruption").await;
}
