//! A dead reader does not outlive its lease because the other side keeps reading.

use std::time::{Duration, Instant};

use lockcore::RwLock;
use lockcore_interop::{Kind, Lease};

use crate::{
    crash::{Process, another_java, held_by},
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, SLACK, listened_to, ms, soon, until},
};

/// By then, the waiter has asked once more, at the end of the lease that it saw first. It would ask
/// again at the end of the next one, at least a second later.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_dead_rust_reader_does_not_stay_while_java_reads() {
    let both = Both::start().await;
    let (reader, lock) = (both.redisson.thread_for(Kind::Read), both.locks.rw_lock("read"));
    let mut process = Process::holds(&both.servers, Kind::Read, "read");
    reader.acquire("read", Lease::Watchdog).await.unwrap();
    let writing = tokio::spawn(lock.write().acquire());
    listened_to(&both.servers, Kind::Write, "read", 1).await;
    process.kill();
    readers_are(&lock, 1).await;
    tokio::time::sleep(ASKED_AGAIN).await;

    assert!(!writing.is_finished());
    let start = Instant::now();
    reader.release("read").await.unwrap();
    let guard = soon("our entry", writing).await.unwrap().unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK / 2, "{entered:?}");
    guard.release().await.unwrap();
    both.close().await;
    record(
        Section::ReadWrite,
        Promise::RustReaderCrashes,
        format!("{} after Java's release", ms(entered)),
    )
    .await;
}

#[tokio::test]
async fn a_dead_java_reader_does_not_stay_while_rust_reads() {
    let both = Both::start().await;
    let (writer, lock) = (both.redisson.thread_for(Kind::Write), both.locks.rw_lock("read"));
    let (java, client) = another_java(&both.servers).await;
    held_by(&client, Kind::Read, "read").await;
    let reading = lock.read().acquire().await.unwrap();
    let writing = writer.acquire("read", Lease::Watchdog);
    listened_to(&both.servers, Kind::Write, "read", 1).await;
    java.halt().await.unwrap();
    readers_are(&lock, 1).await;
    tokio::time::sleep(ASKED_AGAIN).await;

    assert!(reading.is_held() && lock.write().try_acquire().await.unwrap().is_none());
    let start = Instant::now();
    reading.release().await.unwrap();
    soon("Java's entry", writing).await.unwrap();
    let entered = start.elapsed();
    assert!(entered < SLACK / 2, "{entered:?}");
    writer.release("read").await.unwrap();
    both.close().await;
    record(
        Section::ReadWrite,
        Promise::JavaReaderCrashes,
        format!("{} after our release", ms(entered)),
    )
    .await;
}

/// Completes when `count` readers are left, which only the end of a lease can bring about.
async fn readers_are(lock: &RwLock, count: usize) {
    let died = Instant::now();
    until("the end of the lease", async || lock.state().await.unwrap().holders().len() == count)
        .await;
    assert!(died.elapsed() <= LEASE + SLACK, "{:?}", died.elapsed());
}
