//! Nested holds, on both sides.

use std::{sync::Arc, time::Duration};

use lockcore::Owner;
use lockcore_interop::Lease;

use crate::{
    deployment::Deployment,
    report::{Promise, record_on},
    section::Section,
    support::{Both, holders},
};

const DEPTH: u32 = 3;

#[tokio::test]
async fn nested_holds_of_java_count_for_both() {
    of_java(&Deployment::server()).await;
}

#[tokio::test]
async fn nested_holds_of_rust_keep_java_out_until_the_last() {
    of_rust(&Deployment::server()).await;
}

pub(crate) async fn of_java(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("nested"));
    for depth in 1..=DEPTH {
        let owner = thread.acquire("nested", Lease::Watchdog).await.unwrap();
        assert_eq!(thread.hold_count("nested").await.unwrap(), depth);
        assert_eq!(holders(&lock).await, [(owner, depth)]);
    }
    for left in (0..DEPTH).rev() {
        assert!(lock.try_acquire().await.unwrap().is_none(), "{} holds are left", left + 1);
        thread.release("nested").await.unwrap();
        assert_eq!(thread.hold_count("nested").await.unwrap(), left);
        assert_eq!(holders(&lock).await.first().map_or(0, |(_, count)| *count), left);
    }
    let guard = lock.try_acquire().await.unwrap().expect("free after the last");
    guard.release().await.unwrap();
    both.close().await;
    let measured = format!("1 to {DEPTH} and back, the same in `getHoldCount` and `state()`");
    record_on(servers.topology(), Section::Reentrant, Promise::JavaNests, measured).await;
}

pub(crate) async fn of_rust(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let tries = || thread.try_acquire("nested", Duration::ZERO, Lease::Watchdog);
    let owner = Owner::new();
    let lock = both.locks.lock("nested").owned_by(&owner);
    let mut guards = Vec::new();
    for depth in 1..=DEPTH {
        guards.push(lock.acquire().await.unwrap());
        assert_eq!(guards[0].hold_count(), depth);
    }
    // This acquisition asks for a longer lease, so that the server has to count it as well.
    guards.push(lock.clone().lease(Duration::from_secs(60)).acquire().await.unwrap());
    while let Some(guard) = guards.pop() {
        assert!(!tries().await.unwrap(), "{} holds are left", guards.len() + 1);
        guard.release().await.unwrap();
    }
    assert!(tries().await.unwrap(), "free after the last");
    thread.release("nested").await.unwrap();
    both.close().await;
    let measured =
        format!("{} levels, one of them with a longer lease; free after the last", DEPTH + 1);
    record_on(servers.topology(), Section::Reentrant, Promise::RustNests, measured).await;
}
