//! A holder that crashes frees the lock for the other side at the end of its lease.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lockcore_interop::{Java, Lease};
use lockcore_testkit::RedisServer;

use crate::{
    report::{Row, record},
    support::{Both, LEASE, listened_to, ms, soon},
};

const ROUNDS: u32 = 3;

/// After the end of the lease.
const LIMIT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_rust_holder_that_is_killed_frees_the_lock_for_java() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    // A wait that is not measured: Java loads its classes for it.
    let guard = both.locks.lock("first").lease(Duration::from_millis(100)).acquire().await.unwrap();
    thread.lock("first", Lease::Watchdog).await.unwrap();
    thread.unlock("first").await.unwrap();
    drop(guard);

    let mut worst = Duration::ZERO;
    for round in 0..ROUNDS {
        let name = format!("crashed:{round}");
        let mut holder = Holder::start(&both.server, &name);
        let waiting = thread.lock(&name, Lease::Watchdog);
        listened_to(&both.server, &name, 1).await;
        holder.kill();
        let end = end_of_lease(&both.server, &name).await;
        soon("Java's entry", waiting).await.unwrap();
        worst = worst.max(late(end));
        thread.unlock(&name).await.unwrap();
    }
    both.close().await;
    record(Row::RustCrashes, measured(worst)).await;
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

/// When the server will free the lock, whose holder is dead.
async fn end_of_lease(server: &RedisServer, name: &str) -> Instant {
    let asked = Instant::now();
    let left: i64 = server.query(&["PTTL", name]).await;
    let left = u64::try_from(left).expect("the lease of the dead holder still runs");
    asked + Duration::from_millis(left)
}

/// How late somebody is who enters now: not early, and within the limit.
fn late(end: Instant) -> Duration {
    let now = Instant::now();
    // The server rounds what is left to milliseconds.
    assert!(now + Duration::from_millis(1) >= end, "{:?} too early", end - now);
    let late = now.saturating_duration_since(end);
    assert!(late <= LIMIT, "{late:?} after the end of the lease");
    late
}

fn measured(worst: Duration) -> String {
    format!("entered {} after the end of the lease at most, in {ROUNDS} crashes", ms(worst))
}

/// A process that holds a lock until it is killed: `src/bin/holder.rs`.
struct Holder(Child);

impl Holder {
    fn start(server: &RedisServer, name: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_holder"))
            .args([&server.url(), name, &LEASE.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("held "), "{line:?}");
        Self(process)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // An error means that it is dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
