//! Processes that die with a lock, or while they wait for one, and what the others notice of it.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::support::LEASE;

/// After the end of the lease.
const LIMIT: Duration = Duration::from_millis(100);

/// What a virtual machine that collects its garbage at that very moment may be late by.
const JAVA_AT_WORST: Duration = Duration::from_secs(1);

/// When the server will free the lock, whose holder is dead.
pub(crate) async fn end_of_lease(server: &RedisServer, name: &str) -> Instant {
    let asked = Instant::now();
    let left: i64 = server.query(&["PTTL", name]).await;
    let left = u64::try_from(left).expect("the lease of the dead holder still runs");
    asked + Duration::from_millis(left)
}

/// How late we are who enter now: not early, and within the limit.
pub(crate) fn late(end: Instant) -> Duration {
    let late = not_early(end);
    assert!(late <= LIMIT, "{late:?} after the end of the lease");
    late
}

/// How late Java is that enters now. It is only as punctual as its virtual machine, so it is judged in the middle of several times:
/// see [`punctual`].
pub(crate) fn java_late(end: Instant) -> Duration {
    let late = not_early(end);
    assert!(late <= JAVA_AT_WORST, "{late:?} after the end of the lease");
    late
}

/// The longest of several times that Java was late; the one in their middle is within the limit.
pub(crate) fn punctual(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    assert!(times[times.len() / 2] <= LIMIT, "{times:?} after the ends of the leases");
    times[times.len() - 1]
}

fn not_early(end: Instant) -> Duration {
    let now = Instant::now();
    // The server rounds what is left to milliseconds.
    assert!(now + Duration::from_millis(1) >= end, "{:?} too early", end - now);
    now.saturating_duration_since(end)
}

/// A process that takes a lock and keeps it until it is killed: `src/bin/holder.rs`.
pub(crate) struct Process(Child);

impl Process {
    /// It has the lock when this returns; a fair one, if there is a queue timeout.
    pub(crate) fn holds(server: &RedisServer, name: &str, queue_timeout: Option<Duration>) -> Self {
        let mut process = Self::asks(server, name, queue_timeout);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("held "), "{line:?}");
        process
    }

    /// It may have to wait for the lock.
    pub(crate) fn asks(server: &RedisServer, name: &str, queue_timeout: Option<Duration>) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_holder"))
            .args([&server.url(), name, &LEASE.as_millis().to_string()])
            .args(queue_timeout.map(|timeout| timeout.as_millis().to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(process)
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it is dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
