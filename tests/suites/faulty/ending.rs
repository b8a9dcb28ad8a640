//! The operators' tools, and the end of a client.

use lockcore::{BackendErrorKind, LockError};
use lockcore_testkit::{Fault, Op};

use super::bench::{Bench, SECOND, backend_error};

#[tokio::test(start_paused = true)]
async fn errors_of_the_operators_tools_come_through_at_once() {
    let bench = Bench::new();
    bench.faults.next(Op::Inspect, Fault::Refuse(BackendErrorKind::Connection));
    bench.faults.next(Op::ForceRelease, Fault::LostRequest);
    let lock = bench.faulty.lock("a");
    assert_eq!(backend_error(lock.state().await), BackendErrorKind::Connection);
    assert_eq!(backend_error(lock.force_release().await), BackendErrorKind::Timeout);
    assert_eq!(bench.faults.all_calls(), 2, "neither is repeated: the caller decides");
}

#[tokio::test(start_paused = true)]
async fn closing_reports_what_could_not_be_released_and_releases_the_rest() {
    let bench = Bench::new();
    let _guards = [
        bench.faulty.lock("a").acquire().await.unwrap(),
        bench.faulty.lock("b").acquire().await.unwrap(),
    ];
    bench.faults.next(Op::Release, Fault::Refuse(BackendErrorKind::Permission));
    let closed = bench.faulty.close().await;
    assert!(matches!(closed, Err(LockError::Backend(_))), "{closed:?}");
    assert_eq!(bench.store.names_in_use(), 1, "one was refused, the other is released");
}

#[tokio::test(start_paused = true)]
async fn clients_that_are_gone_leave_no_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let bench = Bench::new();
    let held = bench.sound.lock("a").acquire().await.unwrap();
    assert!(bench.faulty.lock("a").acquire_timeout(SECOND).await.is_err());
    held.release().await.unwrap();
    drop(bench.faulty.lock("a").acquire().await.unwrap());
    assert!(tasks() > 0, "the clients work in the background");
    drop(bench);
    tokio::time::sleep(SECOND).await;
    assert_eq!(tasks(), 0);
}
