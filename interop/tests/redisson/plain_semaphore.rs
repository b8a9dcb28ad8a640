//! `Locks::plain_semaphore` and `RSemaphore`, whose permits have no lease: lockcore returns its
//! own, and nobody those of Java.

use std::time::{Duration, Instant};

use lockcore::LockError;
use lockcore_interop::{Kind, Lease};

use crate::{
    crash::{Process, another_java, held_by},
    report::{Promise, record},
    section::{Section, tests_of_holds},
    support::{Both, LEASE, SLACK, listened_to, ms, soon},
};

tests_of_holds!(Section::PlainSemaphore);

const PERMITS: u32 = 5;

/// Longer than a lease.
const LATER: Duration = Duration::from_secs(4);

#[tokio::test]
async fn rust_sees_the_permits_of_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Plain(PERMITS));
    assert!(thread.prepare("seen").await.unwrap(), "there was none");
    let semaphore = both.locks.plain_semaphore("seen", PERMITS);
    assert_eq!(semaphore.available().await.unwrap(), PERMITS);
    thread.acquire("seen", Lease::Watchdog).await.unwrap();
    let state = semaphore.state().await.unwrap();
    assert_eq!(
        (state.available(), state.is_held()),
        (Some(PERMITS - 1), false),
        "Java's holders are not known"
    );
    assert!(semaphore.permits(PERMITS).try_acquire().await.unwrap().is_none());
    thread.release("seen").await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), PERMITS);
    both.close().await;
    let measured = format!(
        "{PERMITS} permits, {} available; `state()` does not know who has the other",
        PERMITS - 1
    );
    record(Section::PlainSemaphore, Promise::RustSeesJava, measured).await;
}

#[tokio::test]
async fn java_sees_the_permits_of_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Plain(50));
    let guard = both.locks.plain_semaphore("seen", PERMITS).permits(2).acquire().await.unwrap();
    assert!(!thread.prepare("seen").await.unwrap(), "there is one");
    assert_eq!(thread.available_permits("seen").await.unwrap(), i64::from(PERMITS - 2));
    guard.release().await.unwrap();
    assert_eq!(thread.available_permits("seen").await.unwrap(), i64::from(PERMITS));
    both.close().await;
    record(Section::PlainSemaphore, Promise::JavaSeesRust, format!("{} of {PERMITS}", PERMITS - 2))
        .await;
}

#[tokio::test]
async fn the_permit_of_a_rust_holder_that_is_killed_comes_back_through_rust() {
    let both = Both::start().await;
    let kind = Kind::Plain(1);
    let thread = both.redisson.thread_for(kind);
    Process::holds(&both.servers, kind, "crashed").kill();
    let killed = Instant::now();
    assert!(
        !thread.try_acquire("crashed", LATER, Lease::Watchdog).await.unwrap(),
        "nobody has asked through Rust"
    );
    assert!(killed.elapsed() > LEASE);

    let waiting = thread.acquire("crashed", Lease::Watchdog);
    listened_to(&both.servers, kind, "crashed", 1).await;
    let start = Instant::now();
    let guard = both.locks.plain_semaphore("crashed", 1).acquire().await.unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK, "{entered:?}");
    guard.release().await.unwrap();
    soon("Java's entry", waiting).await.unwrap();
    thread.release("crashed").await.unwrap();

    // A waiter from before the death does not have to ask again.
    let mut process = Process::holds(&both.servers, kind, "awaited");
    let waiting = tokio::spawn(both.locks.plain_semaphore("awaited", 1).acquire());
    listened_to(&both.servers, kind, "awaited", 1).await;
    process.kill();
    let killed = Instant::now();
    let guard = soon("our entry", waiting).await.unwrap().unwrap();
    let awaited = killed.elapsed();
    assert!(awaited <= LEASE + SLACK, "{awaited:?}");
    guard.release().await.unwrap();
    both.close().await;
    let measured = format!(
        "Java's `tryAcquire` of {} ms was refused; then Rust entered after {}, and Java after Rust; a waiter in Rust entered {} \
         after the death",
        LATER.as_millis(),
        ms(entered),
        ms(awaited)
    );
    record(Section::PlainSemaphore, Promise::RustCrashes, measured).await;
}

#[tokio::test]
async fn the_permit_of_a_java_holder_that_halts_is_gone() {
    let both = Both::start().await;
    let kind = Kind::Plain(1);
    let (java, client) = another_java(&both.servers).await;
    held_by(&client, kind, "crashed").await;
    java.halt().await.unwrap();
    let semaphore = both.locks.plain_semaphore("crashed", 1);
    let entered = semaphore.acquire_timeout(LATER).await;
    assert!(matches!(entered, Err(LockError::Timeout { .. })), "{entered:?}");

    let waiting = tokio::spawn(semaphore.acquire());
    listened_to(&both.servers, kind, "crashed", 1).await;
    let start = Instant::now();
    both.redisson.thread_for(kind).release_permits("crashed", 1).await.unwrap();
    let guard = soon("our entry", waiting).await.unwrap().unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK, "{entered:?}");
    guard.release().await.unwrap();
    both.close().await;
    let measured = format!(
        "`acquire_timeout` of {} ms refused; Rust entered {} after `release` in another Java process",
        LATER.as_millis(),
        ms(entered)
    );
    record(Section::PlainSemaphore, Promise::JavaCrashes, measured).await;
}
