//! The cost of a crashed waiter for the other side: the time for which its place is kept.

use std::time::{Duration, Instant};

use lockcore::Locks;
use lockcore_interop::{Java, Kind, Lease};
use lockcore_redis::RedisBackend;

use crate::{
    crash::Process,
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, SLACK, listened_to, ms, queued, soon},
};

const ROUNDS: u32 = 2;

/// How long either side keeps a place in the queue: `queue_timeout` and `fairLockWaitTimeout`.
const PLACE: Duration = Duration::from_secs(2);

/// A lease shorter than that.
const SHORT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_rust_waiter_that_is_killed_keeps_java_for_no_longer_than_its_place() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Fair);
    let mut measured = Vec::new();
    for lease in [SHORT, LEASE] {
        let backend = RedisBackend::connect(both.servers.url()).await.unwrap();
        let locks = Locks::builder(backend).lease(lease).build().unwrap();
        let mut worst = Duration::ZERO;
        for round in 0..ROUNDS {
            let name = format!("queue:{}:{round}", lease.as_millis());
            let guard = locks.fair_lock(&name).acquire().await.unwrap();
            let mut waiter = Process::asks(&both.servers, Kind::Fair, &name, Some(PLACE));
            listened_to(&both.servers, Kind::Fair, &name, 1).await;
            let waiting = thread.acquire(&name, Lease::Watchdog);
            listened_to(&both.servers, Kind::Fair, &name, 2).await;
            waiter.kill();
            let killed = Instant::now();
            guard.release().await.unwrap();
            soon("Java's entry", waiting).await.unwrap();
            worst = worst.max(killed.elapsed());
            thread.release(&name).await.unwrap();
        }
        locks.close().await.unwrap();
        // Nobody wakes Java when the place lapses: it sleeps for the remaining lease that it saw.
        assert!(worst <= PLACE.max(lease) + SLACK, "{worst:?}");
        measured.push(format!("{} at a lease of {} ms", ms(worst), lease.as_millis()));
    }
    both.close().await;
    let measured = format!(
        "after the death at most {}, in {ROUNDS} crashes each; `queue_timeout` is {} ms here",
        measured.join(", "),
        PLACE.as_millis()
    );
    record(Section::Fair, Promise::RustWaiterCrashes, measured).await;
}

#[tokio::test]
async fn a_java_waiter_that_halts_keeps_rust_for_what_redisson_gives_it() {
    let both = Both::start().await;
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let name = format!("queue:{round}");
        let guard = both.locks.fair_lock(&name).acquire().await.unwrap();
        let java = Java::start().unwrap();
        let configuration = both.servers.configuration(LEASE).fair_wait(PLACE);
        let redisson = java.connect(&configuration).await.unwrap();
        // This request is never answered.
        drop(redisson.thread_for(Kind::Fair).acquire(&name, Lease::Watchdog));
        listened_to(&both.servers, Kind::Fair, &name, 1).await;
        let waiting = tokio::spawn(both.locks.fair_lock(&name).acquire());
        queued(&both.servers, &name, 2).await;
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
    record(Section::Fair, Promise::JavaWaiterCrashes, measured).await;
}
