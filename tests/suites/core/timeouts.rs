//! The reason that a timeout reports: the lock was not free, or the backend did not answer.

use lockcore::{BackendErrorKind, LockError, Owner};
use lockcore_testkit::{Fault, Op};

use super::{MS, SECOND, SLACK, Scene, begun, within};

/// The first lock was acquired after failures, and the wait for the second one makes no request.
/// The backend has recovered.
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

/// The answer to the first waiter also applies to waiters with the same request. The next one asks
/// for less, or takes over its own hold, so the answer must not be applied to it.
#[tokio::test(start_paused = true)]
async fn the_next_in_line_is_not_kept_by_what_the_first_was_told() {
    let (scene, job, long) = (Scene::new(), Owner::named("job-17"), 60 * SECOND);
    let Scene { locks, other, .. } = &scene;

    let one_permit = other.semaphore("s", 3).acquire().await.unwrap();
    let permits = |count| locks.semaphore("s", 3).permits(count);
    let crashed = other.lock("a").owned_by(&job).lease(long).acquire().await.unwrap();
    let again = locks.lock("a").owned_by(&job);
    let rw = other.rw_lock("rw");
    let writing = rw.write().owned_by(&job).lease(SECOND).acquire().await.unwrap();
    let reading = rw.read().owned_by(&job).lease(long).acquire().await.unwrap();
    let rw = locks.rw_lock("rw");

    for (what, first, next, limit) in [
        ("a permit that is free", permits(3), permits(1), SLACK),
        ("the hold of the same owner", locks.lock("a"), again, SLACK),
        ("the end of the writer", rw.write(), rw.read(), SECOND),
    ] {
        let first = tokio::spawn(async move { first.acquire_timeout(100 * MS).await });
        tokio::time::sleep(MS).await;
        let next = tokio::spawn(next.acquire());
        let late = first.await.unwrap();
        assert!(matches!(late, Err(LockError::Timeout { .. })), "{what}: {late:?}");
        within(limit, what, next).await.unwrap().unwrap().release().await.unwrap();
    }
    drop((one_permit, crashed, writing));
    reading.release().await.unwrap();
    scene.nothing_is_left().await;
}
