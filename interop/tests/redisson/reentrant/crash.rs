//! A holder that crashes frees the lock for the other side at the end of its lease.

use std::time::Duration;

use lockcore_interop::{Java, Lease};

use crate::{
    death::{Process, end_of_lease, java_late, late, punctual},
    report::{Row, record},
    support::{Both, LEASE, listened_to, ms, soon},
};

const ROUNDS: u32 = 3;

#[tokio::test]
async fn a_rust_holder_that_is_killed_frees_the_lock_for_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    // A wait that is not measured: Java loads its classes for it.
    let guard = both.locks.lock("first").lease(Duration::from_millis(100)).acquire().await.unwrap();
    thread.lock("first", Lease::Watchdog).await.unwrap();
    thread.unlock("first").await.unwrap();
    drop(guard);

    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("crashed:{round}");
        let mut holder = Process::holds(&both.server, &name, None);
        let waiting = thread.lock(&name, Lease::Watchdog);
        listened_to(&both.server, &name, 1).await;
        holder.kill();
        let end = end_of_lease(&both.server, &name).await;
        soon("Java's entry", waiting).await.unwrap();
        times.push(java_late(end));
        thread.unlock(&name).await.unwrap();
    }
    both.close().await;
    record(Row::RustCrashes, measured(punctual(times))).await;
}

#[tokio::test]
async fn a_java_holder_that_halts_frees_the_lock_for_rust() {
    let both = Both::start().await;
    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let name = format!("crashed:{round}");
        // A process of its own, since it will be dead.
        let java = Java::start().unwrap();
        let redisson = java.connect(&both.server.url(), LEASE).await.unwrap();
        redisson.thread().lock(&name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(both.locks.lock(&name).acquire());
        listened_to(&both.server, &name, 1).await;
        java.halt().await.unwrap();
        let end = end_of_lease(&both.server, &name).await;
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        worst = worst.max(late(end));
        guard.release().await.unwrap();
    }
    both.close().await;
    record(Row::JavaCrashes, measured(worst)).await;
}

fn measured(worst: Duration) -> String {
    format!("entered {} after the end of the lease at most, in {ROUNDS} crashes", ms(worst))
}
