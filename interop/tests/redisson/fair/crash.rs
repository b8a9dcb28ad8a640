//! What those who crash cost the other side: a holder its lease, a waiter the time for which his place is kept.

use std::time::{Duration, Instant};

use lockcore::Locks;
use lockcore_interop::{Java, Kind, Lease};
use lockcore_redis::RedisBackend;

use crate::{
    death::{Process, end_of_lease, java_late, late, punctual},
    report::{Row, record},
    support::{Both, LEASE, ms, queued, queued_and_listening, soon},
};

const ROUNDS: u32 = 2;

/// For how long either side keeps a place in the queue: `queue_timeout` and `fairLockWaitTimeout`.
const PLACE: Duration = Duration::from_secs(1);

/// A lease shorter than that.
const SHORT: Duration = Duration::from_millis(400);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(250);

#[tokio::test]
async fn a_fair_rust_holder_that_is_killed_frees_the_lock_for_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread().kind(Kind::Fair);
    // A wait that is not measured: Java loads its classes for it.
    let guard = both.locks.fair_lock("first").lease(Duration::from_millis(100)).acquire().await.unwrap();
    thread.lock("first", Lease::Watchdog).await.unwrap();
    thread.unlock("first").await.unwrap();
    drop(guard);

    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("crashed:{round}");
        let mut holder = Process::holds(&both.server, &name, Some(PLACE));
        let waiting = thread.lock(&name, Lease::Watchdog);
        queued_and_listening(&both.server, &name, 1).await;
        holder.kill();
        let end = end_of_lease(&both.server, &name).await;
        soon("Java's entry", waiting).await.unwrap();
        times.push(java_late(end));
        thread.unlock(&name).await.unwrap();
    }
    both.close().await;
    record(Row::FairRustCrashes, after_lease(punctual(times))).await;
}

#[tokio::test]
async fn a_fair_java_holder_that_halts_frees_the_lock_for_rust() {
    let both = Both::start().await;
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let name = format!("crashed:{round}");
        let java = Java::start().unwrap();
        let redisson = java.connect(&both.server.url(), LEASE).await.unwrap();
        redisson.thread().kind(Kind::Fair).lock(&name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(both.locks.fair_lock(&name).acquire());
        queued_and_listening(&both.server, &name, 1).await;
        java.halt().await.unwrap();
        let end = end_of_lease(&both.server, &name).await;
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        worst = worst.max(late(end));
        guard.release().await.unwrap();
    }
    both.close().await;
    record(Row::FairJavaCrashes, after_lease(worst)).await;
}

fn after_lease(worst: Duration) -> String {
    format!("entered {} after the end of the lease at most, in {ROUNDS} crashes", ms(worst))
}

#[tokio::test]
async fn a_rust_waiter_that_is_killed_keeps_java_for_no_longer_than_its_place() {
    let both = Both::start().await;
    let thread = both.redisson.thread().kind(Kind::Fair);
    let mut measured = Vec::new();
    for lease in [SHORT, LEASE] {
        let backend = RedisBackend::connect(both.server.url()).await.unwrap();
        let locks = Locks::builder(backend).lease(lease).build().unwrap();
        let mut worst = Duration::ZERO;
        for round in 0..ROUNDS {
            let name = format!("queue:{}:{round}", lease.as_millis());
            let guard = locks.fair_lock(&name).acquire().await.unwrap();
            let mut waiter = Process::asks(&both.server, &name, Some(PLACE));
            queued_and_listening(&both.server, &name, 1).await;
            let waiting = thread.lock(&name, Lease::Watchdog);
            queued_and_listening(&both.server, &name, 2).await;
            waiter.kill();
            let killed = Instant::now();
            guard.release().await.unwrap();
            soon("Java's entry", waiting).await.unwrap();
            worst = worst.max(killed.elapsed());
            thread.unlock(&name).await.unwrap();
        }
        locks.close().await.unwrap();
        // Nobody wakes Java when the place lapses: it sleeps for what it saw left of the lease.
        assert!(worst <= PLACE.max(lease) + SLACK, "{worst:?}");
        measured.push(format!("{} at a lease of {} ms", ms(worst), lease.as_millis()));
    }
    both.close().await;
    let measured = format!(
        "after the death at most {}, in {ROUNDS} crashes each; `queue_timeout` is {} ms here",
        measured.join(", "),
        PLACE.as_millis()
    );
    record(Row::FairRustWaiterCrashes, measured).await;
}

#[tokio::test]
async fn a_java_waiter_that_halts_keeps_rust_for_what_redisson_gives_it() {
    let both = Both::start().await;
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let name = format!("queue:{round}");
        let guard = both.locks.fair_lock(&name).acquire().await.unwrap();
        let java = Java::start().unwrap();
        let redisson = java.connect_with(&both.server.url(), LEASE, Some(PLACE)).await.unwrap();
        // Never answered.
        drop(redisson.thread().kind(Kind::Fair).lock(&name, Lease::Watchdog));
        queued_and_listening(&both.server, &name, 1).await;
        let waiting = tokio::spawn(both.locks.fair_lock(&name).acquire());
        queued(&both.server, &name, 2).await;
        java.halt().await.unwrap();
        let halted = Instant::now();
        guard.release().await.unwrap();
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        worst = worst.max(halted.elapsed());
        guard.release().await.unwrap();
    }
    both.close().await;
    // Redisson counts a place from the end of the holder's lease.
    assert!(worst <= LEASE + PLACE + SLACK, "{worst:?}");
    let measured = format!(
        "entered {} after the death at most, in {ROUNDS} crashes; `fairLockWaitTimeout` is {} ms here, 5 min by default",
        ms(worst),
        PLACE.as_millis()
    );
    record(Row::FairJavaWaiterCrashes, measured).await;
}
