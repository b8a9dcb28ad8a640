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

/// When the server will free the lock, whose holder is dead.
pub(crate) async fn end_of_lease(server: &RedisServer, name: &str) -> Instant {
    let asked = Instant::now();
    let left: i64 = server.query(&["PTTL", name]).await;
    let left = u64::try_from(left).expect("the lease of the dead holder still runs");
    asked + Duration::from_millis(left)
}

/// How late somebody is who enters now: not early, and within the limit.
pub(crate) fn late(end: Instant) -> Duration {
    let now = Instant::now();
    // The server rounds what is left to milliseconds.
    assert!(now + Duration::from_millis(1) >= end, "{:?} too early", end - now);
    let late = now.saturating_duration_since(end);
    assert!(late <= LIMIT, "{late:?} after the end of the lease");
    late
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
