//! The fate of the command when `lockctl` is stopped or killed, and cannot act itself.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::program::{QUIET, Running, is_free, kill, lockctl, runs, state, until};

/// Ignores all signals that ask it to end or to stop, except SIGSTOP. Prints its id. It starts no
/// process: a shell that waits in vfork(2) for a child which is stopped before its exec is not
/// shown as stopped itself.
const STUBBORN: &str = "trap '' TERM TSTP; echo $$; exec sleep 600";

/// The guard of `lockctl`. Its exec, which gives it its name, may still be going on when the command
/// runs.
fn started_guard_of(running: &Running) -> String {
    let mut guard = None;
    until("a guard", || {
        guard = guard_of(running);
        guard.is_some()
    });
    guard.unwrap()
}

/// The guard of `lockctl`, if it has one.
fn guard_of(running: &Running) -> Option<String> {
    let parent = running.pid().to_string();
    let processes = fs::read_dir("/proc").unwrap();
    let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    pids.find(|pid| {
        let Ok(words) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else { return false };
        let mut words = words.split('\0');
        words.next() == Some("lockctl-guard") && words.next() == Some(&parent)
    })
}

/// The output is read as soon as the command exists. A moment later, the guard is told of its
/// group, and `lockctl` waits.
fn until_guarded(running: &Running) {
    let own = running.pid().to_string();
    until("lockctl to wait", || state(&own) == Some('S'));
}

/// Returns `true` if the process has blocked SIGTERM. A guard does so first of all, but after its
/// exec.
fn blocks_signals(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & 1 << 14 != 0)
}

/// The time at which the store may grant `name` to another owner.
async fn end_of_lease(server: &RedisServer, name: &str) -> Instant {
    let asked = Instant::now();
    let left: i64 = server.query(&["PTTL", name]).await;
    asked + Duration::from_millis(u64::try_from(left).expect("a lease"))
}

/// Waits for the end of the process, and returns its time.
fn end_of(pid: &str) -> Instant {
    let mut last_seen = Instant::now();
    until("the end of the command", || {
        let now = Instant::now();
        let is_there = runs(pid);
        if is_there {
            last_seen = now;
        }
        !is_there
    });
    last_seen
}

/// SIGSTOP cannot be caught.
#[test]
fn a_command_stands_still_while_lockctl_does() {
    let server = RedisServer::start();
    let mut running = Running::script(&server.url(), &["--kill-after", "0", "a"], STUBBORN);
    let command = running.line();
    until_guarded(&running);
    for _ in 0..3 {
        running.signal("STOP");
        until("the stop of the command", || state(&command) == Some('T'));
        // A user who continues only the command does not know that nobody renews.
        kill("CONT", &command);
        until("the stop of the command", || state(&command) == Some('T'));
        running.signal("CONT");
        until("the command to go on", || matches!(state(&command), Some('S' | 'R')));
    }
    running.signal("TERM");
    assert_eq!(running.end().code, Some(137));
}

/// Leaves a job with a process group of its own behind, and prints its id.
const JOB: &str = "set -m; sleep 600 < /dev/null > /dev/null 2>&1 & echo $!; exit 0";

/// `lockctl run` whose command has ended and has left a job behind, and the job.
fn with_job(url: &str, arguments: &[&str]) -> (Running, String) {
    let all = [&["run"], arguments, &["a", "--", "bash", "-c", JOB]].concat();
    let mut running = Running::start(lockctl(url, &all));
    let job = running.line();
    running.error_line_with("still run");
    (running, job)
}

#[test]
fn a_job_outside_the_group_stands_still_while_lockctl_does() {
    let server = RedisServer::start();
    let (running, job) = with_job(&server.url(), &[]);
    for _ in 0..3 {
        running.signal("STOP");
        until("the stop of the job", || state(&job) == Some('T'));
        running.signal("CONT");
        until("the job to go on", || matches!(state(&job), Some('S' | 'R')));
    }
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0));
    assert!(!runs(&job));
}

#[test]
fn a_job_that_somebody_else_has_stopped_does_not_go_on_with_lockctl() {
    let server = RedisServer::start();
    let jobs = format!("set -m; sleep 600 < /dev/null > /dev/null 2>&1 & echo $!; {JOB}");
    let all = ["run", "a", "--", "bash", "-c", &jobs];
    let mut running = Running::start(lockctl(&server.url(), &all));
    let [stopped, job] = [running.line(), running.line()];
    running.error_line_with("still run");
    kill("STOP", &stopped);
    until("the stop of one job", || state(&stopped) == Some('T'));
    running.signal("STOP");
    until("the stop of the other", || state(&job) == Some('T'));
    running.signal("CONT");
    until("the job to go on", || matches!(state(&job), Some('S' | 'R')));
    assert_eq!(state(&stopped), Some('T'));
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0));
    assert!(!runs(&stopped) && !runs(&job));
}

/// Its lease may end earlier, and only its guard knows when.
#[test]
fn the_guard_of_a_nested_run_is_not_stopped_with_the_outer_run() {
    let _quiet = QUIET.blocking_lock();
    let server = RedisServer::start();
    let url = server.url();
    let script = r#""$LOCKCTL" run --lease 10 b -- sh -c 'echo $$ $PPID; exec sleep 600'; :"#;
    let mut running = Running::script(&url, &["--lease", "60", "a"], script);
    let line = running.line();
    let (command, inner) = line.split_once(' ').unwrap();
    until("the inner lockctl to wait", || state(inner) == Some('S'));
    running.signal("STOP");
    until("the stop of the command", || state(command) != Some('S'));
    until("the end of the inner lease", || is_free(&url, "b", &[]));
    assert!(!runs(command), "it has ended before somebody else could enter");
    running.signal("CONT");
    assert_eq!(running.end().code, Some(0));
}

#[tokio::test]
async fn a_stopped_lockctl_does_not_keep_a_job_outside_the_group_beyond_the_lease() {
    let _quiet = QUIET.lock().await;
    let server = RedisServer::start();
    let (running, job) = with_job(&server.url(), &["--lease", "6"]);
    running.signal("STOP");
    let own = running.pid().to_string();
    until("the stop", || state(&own) == Some('T'));
    let end_of_lease = end_of_lease(&server, "a").await;
    let end_of_job = end_of(&job);
    assert!(end_of_job < end_of_lease, "{:?} too late", end_of_job - end_of_lease);
    until("the end of the lease", || is_free(&server.url(), "a", &[]));
    running.signal("CONT");
    assert_eq!(running.end().code, Some(76));
}

#[tokio::test]
async fn a_stopped_lockctl_does_not_keep_its_command_beyond_the_lease() {
    let _quiet = QUIET.lock().await;
    let server = RedisServer::start();
    let mut running = Running::script(&server.url(), &["--lease", "6", "a"], STUBBORN);
    let command = running.line();
    until_guarded(&running);
    running.signal("STOP");
    let own = running.pid().to_string();
    until("the stop", || state(&own) == Some('T'));
    let end_of_lease = end_of_lease(&server, "a").await;
    let end_of_command = end_of(&command);
    assert!(end_of_command < end_of_lease, "{:?} too late", end_of_command - end_of_lease);
    until("the end of the lease", || is_free(&server.url(), "a", &[]));
    running.signal("CONT");
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
    assert!(end.stderr.contains("was lost"), "{end:?}");
}

/// The store still has the hold then, so that nothing else tells of a loss.
#[test]
fn a_command_that_the_guard_has_killed_was_lost_even_if_lockctl_goes_on_before_the_deadline() {
    let _quiet = QUIET.blocking_lock();
    let server = RedisServer::start();
    let arguments = ["--lease", "10", "a"];
    let mut running = Running::script(&server.url(), &arguments, STUBBORN);
    let command = running.line();
    until_guarded(&running);
    running.signal("STOP");
    until("the end of the command", || !runs(&command));
    running.signal("CONT");
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
    // A busy machine may continue it after the deadline.
    let reasons = ["was killed because", "ending the command"];
    assert!(reasons.iter().any(|reason| end.stderr.contains(reason)), "{end:?}");
    assert!(is_free(&server.url(), "a", &[]));
}

#[tokio::test]
async fn the_command_of_a_killed_lockctl_ends_before_the_lease() {
    let _quiet = QUIET.lock().await;
    let server = RedisServer::start();
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.02; done";
    for arguments in [&["--lease", "20", "a"][..], &["--kill-after", "2", "a"]] {
        let mut running = Running::script(&server.url(), arguments, script);
        let command = running.line();
        until_guarded(&running);
        let guard = started_guard_of(&running);
        running.signal("KILL");
        let end_of_lease = end_of_lease(&server, "a").await;
        assert_eq!(running.line(), "asked");
        let end_of_command = end_of(&command);
        assert!(end_of_command < end_of_lease, "{:?} too late", end_of_command - end_of_lease);
        until("the end of the guard", || !runs(&guard));
        let _: i64 = server.query(&["DEL", "a"]).await;
    }
}

/// Its command is not in the group that the guard of the outer run kills.
#[test]
fn a_run_that_is_started_after_the_outer_one_was_killed_ends_with_the_outer_group() {
    let _quiet = QUIET.blocking_lock();
    let server = RedisServer::start();
    let url = server.url();
    let inner = r#"trap '"$LOCKCTL" run --lease 30 b -- sh -c "trap : TERM; echo \$\$; while :; do sleep 0.02; done"' TERM
        echo ready; while :; do sleep 0.02; done"#;
    let mut running = Running::script(&url, &["--lease", "6", "a"], inner);
    assert_eq!(running.line(), "ready");
    until_guarded(&running);
    running.signal("KILL");
    let command = running.line();
    until("the end of the outer lease", || is_free(&url, "a", &[]));
    assert!(!runs(&command), "it runs on although the outer lock is free");
}

/// `lockctl` renews all the time, so the messages that the guard got meanwhile are outdated.
#[test]
fn a_guard_that_stood_still_kills_nothing() {
    let server = RedisServer::start();
    let script = "echo $$; read go; echo alive";
    let arguments = ["--lease", "3", "--kill-after", "0", "a"];
    let mut running = Running::script(&server.url(), &arguments, script);
    let command = running.line();
    let guard = started_guard_of(&running);
    kill("STOP", &guard);
    until("the stop of the guard", || state(&guard) == Some('T'));
    let began = Instant::now();
    until("the end of a lease", || began.elapsed() > Duration::from_secs(5));
    kill("CONT", &guard);
    let continued = Instant::now();
    until("several looks of the guard", || continued.elapsed() > Duration::from_secs(1));
    assert!(runs(&command));
    running.tell("go\n");
    assert_eq!(running.line(), "alive");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_loss_that_is_a_warning_only_has_no_guard() {
    let server = RedisServer::start();
    let arguments = ["--on-lost", "warn", "a"];
    let script = "echo $$; read go; echo alive";
    let mut running = Running::script(&server.url(), &arguments, script);
    let command = running.line();
    assert_eq!(guard_of(&running), None);
    running.signal("KILL");
    until("the end of lockctl", || running.is_over());
    assert!(runs(&command));
    running.tell("go\n");
    assert_eq!(running.line(), "alive");
}

#[test]
fn the_guard_is_neither_in_the_way_nor_left_behind() {
    let server = RedisServer::start();
    let url = server.url();
    // Signals to it have no effect, and neither does its end.
    for signal in ["TERM", "HUP", "STOP", "KILL"] {
        let running = Running::inside(&url, &["a"]);
        let guard = started_guard_of(&running);
        until("the guard to block signals", || blocks_signals(&guard));
        kill(signal, &guard);
        if signal == "KILL" {
            until("the end of the guard", || !runs(&guard));
        }
        let end = running.end();
        let is_told = end.stderr.contains("the guard has ended");
        assert_eq!((end.code, is_told), (Some(0), signal == "KILL"), "{signal}: {end:?}");
        assert!(is_told || end.stderr.is_empty(), "{signal}: {end:?}");
        until("the end of the guard", || !runs(&guard));
        assert!(is_free(&url, "a", &[]));
    }
}
