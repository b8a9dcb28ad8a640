//! `--at-least`: jobs of several hosts whose clocks differ.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::program::{Running, code, is_free, lockctl, shown, until};

/// The clocks of three hosts differ by 2 s, and the job takes no time.
#[test]
fn of_three_schedulers_one_runs_the_job() {
    let server = RedisServer::start();
    let url = server.url();
    let arguments = ["-n", "--at-least", "3", "--lease", "2", "job"];
    let began = Instant::now();
    let mut first = Running::script(&url, &arguments, "echo ran");
    assert_eq!(first.line(), "ran");
    let second = Running::script(&url, &arguments, "echo ran").end();
    if began.elapsed() < Duration::from_secs(3) {
        assert_eq!((second.code, second.stdout.as_str()), (Some(75), ""), "{second:?}");
    }
    thread::sleep(Duration::from_secs(2));
    let third = Running::script(&url, &arguments, "echo ran").end();
    if began.elapsed() < Duration::from_secs(3) {
        assert_eq!((third.code, third.stdout.as_str()), (Some(75), ""), "{third:?}");
    }
    assert_eq!(first.end().code, Some(0));
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert!(is_free(&url, "job", &[]), "the next time has come");
}

#[test]
fn the_time_is_kept_by_the_store_if_lockctl_is_killed() {
    let server = RedisServer::start();
    let url = server.url();
    let mut running =
        Running::script(&url, &["--at-least", "60", "--lease", "6", "job"], "echo ran");
    assert_eq!(running.line(), "ran");
    running.signal("KILL");
    assert_eq!(running.end().signal, Some(9));
    let left = shown(&url, "job")["lease_left_seconds"].as_f64().unwrap();
    assert!(left > 20.0, "{left} s");
}

#[test]
fn a_signal_ends_the_rest_of_the_time_for_lockctl_only() {
    let server = RedisServer::start();
    let url = server.url();
    // The job was done, but Ctrl-C has to end a script as well.
    for (signal, code) in [("TERM", 3), ("HUP", 3), ("INT", 130), ("QUIT", 131)] {
        let arguments = ["-v", "--at-least", "60", signal];
        let mut running = Running::script(&url, &arguments, "echo ran; exit 3");
        assert_eq!(running.line(), "ran");
        running.error_line_with("keeps");
        running.signal(signal);
        assert_eq!(running.end().code, Some(code), "{signal}");
        assert!(!is_free(&url, signal, &[]));
    }
}

#[test]
fn a_signal_for_the_command_ends_the_rest_of_the_time_too() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::script(&url, &["--at-least", "600", "job"], script);
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    until("the end of lockctl", || running.is_over());
    assert_eq!(running.end().code, Some(3));
    assert!(!is_free(&url, "job", &[]));
}

/// As systemd sends them with `SendSIGHUP=yes`.
#[test]
fn the_signal_that_the_command_dies_of_counts_although_another_follows() {
    let server = RedisServer::start();
    let url = server.url();
    for (signal, later, code) in [("INT", "HUP", 130), ("HUP", "QUIT", 129), ("TERM", "HUP", 143)] {
        // Dies of the first signal once it has heard of the second one.
        let script = format!(
            "trap 'heard=1' {later}
             trap 'echo cleaning; until [ $heard ]; do sleep 0.02; done
                   trap - {signal}; kill -s {signal} $$' {signal}
             echo ready; while :; do sleep 0.02; done"
        );
        let mut running = Running::script(&url, &["--at-least", "600", signal], &script);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.line(), "cleaning");
        running.signal(later);
        until("the end of lockctl", || running.is_over());
        assert_eq!(running.end().code, Some(code), "{signal}");
    }
}

/// As a service that reads its configuration again.
#[test]
fn a_signal_that_the_command_outlives_does_not_end_the_rest_of_the_time() {
    let server = RedisServer::start();
    let url = server.url();
    let script =
        "trap 'echo reloaded' HUP; echo ready; until [ -e go ]; do sleep 0.02; done; exit 0";
    let arguments = ["run", "--at-least", "2", "job", "--", "sh", "-c", script];
    let mut command = lockctl(&url, &arguments);
    command.current_dir(server.directory());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "ready");
    running.signal("HUP");
    assert_eq!(running.line(), "reloaded");
    fs::write(server.directory().join("go"), "").unwrap();
    until("the end of lockctl", || running.is_over());
    assert_eq!(running.end().code, Some(0));
    assert!(is_free(&url, "job", &[]));
}

#[test]
fn a_loss_in_the_time_of_the_command_is_one_also_with_at_least() {
    let server = RedisServer::start();
    let url = server.url();
    // The next renewal would notice it, in 20 minutes.
    let mut running = Running::inside(&url, &["--at-least", "0.001", "--lease", "1h", "job"]);
    assert_eq!(code(&url, &["release", "job", "--force", "--yes"]), 0);
    running.close_stdin();
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
    assert!(end.stderr.contains("lost"), "{end:?}");
}

#[test]
fn a_job_that_cannot_be_started_keeps_nothing() {
    let server = RedisServer::start();
    let url = server.url();
    let arguments = ["run", "--at-least", "60", "job", "--", "/nowhere"];
    assert_eq!(code(&url, &arguments), 127);
    assert!(is_free(&url, "job", &[]), "another host may have it");
}
