//! Which processes a loss ends, and when. `/proc` tells which there are.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::program::{End, QUIET, Running, code, kill, lockctl, runs, until};

/// Ignores SIGTERM, as its child does, which writes heartbeats. Prints the ids of both. `$1` is
/// what starts the child: nothing, or `setsid`, with which it leaves the group.
const STUBBORN: &str = r#"trap '' TERM
    $1 sh -c 'trap "" TERM; echo $$; while :; do echo beat >> "$1"; sleep 0.02; done' - "$2" &
    echo $$; wait"#;

/// A command that does not want to end, and its child.
struct Stubborn {
    running: Running,
    processes: [String; 2],
    /// Until then, the store grants the lock to nobody else.
    lease_end: Instant,
    last_seen: Instant,
}

impl Stubborn {
    fn start(server: &RedisServer, name: &str, launcher: &str, lease: &str) -> Self {
        let beats = server.directory().join(format!("{name}.beats"));
        let beats = beats.to_str().unwrap();
        let all = ["run", "--lease", lease, name, "--", "sh", "-c", STUBBORN, "-", launcher, beats];
        let mut running = Running::start(lockctl(&server.url(), &all));
        let processes = [running.line(), running.line()];
        until("a heartbeat", || fs::metadata(beats).is_ok_and(|file| file.len() > 0));
        let now = Instant::now();
        Self { running, processes, lease_end: now, last_seen: now }
    }

    fn is_there(&self) -> bool {
        self.processes.iter().any(|pid| runs(pid))
    }
}

/// Kills the server under ten commands at a time.
async fn lose_the_server(launcher: &str) {
    let _quiet = QUIET.lock().await;
    let mut server = RedisServer::start();
    let mut all: Vec<Stubborn> = (0..10)
        .map(|number| Stubborn::start(&server, &format!("lock-{number}"), launcher, "6"))
        .collect();
    // From now on no renewal is carried out, so that what is left of the leases is all there is.
    let paused: String = server.query(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    assert_eq!(paused, "OK");
    for (number, stubborn) in all.iter_mut().enumerate() {
        let asked = Instant::now();
        let left: u64 = server.query(&["PTTL", &format!("lock-{number}")]).await;
        stubborn.lease_end = asked + Duration::from_millis(left);
    }
    server.kill();
    until("the end of the processes", || {
        let now = Instant::now();
        let mut any = false;
        for stubborn in &mut all {
            if stubborn.is_there() {
                stubborn.last_seen = now;
                any = true;
            }
        }
        !any
    });
    for Stubborn { running, lease_end, last_seen, .. } in all {
        assert!(last_seen < lease_end, "{:?} too late", last_seen - lease_end);
        let End { code, stderr, .. } = running.end();
        assert_eq!(code, Some(76), "{stderr}");
        assert!(stderr.contains("ending the command"), "{stderr}");
    }
}

#[tokio::test]
async fn the_whole_group_is_gone_before_the_lease_ends() {
    lose_the_server("").await;
}

/// As the command of a nested run does that is in a group of its own.
#[tokio::test]
async fn what_has_left_the_group_is_gone_before_the_lease_ends() {
    lose_the_server("setsid").await;
}

/// A shell that ends with `exec lockctl` leaves its processes in the background to it.
#[test]
fn processes_that_are_older_than_the_command_are_left_alone() {
    let server = RedisServer::start();
    let url = server.url();
    let mut shell = std::process::Command::new("sh");
    let script = r#"sleep 600 > /dev/null 2>&1 & echo $!
        exec "$LOCKCTL" run --lease 1.5 a -- sh -c 'echo inside; cat'"#;
    shell.args(["-c", script]);
    shell.env("LOCKCTL_URL", &url).env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"));
    shell.env_remove("LOCKCTL_HELD");
    let mut running = Running::start(shell);
    let older = running.line();
    assert_eq!(running.line(), "inside");
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    running.error_line_with("was lost");
    let end = running.end();
    assert!(runs(&older));
    kill("KILL", &older);
    assert_eq!(end.code, Some(76), "{end:?}");
}
