//! An operator of one side ends a hold of the other.

use std::time::Instant;

use lockcore::{LockError, LossReason};
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, holders, listened_to, ms, soon},
};

#[tokio::test]
async fn java_forces_our_hold() {
    let both = Both::start().await;
    let (operator, waiter) = (both.redisson.thread(), both.redisson.thread());
    let lock = both.locks.lock("forced");
    let guard = lock.acquire().await.unwrap();
    let waiting = waiter.acquire("forced", Lease::Watchdog);
    listened_to(&both.servers, Kind::Reentrant, "forced", 1).await;

    let start = Instant::now();
    assert!(operator.force_unlock("forced").await.unwrap());
    let owner = soon("the waiter's entry", waiting).await.unwrap();
    let entered = start.elapsed();
    assert_eq!(soon("the next renewal", guard.lost()).await, LossReason::Gone);
    let told = start.elapsed();
    assert!(told < LEASE, "with the next renewal, not at the end of the lease: {told:?}");
    let released = guard.release().await;
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    assert_eq!(holders(&lock).await, [(owner, 1)], "what came after it is not touched");

    waiter.release("forced").await.unwrap();
    assert!(!operator.force_unlock("forced").await.unwrap(), "nobody held it");
    both.close().await;
    let measured = format!(
        "the next waiter entered after {}, `lost()` resolved after {}",
        ms(entered),
        ms(told)
    );
    record(Section::Reentrant, Promise::JavaForces, measured).await;
}

#[tokio::test]
async fn we_force_the_hold_of_java() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("forced"));
    thread.acquire("forced", Lease::Watchdog).await.unwrap();
    let waiting = tokio::spawn(lock.acquire());
    listened_to(&both.servers, Kind::Reentrant, "forced", 1).await;

    let start = Instant::now();
    assert!(lock.force_release().await.unwrap());
    let guard = soon("our entry", waiting).await.unwrap().unwrap();
    let entered = start.elapsed();
    assert!(!thread.is_held("forced").await.unwrap());
    assert!(thread.release("forced").await.unwrap_err().is("IllegalMonitorStateException"));
    assert!(guard.is_held());

    guard.release().await.unwrap();
    assert!(!lock.force_release().await.unwrap(), "nobody held it");
    both.close().await;
    let measured = format!(
        "the next waiter entered after {}; Java's `unlock` throws and changes nothing",
        ms(entered)
    );
    record(Section::Reentrant, Promise::RustForces, measured).await;
}
