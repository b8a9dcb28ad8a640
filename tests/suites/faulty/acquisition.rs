//! Acquisitions.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError, LockName, backend::Backend};
use lockcore_testkit::{Fault, Op};

use super::bench::{AT_ONCE, Bench, LEASE, SECOND, backend_error, took};

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_reply_was_lost_leaves_no_hold() {
    let bench = Bench::with(Op::Acquire, Some(Fault::LostReply));
    assert_eq!(
        backend_error(bench.faulty.lock("a").try_acquire().await),
        BackendErrorKind::Timeout
    );
    bench.is_free_within(AT_ONCE, "a lost reply").await;
    assert_eq!(bench.faults.calls(Op::Release), 1, "it was undone once");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_reply_was_lost_is_tried_again_under_a_new_identity() {
    let bench = Bench::with(Op::Acquire, Some(Fault::LostReply));
    let (guard, waited) = took(bench.faulty.lock("a").acquire()).await;
    let guard = guard.unwrap();
    assert!(waited < AT_ONCE, "{waited:?}");
    assert_eq!(
        bench.stored_count().await,
        Some(1),
        "the attempt that went unanswered is not counted"
    );
    guard.release().await.unwrap();
    bench.is_free_within(Duration::ZERO, "after the release").await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_certainly_had_no_effect_is_not_undone() {
    let bench = Bench::with(Op::Acquire, Some(Fault::Refuse(BackendErrorKind::OutOfMemory)));
    assert_eq!(
        backend_error(bench.faulty.lock("a").acquire().await),
        BackendErrorKind::OutOfMemory
    );
    assert_eq!(bench.faults.all_calls(), 1, "neither a retry nor a release can help");
    bench.is_free_within(Duration::ZERO, "a refusal").await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_bears_failures_for_as_long_as_it_was_told() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let (result, waited) = took(bench.faulty.lock("a").acquire()).await;
    assert_eq!(backend_error(result), BackendErrorKind::Connection);
    assert!((5 * SECOND..7 * SECOND).contains(&waited), "{waited:?}");
    assert!(
        (5..30).contains(&bench.faults.calls(Op::Acquire)),
        "{}",
        bench.faults.calls(Op::Acquire)
    );
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_enters_when_the_backend_is_back() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::LostRequest);
    let heals = async {
        bench.faults.reached(Op::Acquire, 4).await;
        bench.faults.heal();
    };
    let (guard, ()) = tokio::join!(bench.faulty.lock("a").acquire(), heals);
    guard.unwrap().release().await.unwrap();
    bench.is_free_within(AT_ONCE, "after an outage").await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_for_a_failing_backend_learns_why() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let (result, waited) = took(bench.faulty.lock("a").acquire_timeout(SECOND)).await;
    assert_eq!(backend_error(result), BackendErrorKind::Unavailable);
    assert_eq!(waited, SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_holds_nobody_beyond_his_time() {
    for fault in [Fault::NeverAnswer, Fault::NeverReply] {
        let bench = Bench::with(Op::Acquire, Some(fault));
        let (result, waited) = took(bench.faulty.lock("a").acquire_timeout(2 * SECOND)).await;
        assert!(matches!(result, Err(LockError::Timeout { .. })), "{result:?}");
        assert_eq!(waited, 2 * SECOND);
        bench.is_free_within(AT_ONCE, "a backend that never answers").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_the_lease_is_asked_for_again() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(2 * SECOND)));
    let guard = bench.faulty.lock("a").lease(SECOND).acquire().await.unwrap();
    assert!(guard.is_held() && guard.remaining() > SECOND / 2, "{guard:?}");
    guard.release().await.unwrap();
    bench.is_free_within(AT_ONCE, "a late reply").await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_grant_comes_after_the_lease_fails_and_leaves_nothing() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(2 * SECOND)));
    let result = bench.faulty.lock("a").lease(SECOND).try_acquire().await;
    assert!(
        matches!(&result, Err(LockError::Backend(error)) if error.kind() == BackendErrorKind::Timeout),
        "{result:?}"
    );
    bench.is_free_within(AT_ONCE, "a late reply").await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_counted_from_before_the_request_was_sent() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(4 * SECOND)));
    let guard = bench.faulty.lock("a").lease(LEASE).acquire().await.unwrap();
    assert!(guard.remaining() < LEASE - 4 * SECOND, "{:?}", guard.remaining());
    let stored =
        bench.store.inspect(&LockName::new("a").unwrap()).await.unwrap().remaining().unwrap();
    assert!(guard.remaining() < stored, "{:?} is not less than {stored:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn one_subscription_that_fails_is_made_again() {
    for fault in
        [Fault::Refuse(BackendErrorKind::Connection), Fault::LostReply, Fault::Delay(SECOND)]
    {
        let bench = Bench::with(Op::Subscribe, Some(fault));
        let held = bench.sound.lock("a").acquire().await.unwrap();
        let released = async {
            tokio::time::sleep(4 * SECOND).await;
            held.release().await.unwrap();
        };
        let (guard, waited) =
            took(async { tokio::join!(bench.faulty.lock("a").acquire(), released).0 }).await;
        assert!(waited < 5 * SECOND, "{fault:?}: entered after {waited:?}");
        guard.unwrap().release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "a subscription that failed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_its_undo_is_not_renewed_and_ends_with_its_lease() {
    let bench = Bench::with(Op::Acquire, Some(Fault::Straggles(SECOND)));
    assert_eq!(
        backend_error(bench.faulty.lock("a").try_acquire().await),
        BackendErrorKind::Timeout
    );
    bench.faults.reached(Op::Release, 1).await;
    bench.sound.lock("a").acquire_timeout(Duration::ZERO).await.unwrap().release().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(bench.stored_count().await, Some(1), "it has arrived");
    assert_eq!(bench.faults.calls(Op::Renew), 0);
    bench.is_free_within(LEASE + SECOND, "a straggler").await;
}
