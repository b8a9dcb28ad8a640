//! The loss of the lock under a running command.

use lockcore_testkit::RedisServer;

use crate::program::{Running, code, is_free};

#[test]
fn a_command_whose_lock_was_taken_away_is_asked_to_end() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::script(&url, &["--lease", "6", "a"], script);
    assert_eq!(running.line(), "ready");
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    assert_eq!(running.line(), "asked");
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
    assert!(end.stderr.contains("was lost"), "{end:?}");
}

#[test]
fn a_loss_can_be_a_warning_only() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "echo ready; read go; exit 4";
    let arguments = ["--on-lost", "warn", "--lease", "6", "a"];
    let mut running = Running::script(&url, &arguments, script);
    assert_eq!(running.line(), "ready");
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    assert!(is_free(&url, "a", &[]));
    running.error_line_with("runs on");
    running.tell("go\n");
    let end = running.end();
    assert_eq!(end.code, Some(4), "{end:?}");
}

#[test]
fn a_loss_that_is_noticed_at_the_end_is_one() {
    let server = RedisServer::start();
    let url = server.url();
    // The next renewal would notice it, in 20 minutes.
    let running = Running::inside(&url, &["--lease", "1h", "a"]);
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    let end = running.end();
    assert_eq!(end.code, Some(76), "{end:?}");
}

/// The command writes to the same stderr, which nobody reads, until it takes no more.
#[test]
#[cfg(target_os = "linux")]
fn a_stderr_that_nobody_reads_delays_nothing() {
    use crate::program::{runs, state, until};

    let server = RedisServer::start();
    let url = server.url();
    let script = "yes >&2 & echo $!; wait";
    let mut running = Running::script(&url, &["--lease", "6", "a"], script);
    let writer = running.line();
    until("a full pipe", || state(&writer) == Some('S'));
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    until("the end of the command", || !runs(&writer));
    until("the end of lockctl", || running.is_over());
    assert_eq!(running.end().code, Some(76));
}
