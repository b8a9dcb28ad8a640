//! Each side is woken by the other's release.

use std::time::{Duration, Instant};

use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Row, record},
    support::{Both, median_and_longest, ms, queued_and_listening, soon},
};

const ROUNDS: usize = 50;

/// At the median.
const LIMIT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_fair_release_in_rust_wakes_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread().kind(Kind::Fair);
    let mut waits = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("wake:{round}");
        let guard = both.locks.fair_lock(&name).acquire().await.unwrap();
        let waiting = thread.lock(&name, Lease::Watchdog);
        queued_and_listening(&both.server, &name, 1).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        soon("Java's entry", waiting).await.unwrap();
        waits.push(start.elapsed());
        thread.unlock(&name).await.unwrap();
    }
    both.close().await;
    report(Row::FairRustWakesJava, waits).await;
}

#[tokio::test]
async fn a_fair_release_in_java_wakes_rust() {
    let both = Both::start().await;
    let thread = both.redisson.thread().kind(Kind::Fair);
    let mut waits = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("wake:{round}");
        thread.lock(&name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(both.locks.fair_lock(&name).acquire());
        queued_and_listening(&both.server, &name, 1).await;
        let start = Instant::now();
        let unlocking = thread.unlock(&name);
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        waits.push(start.elapsed());
        unlocking.await.unwrap();
        guard.release().await.unwrap();
    }
    both.close().await;
    report(Row::FairJavaWakesRust, waits).await;
}

async fn report(row: Row, waits: Vec<Duration>) {
    let (median, longest) = median_and_longest(waits);
    assert!(median <= LIMIT, "{median:?} at the median, {longest:?} at most");
    record(row, format!("{} at the median of {ROUNDS}, {} at most", ms(median), ms(longest))).await;
}
