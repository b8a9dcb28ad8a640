//! Processes that die with a lock, or while they wait for one, and the effect on others.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore_interop::{Java, Kind, Lease, Redisson};
use tokio::task::JoinSet;

use crate::{
    deployment::Deployment,
    report::{Promise, record_on},
    section::Section,
    support::{Both, LEASE, listened_to, ms, soon},
};

/// The limit of the median time after the end of the lease.
const LIMIT: Duration = Duration::from_millis(250);

/// The limit of each single time, shorter than any other way in than the end of the lease.
const AT_WORST: Duration = Duration::from_secs(1);

/// The number of rounds of all pairs of a section together.
const ROUNDS: usize = 3;

pub(crate) async fn of_rust(section: Section, servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    // These waits are not measured: Java loads its classes for them.
    for (name, (holder, waiter)) in rounds(section, "first") {
        let guard = holder
            .ours(&both.locks, &name)
            .lease(Duration::from_millis(100))
            .acquire()
            .await
            .unwrap();
        let thread = both.redisson.thread_for(waiter);
        thread.acquire(&name, Lease::Watchdog).await.unwrap();
        thread.release(&name).await.unwrap();
        drop(guard);
    }

    let mut crashes = JoinSet::new();
    for (name, (holder, waiter)) in rounds(section, "crashed") {
        let mut process = Process::holds(&both.servers, holder, &name);
        let waiting = both.redisson.thread_for(waiter).acquire(&name, Lease::Watchdog);
        listened_to(&both.servers, waiter, &name, 1).await;
        process.kill();
        let end = end_of_lease(&both.servers, holder, &name).await;
        crashes.spawn(async move {
            soon("Java's entry", waiting).await.unwrap();
            late(end)
        });
    }
    let measured = measured(crashes).await;
    both.close().await;
    record_on(servers.topology(), section, Promise::RustCrashes, measured).await;
}

pub(crate) async fn of_java(section: Section, servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let (java, client) = another_java(&both.servers).await;
    let mut waits = Vec::new();
    for (name, (holder, waiter)) in rounds(section, "crashed") {
        held_by(&client, holder, &name).await;
        let waiting = tokio::spawn(waiter.ours(&both.locks, &name).acquire());
        listened_to(&both.servers, waiter, &name, 1).await;
        waits.push((name, holder, waiting));
    }
    java.halt().await.unwrap();
    let mut crashes = JoinSet::new();
    for (name, holder, waiting) in waits {
        let end = end_of_lease(&both.servers, holder, &name).await;
        assert!(!waiting.is_finished(), "what was asked for is the lease of Java");
        crashes.spawn(async move {
            let guard = soon("our entry", waiting).await.unwrap().unwrap();
            let late = late(end);
            guard.release().await.unwrap();
            late
        });
    }
    let measured = measured(crashes).await;
    both.close().await;
    record_on(servers.topology(), section, Promise::JavaCrashes, measured).await;
}

/// The pairs in turn, each time under another name.
fn rounds(section: Section, what: &str) -> impl Iterator<Item = (String, (Kind, Kind))> {
    let pairs = section.pairs().iter().cycle().copied();
    (0..ROUNDS).zip(pairs).map(move |(round, pair)| (format!("{what}:{round}"), pair))
}

/// The delays of those who entered, for the table.
async fn measured(crashes: JoinSet<Duration>) -> String {
    let mut times = crashes.join_all().await;
    times.sort_unstable();
    assert!(times[times.len() / 2] <= LIMIT, "{times:?} after the ends of the leases");
    format!(
        "entered {} after the end of the lease at the median of {ROUNDS} crashes, {} at most",
        ms(times[times.len() / 2]),
        ms(times[times.len() - 1])
    )
}

/// A separate Java process, which will be killed, and a client in it.
pub(crate) async fn another_java(servers: &Deployment) -> (Java, Redisson) {
    let java = Java::start().unwrap();
    let redisson = java.connect(&servers.configuration(LEASE)).await.unwrap();
    (java, redisson)
}

/// Makes a thread of that client hold the lock.
pub(crate) async fn held_by(client: &Redisson, kind: Kind, name: &str) {
    let thread = client.thread_for(kind);
    thread.prepare(name).await.unwrap();
    // Permits are not renewed: their lease must last until the process is halted.
    let lease = if kind.limit().is_some() { Lease::Fixed(2 * LEASE) } else { Lease::Watchdog };
    thread.acquire(name, lease).await.unwrap();
}

/// The time at which the server will free the lock of a dead holder.
async fn end_of_lease(servers: &Deployment, kind: Kind, name: &str) -> Instant {
    let server = servers.server_of(name).await;
    let asked = Instant::now();
    let left: i64 = match kind {
        Kind::Permits(_) => {
            let leases = format!("{{{name}}}:timeout");
            let (_, end): (Vec<u8>, i64) =
                server.query(&["ZRANGE", &leases, "0", "0", "WITHSCORES"]).await;
            let (seconds, micros): (i64, i64) = server.query(&["TIME"]).await;
            end - (seconds * 1000 + micros / 1000)
        }
        _ => server.query(&["PTTL", name]).await,
    };
    let left = u64::try_from(left).expect("the lease of the dead holder still runs");
    asked + Duration::from_millis(left)
}

/// The delay of an entry at this moment. A busy machine adds its own delay, and so does the garbage
/// collection of a virtual machine, so the median of several is checked: see [`measured`].
fn late(end: Instant) -> Duration {
    let now = Instant::now();
    // The server rounds the remaining lease to milliseconds.
    assert!(now + Duration::from_millis(1) >= end, "{:?} too early", end - now);
    let late = now.saturating_duration_since(end);
    assert!(late <= AT_WORST, "{late:?} after the end of the lease");
    late
}

/// A process that acquires a lock and keeps it until it is killed: `src/bin/holder.rs`.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process that has the lock when this returns.
    pub(crate) fn holds(servers: &Deployment, kind: Kind, name: &str) -> Self {
        let mut process = Self::asks(servers, kind, name, None);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("held "), "{line:?}");
        process
    }

    /// Starts a process that may have to wait for the lock.
    pub(crate) fn asks(
        servers: &Deployment,
        kind: Kind,
        name: &str,
        queue_timeout: Option<Duration>,
    ) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_holder"))
            .args([&servers.url(), kind.wire(), name, &LEASE.as_millis().to_string()])
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
        // An error means that the process is dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
