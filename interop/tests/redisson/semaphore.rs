//! `Locks::semaphore` and `RPermitExpirableSemaphore`.

use std::time::{Duration, Instant};

use lockcore::LockError;
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::{Section, tests_of_crashes, tests_of_holds},
    support::{Both, LEASE, SLACK, listened_to, ms, soon},
};

tests_of_holds!(Section::Semaphore);
tests_of_crashes!(Section::Semaphore);

const PERMITS: u32 = 5;

#[tokio::test]
async fn rust_sees_the_permits_of_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Permits(PERMITS));
    assert!(thread.prepare("seen").await.unwrap(), "there was none");
    // The number in a handle only counts where there is none yet.
    let semaphore = both.locks.semaphore("seen", 50);
    assert_eq!(semaphore.available().await.unwrap(), PERMITS);
    for taken in 1..=2 {
        thread.acquire("seen", Lease::Fixed(Duration::from_secs(20))).await.unwrap();
        let state = semaphore.state().await.unwrap();
        assert_eq!((state.available(), state.limit()), (Some(PERMITS - taken), Some(PERMITS)));
        assert_eq!(state.holders().len(), taken as usize, "{state:?}");
        let left = state.remaining().unwrap();
        assert!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?}");
    }
    let all = semaphore.permits(PERMITS - 1).try_acquire().await.unwrap();
    assert!(all.is_none(), "two are taken");
    let too_many = semaphore.permits(PERMITS + 1).try_acquire().await;
    assert!(
        matches!(too_many, Err(LockError::TooManyPermits { limit: PERMITS, .. })),
        "{too_many:?}"
    );
    for _ in 0..2 {
        thread.release("seen").await.unwrap();
    }
    assert_eq!(semaphore.available().await.unwrap(), PERMITS);
    both.close().await;
    let measured = format!(
        "{PERMITS} permits, {} available, each of the 2 with a holder and its lease",
        PERMITS - 2
    );
    record(Section::Semaphore, Promise::RustSeesJava, measured).await;
}

#[tokio::test]
async fn java_sees_the_permits_of_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Permits(50));
    let semaphore = both.locks.semaphore("seen", PERMITS);
    let guard = semaphore.permits(2).acquire().await.unwrap();
    assert!(!thread.prepare("seen").await.unwrap(), "there is one");
    let seen = async || {
        [
            thread.available_permits("seen").await.unwrap(),
            thread.acquired_permits("seen").await.unwrap(),
            thread.permits("seen").await.unwrap(),
        ]
    };
    assert_eq!(seen().await, [3, 2, i64::from(PERMITS)]);
    guard.release().await.unwrap();
    assert_eq!(seen().await, [5, 0, i64::from(PERMITS)]);
    both.close().await;
    let measured = format!("{PERMITS} permits, {} available, 2 acquired", PERMITS - 2);
    record(Section::Semaphore, Promise::JavaSeesRust, measured).await;
}

#[tokio::test]
async fn a_resize_in_rust_wakes_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Permits(1));
    let semaphore = both.locks.semaphore("resized", 1);
    let guard = semaphore.acquire().await.unwrap();
    let waiting = thread.acquire("resized", Lease::Fixed(LEASE));
    listened_to(&both.servers, Kind::Permits(1), "resized", 1).await;
    let start = Instant::now();
    semaphore.resize(3).await.unwrap();
    soon("Java's entry", waiting).await.unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK, "{entered:?}");
    assert_eq!(thread.permits("resized").await.unwrap(), 3);
    assert_eq!(thread.available_permits("resized").await.unwrap(), 1);

    // Fewer than are taken: nobody is let in until enough have been returned.
    semaphore.resize(1).await.unwrap();
    assert_eq!(thread.permits("resized").await.unwrap(), 1);
    guard.release().await.unwrap();
    assert!(!thread.try_acquire("resized", Duration::ZERO, Lease::Fixed(LEASE)).await.unwrap());
    thread.release("resized").await.unwrap();
    assert!(thread.try_acquire("resized", Duration::ZERO, Lease::Fixed(LEASE)).await.unwrap());
    thread.release("resized").await.unwrap();
    both.close().await;
    let measured = format!(
        "from 1 to 3, a waiter entered after {}; back to 1, nobody until two have come back",
        ms(entered)
    );
    record(Section::Semaphore, Promise::RustResizes, measured).await;
}

#[tokio::test]
async fn a_resize_in_java_wakes_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Permits(1));
    thread.prepare("resized").await.unwrap();
    thread.acquire("resized", Lease::Watchdog).await.unwrap();
    let semaphore = both.locks.semaphore("resized", 1);
    let waiting = tokio::spawn(semaphore.acquire());
    listened_to(&both.servers, Kind::Permits(1), "resized", 1).await;
    let start = Instant::now();
    thread.set_permits("resized", 3).await.unwrap();
    let guard = soon("our entry", waiting).await.unwrap().unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK, "{entered:?}");
    let state = semaphore.state().await.unwrap();
    assert_eq!((state.available(), state.limit()), (Some(1), Some(3)));
    guard.release().await.unwrap();
    thread.release("resized").await.unwrap();
    both.close().await;
    record(
        Section::Semaphore,
        Promise::JavaResizes,
        format!("from 1 to 3, a waiter entered after {}", ms(entered)),
    )
    .await;
}
