//! A hold that is renewed past its first lease stays exclusive for the other side.

use std::time::Duration;

use lockcore::LockError;
use lockcore_interop::Lease;

use crate::{
    report::{Row, record},
    support::{Both, LEASE, holders, soon},
};

/// So long a waiter is refused; longer than two leases.
const WAIT: Duration = Duration::from_millis(3500);

#[tokio::test]
async fn java_stays_outside_while_our_watchdog_renews() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("renewed"));
    let guard = lock.acquire().await.unwrap();
    let entered = soon("Java's patience", thread.try_lock("renewed", WAIT, Lease::Watchdog)).await.unwrap();
    assert!(!entered && guard.is_held(), "renewed past two leases");
    assert_eq!(holders(&lock).await, [(guard.wire_owner().to_owned(), 1)]);
    guard.release().await.unwrap();
    assert!(thread.try_lock("renewed", WAIT, Lease::Watchdog).await.unwrap());
    thread.unlock("renewed").await.unwrap();
    both.close().await;
    record(Row::JavaAwaitsWatchdogOfRust, measured("tryLock")).await;
}

#[tokio::test]
async fn we_stay_outside_while_the_watchdog_of_java_renews() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("renewed"));
    let owner = thread.lock("renewed", Lease::Watchdog).await.unwrap();
    let entered = soon("our patience", lock.acquire_timeout(WAIT)).await;
    assert!(matches!(entered, Err(LockError::Timeout { .. })), "{entered:?}");
    assert!(thread.is_held("renewed").await.unwrap());
    assert_eq!(holders(&lock).await, [(owner, 1)]);
    thread.unlock("renewed").await.unwrap();
    let guard = lock.acquire_timeout(WAIT).await.unwrap();
    guard.release().await.unwrap();
    both.close().await;
    record(Row::RustAwaitsWatchdogOfJava, measured("acquire_timeout")).await;
}

fn measured(waiting: &str) -> String {
    format!(
        "`{waiting}` of {} ms refused at a lease of {} ms; the hold is the same",
        WAIT.as_millis(),
        LEASE.as_millis()
    )
}
