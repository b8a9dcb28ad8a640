//! The reason that a time-out reports: the lock was not free, or the backend gave no answer.

use lockcore::{BackendErrorKind, LockError};
use lockcore_testkit::{Fault, Op};

use super::{SECOND, Scene, begun, within};

/// The first lock was acquired after failures, and the wait for the second one makes no request.
/// The backend is well again.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_runs_out_of_time_reports_no_failure_that_has_passed() {
    let scene = Scene::new();
    let _held = scene.locks.lock("b").acquire().await.unwrap();
    // Only the first waiter in the queue asks the backend.
    let _first = begun(scene.locks.lock("b")).await;
    for _ in 0..2 {
        scene.faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    }
    let late = scene.locks.multi_lock(["a", "b"]).acquire_timeout(2 * SECOND).await;
    assert!(
        matches!(&late, Err(LockError::Timeout { lock, .. }) if lock.as_str() == "b"),
        "{late:?}"
    );
}

/// Only the first waiter asks the backend, but all of them wait for its answer.
#[tokio::test(start_paused = true)]
async fn all_waiters_of_a_name_learn_that_the_backend_gave_no_answer() {
    let scene = Scene::new();
    scene.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let waits = [3, 1, 2].map(|seconds| scene.locks.lock("a").acquire_timeout(seconds * SECOND));
    let waiters = waits.map(tokio::spawn);
    for (place, waiter) in waiters.into_iter().enumerate() {
        let late = within(4 * SECOND, "the time-out", waiter).await.unwrap();
        let Err(LockError::Backend(error)) = &late else { panic!("waiter {place}: {late:?}") };
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "waiter {place}");
    }
}
