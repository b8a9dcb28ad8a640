//! Each side sees the other's holds.

use std::time::Duration;

use lockcore::Mode;
use lockcore_interop::Lease;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE},
};

#[tokio::test]
async fn rust_sees_the_hold_of_java() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock("seen"));
    assert!(!lock.state().await.unwrap().is_held());
    let owner = thread.acquire("seen", Lease::Fixed(Duration::from_secs(20))).await.unwrap();
    assert!(owner.starts_with(both.redisson.id()));
    thread.acquire("seen", Lease::Fixed(Duration::from_secs(20))).await.unwrap();

    let state = lock.state().await.unwrap();
    let [holder] = state.holders() else { panic!("one holder: {state:?}") };
    assert_eq!(
        (holder.owner(), holder.hold_count(), holder.mode()),
        (owner.as_str(), 2, Mode::Exclusive)
    );
    let left = state.remaining().unwrap();
    assert!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?}");

    thread.release("seen").await.unwrap();
    thread.release("seen").await.unwrap();
    assert!(!lock.state().await.unwrap().is_held());
    both.close().await;
    let measured = format!(
        "owner `<client id>:<thread id>`, count 2, {:.1} s of 20 s left",
        left.as_secs_f64()
    );
    record(Section::Reentrant, Promise::RustSeesJava, measured).await;
}

#[tokio::test]
async fn java_sees_the_hold_of_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    assert!(!thread.is_locked("seen").await.unwrap());
    assert_eq!(thread.remaining("seen").await.unwrap(), None);

    let guard = both.locks.lock("seen").acquire().await.unwrap();
    assert!(thread.is_locked("seen").await.unwrap());
    let left = thread.remaining("seen").await.unwrap().expect("a lease");
    assert!(!left.is_zero() && left <= LEASE, "{left:?}");
    assert!(!thread.is_held("seen").await.unwrap(), "it is not that thread's");
    assert_eq!(thread.hold_count("seen").await.unwrap(), 0);

    guard.release().await.unwrap();
    assert!(!thread.is_locked("seen").await.unwrap());
    both.close().await;
    let measured =
        format!("locked, {} of {} ms left, `getHoldCount` 0", left.as_millis(), LEASE.as_millis());
    record(Section::Reentrant, Promise::JavaSeesRust, measured).await;
}
