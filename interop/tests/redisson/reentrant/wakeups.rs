//! Each side is woken by the other's release.

use std::time::{Duration, Instant};

use lockcore_interop::Lease;

use crate::{
    report::{Row, record},
    support::{Both, listened_to, median_and_longest, ms, soon},
};

const ROUNDS: usize = 100;

/// At the median.
const LIMIT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_release_in_rust_wakes_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    let mut waits = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("wake:{round}");
        let guard = both.locks.lock(&name).acquire().await.unwrap();
        let waiting = thread.lock(&name, Lease::Watchdog);
        listened_to(&both.server, &name, 1).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        soon("Java's entry", waiting).await.unwrap();
        waits.push(start.elapsed());
        thread.unlock(&name).await.unwrap();
    }
    both.close().await;
    report(Row::RustWakesJava, waits).await;
}

#[tokio::test]
async fn a_release_in_java_wakes_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    let mut waits = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("wake:{round}");
        thread.lock(&name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(both.locks.lock(&name).acquire());
        listened_to(&both.server, &name, 1).await;
        let start = Instant::now();
        let unlocking = thread.unlock(&name);
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        waits.push(start.elapsed());
        unlocking.await.unwrap();
        guard.release().await.unwrap();
    }
    both.close().await;
    report(Row::JavaWakesRust, waits).await;
}

async fn report(row: Row, waits: Vec<Duration>) {
    let (median, longest) = median_and_longest(waits);
    assert!(median <= LIMIT, "{median:?} at the median, {longest:?} at most");
    record(row, format!("{} at the median of {ROUNDS}, {} at most", ms(median), ms(longest))).await;
}
