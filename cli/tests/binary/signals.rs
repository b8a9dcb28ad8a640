//! Signals, while `lockctl run` waits and while its command runs.

use std::time::{Duration, Instant};

use lockcore_testkit::RedisServer;

use crate::program::{Running, is_free, shell, shown, until};

fn queue_length(url: &str) -> usize {
    shown(url, "a")["queue"].as_array().map_or(0, Vec::len)
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = RedisServer::start();
    let script = r#"for name in INT HUP QUIT USR1 USR2; do trap "echo $name" $name; done
        trap 'echo TERM; exit 7' TERM
        echo ready; while :; do sleep 0.02; done"#;
    let mut running = Running::script(&server.url(), &["a"], script);
    assert_eq!(running.line(), "ready");
    for signal in ["INT", "HUP", "QUIT", "USR1", "USR2", "TERM"] {
        running.signal(signal);
        assert_eq!(running.line(), signal);
    }
    assert_eq!(running.end().code, Some(7));
    assert!(is_free(&server.url(), "a", &[]));
}

#[test]
fn a_signal_that_ends_the_command_ends_lockctl() {
    let server = RedisServer::start();
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR2", 12)] {
        // Not a command that ends with its stdin, because that ends with this test's wait.
        let script = "ulimit -c 0; echo ready; exec sleep 600";
        let mut running = Running::script(&server.url(), &["a"], script);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.end().signal, Some(number), "{signal}");
    }
}

/// That of the command is its own affair.
#[test]
fn the_death_of_lockctl_dumps_no_core() {
    use std::os::unix::process::ExitStatusExt;

    let server = RedisServer::start();
    let script = "ulimit -c unlimited; exec \"$LOCKCTL\" run a -- sh -c 'kill -s QUIT $$'";
    let mut shell = shell(&server.url(), script);
    let status = shell.current_dir(server.directory()).status().unwrap();
    assert_eq!((status.signal(), status.core_dumped()), (Some(3), false));
}

#[test]
fn a_command_that_does_not_end_is_killed() {
    let server = RedisServer::start();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::script(&server.url(), &["--kill-after", "0.2", "a"], script);
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    assert_eq!(running.end().code, Some(137));
    assert!(is_free(&server.url(), "a", &[]));
}

/// The end of the command is no promise that the lock is free.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_while_the_release_is_not_answered_is_answered_with_how_long_the_lock_is_kept() {
    use crate::program::state;

    for (signal, code) in [("TERM", 3), ("INT", 130)] {
        let server = RedisServer::start();
        let script = "echo $$; cat > /dev/null; exit 3";
        let mut running = Running::script(&server.url(), &["a"], script);
        let command = running.line();
        server.freeze();
        running.close_stdin();
        until("the end of the command", || state(&command).is_none());
        running.signal(signal);
        let end = running.end();
        assert_eq!(end.code, Some(code), "{signal}: {end:?}");
        assert!(end.stderr.contains("was not confirmed"), "{signal}: {end:?}");
        assert!(end.stderr.contains("frees it within 30s"), "{signal}: {end:?}");
    }
}

/// Without a command, there is nothing to wait for. The first waiter of another process must not
/// have to wait until the place of this one lapses, which takes 5 s.
#[test]
fn a_signal_while_waiting_leaves_no_place_in_the_queue() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["--fair", "a"]);
    let mut fastest = Duration::MAX;
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1"] {
        let waiter = Running::script(&url, &["--fair", "a"], "echo entered");
        until("the place in the queue", || queue_length(&url) == 1);
        let sent = Instant::now();
        waiter.signal(signal);
        let end = waiter.end();
        fastest = fastest.min(sent.elapsed());
        assert!(end.signal.is_some() && end.stdout.is_empty(), "{end:?}");
        assert_eq!(queue_length(&url), 0, "{signal}");
        assert!(sent.elapsed() < Duration::from_secs(4), "the place may have lapsed");
    }
    // The fastest of several, because the machine may be busy.
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
    assert_eq!(holder.end().code, Some(0));
}

#[test]
fn a_waiter_that_gives_up_lets_the_next_one_in() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["--fair", "a"]);
    let first = Running::script(&url, &["--fair", "a"], "echo first");
    until("the first place", || queue_length(&url) == 1);
    let mut second = Running::script(&url, &["--fair", "a"], "echo second");
    until("the second place", || queue_length(&url) == 2);
    first.signal("TERM");
    assert_eq!(first.end().code, Some(143));
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(second.line(), "second");
    assert_eq!(second.end().code, Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_that_was_ignored_before_stays_ignored() {
    use crate::program::lockctl;

    let server = RedisServer::start();
    let mut command = std::process::Command::new("sh");
    let script = r#"trap '' HUP
        exec "$LOCKCTL" run a -- sh -c 'echo ready; read go; echo alive'"#;
    command.args(["-c", script]);
    for (name, value) in lockctl(&server.url(), &[]).get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut running = Running::start(command);
    assert_eq!(running.line(), "ready");
    running.signal("HUP");
    running.tell("go\n");
    assert_eq!(running.line(), "alive");
    assert_eq!(running.end().code, Some(0));
}

/// `lockctl run` in a process group of its own, as a shell starts it. Others may be orphaned, and are
/// not stopped then.
#[cfg(target_os = "linux")]
fn job(url: &str, arguments: &[&str], script: &str) -> Running {
    use std::os::unix::process::CommandExt;

    use crate::program::lockctl;

    let all = [&["run"], arguments, &["--", "sh", "-c", script]].concat();
    let mut command = lockctl(url, &all);
    command.process_group(0);
    Running::start(command)
}

/// A stopped `lockctl` cannot renew, so the command must not run meanwhile. The lease is long, so
/// that a busy machine does not end the command.
#[test]
#[cfg(target_os = "linux")]
fn a_stop_stops_the_command_too() {
    use crate::program::state;

    let server = RedisServer::start();
    // Not a shell: one that waits in vfork(2) for a stopped child is not shown as stopped.
    let script = "trap '' TSTP; echo $$; exec sleep 600";
    let mut running = job(&server.url(), &["--kill-after", "0", "a"], script);
    let (command, own) = (running.line(), running.pid().to_string());
    for _ in 0..3 {
        running.signal("TSTP");
        until("the stop", || state(&own) == Some('T') && state(&command) == Some('T'));
        running.signal("CONT");
        until("the command to go on", || matches!(state(&command), Some('S' | 'R')));
    }
    running.signal("TERM");
    assert_eq!(running.end().code, Some(143));
}

/// The lease is short. A busy machine may end the command before it is stopped, which is a loss as
/// well.
#[test]
#[cfg(target_os = "linux")]
fn a_loss_while_stopped_is_noticed_before_the_command_goes_on() {
    use crate::program::{QUIET, runs, state};

    let server = RedisServer::start();
    let script = "trap '' TSTP TERM; echo $$; while :; do sleep 0.02; done; echo went on";
    let _quiet = QUIET.blocking_lock();
    let mut running = job(&server.url(), &["--lease", "6", "a"], script);
    let (command, own) = (running.line(), running.pid().to_string());
    running.signal("TSTP");
    until("the stop", || matches!(state(&own), Some('T' | 'Z')));
    until("the end of the lease", || is_free(&server.url(), "a", &[]));
    assert!(!runs(&command), "it has ended before somebody else could enter");
    running.signal("CONT");
    let end = running.end();
    assert_eq!((end.code, end.stdout.as_str()), (Some(76), ""), "{end:?}");
}

/// Both are pending when `lockctl` goes on. Without a guard, the command runs while it is stopped.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_just_after_the_end_of_the_command_is_not_lost() {
    use crate::program::state;

    let server = RedisServer::start();
    let script = "echo $$; cat > /dev/null";
    let mut running = Running::script(&server.url(), &["--on-lost", "warn", "a"], script);
    let (command, own) = (running.line(), running.pid().to_string());
    until("lockctl to wait", || state(&own) == Some('S'));
    running.signal("STOP");
    until("the stop", || state(&own) == Some('T'));
    running.close_stdin();
    until("the end of the command", || state(&command) == Some('Z'));
    running.signal("INT");
    running.signal("CONT");
    let end = running.end();
    assert_eq!(end.signal, Some(2), "{end:?}");
}
