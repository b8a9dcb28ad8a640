//! Neither side releases the holds of the other.

use std::time::Duration;

use lockcore::{
    LockError, LockName,
    backend::{Backend, HoldId, ReleaseOutcome, ReleaseRequest},
};
use lockcore_interop::Lease;
use lockcore_redis::RedisBackend;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, alone, holders, soon},
};

/// A lease that is not renewed, and ends before its holder knows what to do.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn java_cannot_release_our_hold() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("ours"));

    // A hold that it never had.
    let guard = lock.acquire().await.unwrap();
    assert!(thread.release("ours").await.unwrap_err().is("IllegalMonitorStateException"));
    assert!(guard.is_held());
    assert_eq!(holders(&lock).await, alone(&guard));
    guard.release().await.unwrap();

    // A hold that it had, and that has ended since.
    thread.acquire("ours", Lease::Fixed(SHORT)).await.unwrap();
    let guard = soon("the end of its lease", lock.acquire()).await.unwrap();
    assert!(thread.release("ours").await.unwrap_err().is("IllegalMonitorStateException"));
    assert_eq!(holders(&lock).await, alone(&guard));
    guard.release().await.expect("it is still ours");

    both.close().await;
    let measured = "`IllegalMonitorStateException`, for a stranger and for a holder whose lease has ended; our hold is the same";
    record(Section::Reentrant, Promise::JavaCannotReleaseOurs, measured).await;
}

#[tokio::test]
async fn we_cannot_release_the_hold_of_java() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("theirs"));

    // A hold that Java has replaced, since its lease had ended.
    let late = lock.clone().lease(SHORT).acquire().await.unwrap();
    let owner =
        soon("the end of our lease", thread.acquire("theirs", Lease::Watchdog)).await.unwrap();
    let released = late.release().await;
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    assert_eq!(holders(&lock).await, [(owner.clone(), 1)]);

    // And a hold that lockcore never had, bypassing the core.
    let backend = RedisBackend::connect(both.servers.url()).await.unwrap();
    let stranger = HoldId::unique("2f1b4b0e-6d1e-4c62-9f56-0d3b8f4e7a11:1");
    let request = ReleaseRequest::new(LockName::new("theirs").unwrap(), stranger);
    assert_eq!(backend.release(&request).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(holders(&lock).await, [(owner, 1)]);

    thread.release("theirs").await.expect("it is still theirs");
    both.close().await;
    record(
        Section::Reentrant,
        Promise::RustCannotReleaseTheirs,
        "`Lost` and `NotHeld`; Java's hold is the same",
    )
    .await;
}
