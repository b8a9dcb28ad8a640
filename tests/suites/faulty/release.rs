//! Releases.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError, Owner};
use lockcore_testkit::{Fault, Op};
use tokio::time::timeout;

use super::bench::{AT_ONCE, Bench, LEASE, SECOND, backend_error};

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_is_confirmed_by_the_next() {
    let bench = Bench::with(Op::Release, Some(Fault::LostReply));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(bench.faults.calls(Op::Release), 2);
    bench.is_free_within(Duration::ZERO, "a release whose reply was lost").await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_does_not_touch_whoever_came_between() {
    let bench = Bench::with(Op::Release, Some(Fault::LostReply));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    let successor = async {
        bench.faults.reached(Op::Release, 1).await;
        bench.sound.lock("a").acquire().await.unwrap()
    };
    let (released, successor) = tokio::join!(guard.release(), successor);
    released.unwrap();
    assert_eq!(bench.faults.calls(Op::Release), 2, "it was repeated");
    assert_eq!(bench.stored_count().await, Some(1));
    successor.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_long_after_its_repetition_does_not_touch_the_next_hold() {
    let bench = Bench::with(Op::Release, Some(Fault::Straggles(2 * SECOND)));
    let owner = Owner::named("job-17");
    bench.faulty.lock("a").owned_by(&owner).acquire().await.unwrap().release().await.unwrap();
    let next = bench.faulty.lock("a").owned_by(&owner).acquire().await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(bench.stored_count().await, Some(1), "the same owner's next hold was released");
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_goes_on_in_the_background() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::LostRequest);
    assert_eq!(backend_error(guard.release().await), BackendErrorKind::Timeout);
    assert_eq!(bench.faults.calls(Op::Release), 3, "the caller is not kept for ever");
    bench.faults.reached(Op::Release, 6).await;
    bench.faults.heal();
    bench.is_free_within(AT_ONCE, "a release in the background").await;
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_tried_for_longer_than_the_lease() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").lease(LEASE).acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::LostRequest);
    drop(guard);
    bench.is_free_within(LEASE + SECOND, "the lease").await;
    tokio::time::sleep(2 * LEASE).await;
    let calls = bench.faults.calls(Op::Release);
    tokio::time::sleep(10 * LEASE).await;
    assert_eq!(bench.faults.calls(Op::Release), calls, "the release is tried for ever");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_good_says_so_and_ends_with_the_lease() {
    let bench = Bench::with(Op::Release, Some(Fault::Refuse(BackendErrorKind::Permission)));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    assert_eq!(backend_error(guard.release().await), BackendErrorKind::Permission);
    assert_eq!(bench.faults.calls(Op::Release), 1);
    bench.is_free_within(LEASE + SECOND, "a release that was refused").await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_release_makes_no_call_and_so_cannot_fail() {
    let bench = Bench::new();
    bench.faults.every(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    let lock = bench.faulty.lock("a").owned_by(&Owner::new());
    let outer = lock.acquire().await.unwrap();
    let calls = bench.faults.all_calls();
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(bench.faults.all_calls(), calls, "nesting makes round trips");
    bench.faults.heal();
    outer.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_never_returns_keeps_its_client_no_longer_than_the_lease() {
    for fault in [Fault::NeverAnswer, Fault::NeverReply] {
        let bench = Bench::with(Op::Release, Some(fault));
        drop(bench.faulty.lock("a").acquire().await.unwrap());
        let again = bench.faulty.lock("a").acquire_timeout(2 * LEASE).await;
        again.unwrap_or_else(|error| panic!("{fault:?}: {error}")).release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "after a hung release").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_release_is_not_kept_for_ever_by_a_backend_that_never_answers() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::NeverAnswer);
    let released = timeout(2 * LEASE, guard.release()).await;
    assert!(matches!(released, Ok(Err(LockError::Backend(_)))), "{released:?}");
}
