//! Which processes a loss ends, and when. `/proc` shows the processes.

#![cfg(target_os = "linux")]

use std::{
    fs,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::program::{
    End, QUIET, Running, code, is_free, kill, lockctl, runs, shell, state, until,
};

/// Ignores SIGTERM, as does its child, which writes heartbeats. Prints the ids of both. `$1` starts
/// the child: it is empty, or `setsid`, with which the child leaves the group.
const STUBBORN: &str = r#"trap '' TERM
    $1 sh -c 'trap "" TERM; echo $$; while :; do echo beat >> "$1"; sleep 0.02; done' - "$2" &
    echo $$; wait"#;

/// A command that does not want to end, and its child.
struct Stubborn {
    running: Running,
    processes: [String; 2],
    /// Until then, the store does not grant the lock to anybody else.
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
        .map(|number| Stubborn::start(&server, &format!("lock-{number}"), launcher, "20"))
        .collect();
    // From now on no renewal is carried out, so only the remaining leases are left.
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

/// Like the command of a nested run, which is in a separate group.
#[tokio::test]
async fn what_has_left_the_group_is_gone_before_the_lease_ends() {
    lose_the_server("setsid").await;
}

/// SIGTERM ends the shell. A process that it started in another session gets SIGTERM as well, and
/// is killed if it does not end.
#[test]
fn what_outlives_its_leader_on_a_loss_is_ended_before_lockctl() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"setsid sh -c 'trap "echo asked" TERM; echo $$; while :; do sleep 0.02; done' &
        wait"#;
    let mut running = Running::script(&url, &["--lease", "3", "a"], script);
    let worker = running.line();
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    assert_eq!(running.line(), "asked");
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
    assert!(!runs(&worker), "{end:?}");
}

/// The inner run holds another lock, so its command has a separate group. Only the outer run ends
/// it.
const NESTED: [&str; 8] = ["run", "--on-lost", "warn", "b", "--", "sh", "-c", INNER];
const INNER: &str = r#"trap "" TERM; echo $$ $PPID; exec cat > /dev/null"#;

fn nested(url: &str, arguments: &[&str]) -> (Running, [String; 2]) {
    let lockctl_path = [env!("CARGO_BIN_EXE_lockctl")];
    let all = [&["run"], arguments, &["a", "--"], &lockctl_path, &NESTED].concat();
    let mut running = Running::start(lockctl(url, &all));
    let line = running.line();
    let (command, inner) = line.split_once(' ').unwrap();
    let pids = [command.to_owned(), inner.to_owned()];
    (running, pids)
}

#[test]
fn the_command_of_a_nested_run_is_killed_with_it() {
    let server = RedisServer::start();
    let url = server.url();
    let (mut running, [command, _]) = nested(&url, &["--kill-after", "0.2"]);
    running.signal("TERM");
    until("the end of lockctl", || running.is_over());
    assert!(!runs(&command));
    assert_eq!(running.end().code, Some(137));
    assert!(is_free(&url, "a", &[]));
}

#[test]
fn the_lock_is_held_for_the_command_of_a_nested_run_that_was_killed() {
    let server = RedisServer::start();
    let url = server.url();
    let (mut running, [command, inner]) = nested(&url, &[]);
    kill("KILL", &inner);
    running.error_line_with("still run");
    assert!(runs(&command) && !is_free(&url, "a", &[]));
    running.close_stdin();
    let end = running.end();
    assert_eq!(end.code, Some(137), "{end:?}");
    assert!(!runs(&command) && is_free(&url, "a", &[]));
}

/// The group of the outer command is gone then.
#[test]
fn a_signal_ends_the_command_of_a_nested_run_that_was_killed() {
    for (signal, code) in [("TERM", 3), ("INT", 130), ("HUP", 3), ("QUIT", 131)] {
        // One each, because the lock of the inner run is not released.
        let server = RedisServer::start();
        let script = r#""$LOCKCTL" run --on-lost warn b -- sh -c 'echo $$ $PPID; exec sleep 600'
            exit 3"#;
        let mut running = Running::script(&server.url(), &["a"], script);
        let line = running.line();
        let (command, inner) = line.split_once(' ').unwrap();
        kill("KILL", inner);
        running.error_line_with("still run");
        running.signal(signal);
        until("the end of lockctl", || running.is_over());
        let end = running.end();
        assert_eq!(end.code, Some(code), "{signal}: {end:?}");
        assert!(!runs(command), "{signal}");
    }
}

/// A shell lets its background processes ignore SIGINT and SIGQUIT.
#[test]
fn a_signal_ends_the_background_process_of_a_shell_that_has_ended() {
    let server = RedisServer::start();
    for (signal, code) in [("INT", 130), ("QUIT", 131), ("TERM", 3)] {
        // The signal also ends the rest of --at-least.
        for arguments in [&["a"][..], &["--at-least", "600", signal]] {
            let script = "sleep 600 > /dev/null 2>&1 & exit 3";
            let mut running = Running::script(&server.url(), arguments, script);
            running.error_line_with("still run");
            running.signal(signal);
            until("the end of lockctl", || running.is_over());
            let end = running.end();
            assert_eq!(end.code, Some(code), "{signal}: {end:?}");
        }
    }
}

/// As in a container whose entrypoint has become `lockctl`.
#[test]
fn a_loss_does_not_end_what_a_process_beside_lockctl_has_left_behind() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"sh -c 'until [ -e go ]; do sleep 0.02; done
            sh -c "echo \$\$; exec sleep 600 > /dev/null" &' &
        exec "$LOCKCTL" run a -- sh -c 'echo inside; exec sleep 600 > /dev/null'"#;
    let mut command = shell(&url, script);
    command.current_dir(server.directory());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "inside");
    fs::write(server.directory().join("go"), "").unwrap();
    let beside = running.line();
    let parent = format!("PPid:\t{}\n", running.pid());
    until("the adoption", || {
        fs::read_to_string(format!("/proc/{beside}/status")).unwrap().contains(&parent)
    });
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    until("the end of lockctl", || running.is_over());
    let survives = runs(&beside);
    kill("KILL", &beside);
    assert_eq!(running.end().code, Some(76));
    assert!(survives);
}

/// A process that survives SIGTERM does not keep the script from ending.
#[test]
fn a_key_after_another_signal_ends_the_script_around() {
    let server = RedisServer::start();
    let script = "sh -c 'trap \"\" TERM; echo $$; exec sleep 600 > /dev/null' & exit 3";
    let mut running = Running::script(&server.url(), &["a"], script);
    let stubborn = running.line();
    running.error_line_with("still run");
    running.signal("TERM");
    running.signal("INT");
    kill("KILL", &stubborn);
    assert_eq!(running.end().code, Some(130));
}

#[test]
fn a_signal_that_the_command_outlives_does_not_reach_its_jobs_later() {
    let server = RedisServer::start();
    let script = r#"trap 'echo reloaded' HUP
        set -m
        sh -c 'trap "echo asked" HUP; echo started; until [ -e end ]; do sleep 0.02; done' &
        until [ -e go ]; do sleep 0.02; done
        exit 0"#;
    let mut command = lockctl(&server.url(), &["run", "a", "--", "bash", "-c", script]);
    command.current_dir(server.directory());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "started");
    running.signal("HUP");
    assert_eq!(running.line(), "reloaded");
    fs::write(server.directory().join("go"), "").unwrap();
    running.error_line_with("still run");
    fs::write(server.directory().join("end"), "").unwrap();
    let end = running.end();
    assert_eq!((end.code, end.stdout.as_str()), (Some(0), ""), "{end:?}");
}

/// The shell ends by the signal, and does not pass it on.
#[test]
fn a_signal_that_ends_the_command_ends_the_jobs_that_it_leaves_behind() {
    let server = RedisServer::start();
    let url = server.url();
    let jobs = "set -m; sleep 600 < /dev/null > /dev/null 2>&1 & echo $!; wait";
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut running = Running::start(lockctl(&url, &["run", "a", "--", "bash", "-c", jobs]));
        let job = running.line();
        running.signal(signal);
        until("the end of lockctl", || running.is_over());
        let end = running.end();
        assert_eq!(end.code, Some(code), "{signal}: {end:?}");
        assert!(!runs(&job) && is_free(&url, "a", &[]), "{signal}");
    }
}

/// Jobs of a shell often ignore SIGINT.
#[test]
fn jobs_are_asked_to_end_with_sigterm_if_it_has_come_although_the_command_dies_of_another() {
    let server = RedisServer::start();
    let script = r#"trap 'heard=1' TERM
        trap 'echo cleaning; until [ $heard ]; do sleep 0.02; done; trap - INT; kill -s INT $$' INT
        set -m
        sh -c 'trap "" INT; exec sleep 600 > /dev/null' &
        echo $!; while :; do sleep 0.02; done"#;
    let mut running =
        Running::start(lockctl(&server.url(), &["run", "a", "--", "bash", "-c", script]));
    let job = running.line();
    running.signal("INT");
    assert_eq!(running.line(), "cleaning");
    running.signal("TERM");
    until("the end of lockctl", || running.is_over());
    let end = running.end();
    assert_eq!(end.code, Some(130), "{end:?}");
    assert!(!runs(&job));
}

/// The inner run is in the group of the outer command, and passes the signal on. Many programs take
/// a second one for the wish to end at once.
#[test]
fn a_signal_reaches_the_command_of_a_nested_run_once() {
    let server = RedisServer::start();
    let script = r#""$LOCKCTL" run b -- sh -c 'trap "echo asked" TERM; echo ready
        until read x; [ "$x" = end ]; do :; done; echo over'; :"#;
    let mut running = Running::script(&server.url(), &["a"], script);
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    running.error_line_with("still run");
    assert_eq!(running.line(), "asked");
    running.tell("end\n");
    assert_eq!(running.line(), "over");
    assert_eq!(running.end().code, Some(143));
}

#[test]
fn a_daemon_with_a_session_of_its_own_outlives_the_lock() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "setsid sh -c 'echo $$; exec sleep 600 > /dev/null 2>&1' & cat > /dev/null";
    let mut running = Running::script(&url, &["a"], script);
    let daemon = running.line();
    let end = running.end();
    assert!(runs(&daemon));
    kill("KILL", &daemon);
    assert_eq!(end.code, Some(0), "{end:?}");
}

/// A process that has ended stays in its group until its parent collects it, which this one never
/// does.
#[test]
fn the_lock_is_not_held_for_an_ended_process_that_its_parent_does_not_collect() {
    let server = RedisServer::start();
    let url = server.url();
    // The child waits until its parent has become `sleep`, in a session of its own.
    let script = r#"(sh -c 'until grep -q sleep /proc/$PPID/comm; do sleep 0.01; done' &
        echo $! $(exec sh -c 'echo $PPID'); exec setsid sleep 600 > /dev/null 2>&1) &
        cat > /dev/null"#;
    let mut running = Running::script(&url, &["a"], script);
    let line = running.line();
    let (child, parent) = line.split_once(' ').unwrap();
    until("the end of the child", || state(child) == Some('Z'));
    running.close_stdin();
    until("the end of lockctl", || running.is_over());
    assert_eq!((state(child), runs(parent)), (Some('Z'), true));
    kill("KILL", parent);
    assert_eq!(running.end().code, Some(0));
    assert!(is_free(&url, "a", &[]));
}

/// A shell that ends with `exec lockctl` leaves its background processes to it.
#[test]
fn processes_that_are_older_than_the_command_are_left_alone() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"sleep 600 > /dev/null 2>&1 & echo $!
        exec "$LOCKCTL" run --lease 6 a -- sh -c 'echo inside; cat'"#;
    let mut running = Running::start(shell(&url, script));
    let older = running.line();
    assert_eq!(running.line(), "inside");
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    running.error_line_with("was lost");
    let end = running.end();
    assert!(runs(&older));
    kill("KILL", &older);
    assert_eq!(end.code, Some(76), "{end:?}");
}
