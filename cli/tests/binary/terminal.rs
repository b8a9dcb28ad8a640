//! With a terminal, which `script` of util-linux provides.

#![cfg(target_os = "linux")]

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::{
    program::{End, Running, code, is_free, kill, lockctl, shown, state, until},
    tmux::{PROMPT, Tmux},
};

/// `lockctl` with `arguments`, quoted for a shell, as the leader of a session on a terminal of its
/// own.
fn on_terminal(url: &str, arguments: &str) -> Running {
    script_on_terminal(url, &format!("exec \"$LOCKCTL\" {arguments}"))
}

/// A shell with `script` as the leader of a session on a terminal of its own.
fn script_on_terminal(url: &str, script: &str) -> Running {
    let mut command = Command::new("env");
    command.args(["--default-signal", "script", "-q", "-e", "-c", script, "/dev/null"]);
    for (name, value) in lockctl(url, &[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // `script` takes the user's shell otherwise.
    command.env("SHELL", "/bin/sh");
    Running::start(command)
}

/// Reads until a line contains `text`. The terminal echoes what is typed.
fn wait_for(running: &mut Running, text: &str) {
    let _ = line_with(running, text);
}

/// The same, and returns the line.
fn line_with(running: &mut Running, text: &str) -> String {
    loop {
        let line = running.line();
        assert!(!line.is_empty(), "`{text}` does not come");
        if line.contains(text) {
            return line;
        }
    }
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let server = RedisServer::start();
    let script = r#"run a -- sh -c 'echo ready; read x; echo "got <$x>"; exit 5'"#;
    let mut running = on_terminal(&server.url(), script);
    wait_for(&mut running, "ready");
    running.tell("hello\n");
    wait_for(&mut running, "got <hello>");
    assert_eq!(running.end().code, Some(5));
}

#[test]
fn the_keys_for_interrupting_reach_the_command() {
    let server = RedisServer::start();
    let script = r#"run a -- sh -c 'trap "echo stopped; exit 6" INT; echo ready
        while :; do sleep 0.02; done'"#;
    let mut running = on_terminal(&server.url(), script);
    wait_for(&mut running, "ready");
    running.tell("\u{3}");
    wait_for(&mut running, "stopped");
    assert_eq!(running.end().code, Some(6));
}

/// `script` starts `lockctl` as the leader of a session, as sshd does.
#[test]
fn the_key_for_stopping_does_not_stop_what_no_shell_could_continue() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"run a -- sh -c 'echo ready; read x; echo "got <$x>"; exit 5'"#;
    let mut running = on_terminal(&url, script);
    wait_for(&mut running, "ready");
    running.tell("\u{1a}hello\n");
    wait_for(&mut running, "got <hello>");
    assert_eq!(running.end().code, Some(5));

    let holder = Running::inside(&url, &["--fair", "a"]);
    let mut waiter = on_terminal(&url, "run --fair a -- echo entered");
    until("the place in the queue", || {
        shown(&url, "a")["queue"].as_array().is_some_and(|queue| queue.len() == 1)
    });
    waiter.tell("\u{1a}\n");
    // The terminal echoes the key when it sends the signal.
    wait_for(&mut waiter, "^Z");
    assert_eq!(holder.end().code, Some(0));
    wait_for(&mut waiter, "entered");
    assert_eq!(waiter.end().code, Some(0));
}

#[test]
fn a_shell_stops_and_continues_the_command() {
    let server = RedisServer::start();
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command(r#""$LOCKCTL" run a -- sh -c 'echo rea""dy; read x; echo "got <$x>"'"#);
    tmux.until_shown(&["ready\n"]);
    tmux.press(&["C-z"]);
    tmux.until_shown(&["Stopped"]);
    tmux.command("fg");
    tmux.command("hello");
    tmux.until_shown(&["got <hello>"]);
}

/// `bash` does not send SIGCONT to a job that runs, so that `lockctl` does not learn of it.
#[test]
fn a_command_that_was_brought_to_the_foreground_while_it_ran_can_read() {
    let server = RedisServer::start();
    let gate = server.directory().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command("PS1='jo''bs> ' exec bash --norc --noprofile");
    tmux.until_shown(&["jobs>"]);
    let file = server.directory().join("job");
    let script = format!(
        r#"echo "pids $$ $PPID."; cat {} > /dev/null; read x; echo "got <$x>""#,
        gate.display()
    );
    fs::write(&file, script).unwrap();
    tmux.command(&format!("\"$LOCKCTL\" run a -- sh {} &", file.display()));
    let screen = tmux.until("the pids", |screen| {
        screen.split_once("pids ").is_some_and(|(_, pids)| pids.contains('.'))
    });
    let pids = screen.split_once("pids ").unwrap().1.split_once('.').unwrap().0;
    let (command, own) = pids.split_once(' ').unwrap();
    tmux.command("fg");
    until("the foreground", || foreground(own).as_deref() == Some(own));
    fs::write(&gate, "").unwrap();
    until("the loan", || foreground(own).as_deref() == Some(command));
    tmux.command("hello");
    let screen = tmux.until_shown(&["got <hello>"]);
    assert!(!screen.contains("Stopped"), "{screen}");
}

/// Runs a script whose command says that it is ready, stops it with a key, and goes on with it.
fn stops_and_continues(script: &str, then: &str) {
    let server = RedisServer::start();
    let file = server.directory().join("job");
    fs::write(&file, script).unwrap();
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command(&format!("sh {}", file.display()));
    tmux.until_shown(&["ready\n"]);
    tmux.press(&["C-z"]);
    tmux.until_shown(&["Stopped"]);
    tmux.command("fg");
    tmux.command("hello");
    tmux.until_shown(&[then]);
}

/// A shell learns of a job's stop only if the process that it has started itself is stopped.
#[test]
fn a_shell_stops_and_continues_a_script_that_runs_the_command() {
    let script = r#""$LOCKCTL" run a -- sh -c 'echo ready; read x; echo "got <$x>"'; echo on"#;
    stops_and_continues(script, "got <hello>\non\n");
}

/// The inner run stops the group that the outer one has brought to the foreground.
#[test]
fn a_shell_stops_and_continues_nested_runs() {
    let script = r#"exec "$LOCKCTL" run a -- sh -c '
        "$LOCKCTL" run b -- sh -c "echo ready; read x; echo \"got <\$x>\""; :'"#;
    stops_and_continues(script, "got <hello>");
}

/// A shell lets its background processes ignore Ctrl-C, which `env` undoes.
#[test]
fn the_keys_reach_lockctl_once_the_command_has_ended() {
    let server = RedisServer::start();
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command(r#""$LOCKCTL" run a -- sh -c 'env --default-signal sleep 600 & exit 5'"#);
    tmux.until_shown(&["still run"]);
    tmux.press(&["C-z"]);
    tmux.until_shown(&["Stopped"]);
    tmux.command("fg");
    tmux.until("its job", |screen| !screen.trim_end().ends_with(&format!("{PROMPT} fg")));
    tmux.press(&["C-c"]);
    tmux.until("the prompt", |screen| screen.trim_end().ends_with(PROMPT));
    tmux.command("echo code $?");
    tmux.until_shown(&["code 130"]);
    assert!(is_free(&server.url(), "a", &[]));
}

/// A shell ends its script if a process of it has died of the signal, and `bash` only if it has got
/// the signal itself as well.
fn is_ended_by_ctrl_c(server: &RedisServer, script: &str, is_time: impl Fn(&Tmux)) {
    let file = server.directory().join("job");
    fs::write(&file, script).unwrap();
    for shell in ["bash", "sh"] {
        let tmux = Tmux::start(&server.url(), 80, 24);
        tmux.command(&format!("{shell} {}", file.display()));
        is_time(&tmux);
        tmux.press(&["C-c"]);
        let screen = tmux.until("the prompt", |screen| screen.trim_end().ends_with(PROMPT));
        assert!(!screen.contains("after"), "{screen}");
        tmux.command("echo code $?");
        tmux.until_shown(&["code 130"]);
        assert!(is_free(&server.url(), "a", &[]));
    }
}

#[test]
fn the_key_for_interrupting_ends_a_script_whose_command_it_ends() {
    let server = RedisServer::start();
    let script = r#"for i in 1 2; do
        "$LOCKCTL" run a -- sh -c 'echo ready; exec sleep 600'; echo after $i; done"#;
    is_ended_by_ctrl_c(&server, script, |tmux| _ = tmux.until_shown(&["ready\n"]));
}

/// The code of the command would let the script go on.
#[test]
fn the_key_for_interrupting_ends_a_script_whose_command_has_left_processes_behind() {
    let server = RedisServer::start();
    let script = r#"for i in 1 2; do
        "$LOCKCTL" run a -- sh -c 'sleep 600 & :'; echo after $i; done"#;
    is_ended_by_ctrl_c(&server, script, |tmux| _ = tmux.until_shown(&["still run"]));
}

/// The key reaches the command only, and that ends.
#[test]
fn the_key_for_interrupting_ends_the_rest_of_the_time_too() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "run --at-least 600 a -- sh -c 'echo pids $$ $PPID; exec sleep 600'";
    let mut running = on_terminal(&url, script);
    let [command, own] = &pids(&mut running);
    until("the loan", || foreground(own).as_ref() == Some(command));
    running.tell("\u{3}");
    wait_for(&mut running, "a is not released");
    until("the end of lockctl", || running.is_over());
    assert_eq!(running.end().code, Some(130));
    assert!(!is_free(&url, "a", &[]));
}

#[test]
fn the_key_for_interrupting_ends_the_scripts_of_nested_runs() {
    let server = RedisServer::start();
    let script = r#""$LOCKCTL" run a -- "${BASH:-sh}" -c '
        "$LOCKCTL" run b -- sh -c "echo ready; exec sleep 600"; echo after inner'; echo after"#;
    is_ended_by_ctrl_c(&server, script, |tmux| _ = tmux.until_shown(&["ready\n"]));
}

#[test]
fn the_key_for_interrupting_ends_a_script_that_waits_for_the_lock() {
    let server = RedisServer::start();
    let url = server.url();
    let _holder = Running::inside(&url, &["--fair", "b"]);
    let script = r#""$LOCKCTL" run --fair b -- true; echo after"#;
    is_ended_by_ctrl_c(&server, script, |_| {
        until("the place in the queue", || {
            shown(&url, "b")["queue"].as_array().is_some_and(|queue| queue.len() == 1)
        });
    });
}

/// A signal to `lockctl` alone is not meant for the script, also if the command has outlived another
/// one before.
#[test]
fn a_signal_that_is_no_key_does_not_reach_the_script() {
    let server = RedisServer::start();
    let script = r#"trap 'echo caught' INT
        "$LOCKCTL" run a -- sh -c 'trap "" TERM; echo pids $$ $PPID; exec sleep 600'
        echo after $?"#;
    for outlived in [&[][..], &["TERM"]] {
        let mut running = script_on_terminal(&server.url(), script);
        let [command, own] = &pids(&mut running);
        until("the loan", || foreground(own).as_ref() == Some(command));
        outlived.iter().for_each(|signal| kill(signal, own));
        kill("INT", own);
        assert_eq!(running.line(), "after 130");
        assert_eq!(running.end().code, Some(0));
    }
}

/// The key has reached only the command, and the other signal only lockctl. What is left behind
/// tells the pids, because the key would end it before it ignores that.
#[test]
fn a_key_that_has_ended_the_command_reaches_the_script_after_another_signal() {
    let server = RedisServer::start();
    let script = r#"trap 'echo caught' INT
        "$LOCKCTL" run a -- sh -c '(trap "" INT; echo pids $$ $PPID; exec sleep 600 > /dev/null) &
            exec sleep 600'
        echo after $?"#;
    for another in ["TERM", "HUP", "INT", "QUIT"] {
        let mut running = script_on_terminal(&server.url(), script);
        let [command, own] = &pids(&mut running);
        until("the loan", || foreground(own).as_ref() == Some(command));
        running.tell("\u{3}");
        wait_for(&mut running, "still run");
        kill(another, own);
        assert_eq!(running.line(), "caught", "{another}");
        assert_eq!(running.line(), "after 130", "{another}");
        assert_eq!(running.end().code, Some(0));
    }
}

/// The command and its `lockctl`, of which the command tells with `echo pids $$ $PPID`.
fn pids(running: &mut Running) -> [String; 2] {
    let line = line_with(running, "pids");
    let pids: Vec<&str> = line.split(' ').collect();
    let [_, command, own] = pids[..] else { panic!("{line}") };
    [command, own].map(str::to_owned)
}

/// Stops the command once it has the terminal, until `lockctl` has that back. Returns their pids.
fn stopped_on_purpose(running: &mut Running) -> [String; 2] {
    let pids = pids(running);
    let [command, own] = &pids;
    until("the loan", || foreground(own).as_ref() == Some(command));
    kill("STOP", command);
    until("the stop", || foreground(own).as_ref() == Some(own));
    pids
}

/// `lockctl` leads the session, as with sshd, so that nothing stops it.
#[test]
fn a_command_that_was_stopped_on_purpose_stays_stopped() {
    let server = RedisServer::start();
    let script = r#"run a -- sh -c 'trap "echo caught; exit 6" INT; echo pids $$ $PPID
        while :; do sleep 0.02; done'"#;
    let mut running = on_terminal(&server.url(), script);
    let [command, _] = &stopped_on_purpose(&mut running);
    assert_eq!(state(command), Some('T'));
    running.tell("\u{3}");
    wait_for(&mut running, "caught");
    assert_eq!(running.end().code, Some(6));
}

/// No shell could continue `lockctl` here, so that the key stops nothing, and continues nothing.
#[test]
fn the_key_for_stopping_does_not_continue_a_command_that_was_stopped_on_purpose() {
    let server = RedisServer::start();
    let script = r#"run a -- sh -c 'trap "echo caught; exit 6" INT; trap "echo continued" CONT
        echo pids $$ $PPID; while :; do sleep 0.02; done'"#;
    let mut running = on_terminal(&server.url(), script);
    let [command, own] = &stopped_on_purpose(&mut running);
    running.tell("\u{1a}\n");
    wait_for(&mut running, "^Z");
    // If it went on, the terminal would be lent to it.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert_eq!(state(command), Some('T'));
        assert_eq!(foreground(own).as_ref(), Some(own));
        thread::sleep(Duration::from_millis(1));
    }
    kill("CONT", command);
    wait_for(&mut running, "continued");
    until("the loan", || foreground(own).as_ref() == Some(command));
    running.tell("\u{3}");
    wait_for(&mut running, "caught");
    assert_eq!(running.end().code, Some(6));
}

/// Even before `lockctl` has lent the terminal, or just then.
#[test]
fn a_command_that_stops_itself_at_once_stays_stopped_until_somebody_continues_it() {
    let server = RedisServer::start();
    for _ in 0..20 {
        let script = "run a -- sh -c 'echo pids $$ $PPID; kill -STOP $$; read x; echo \"<$x>\"'";
        let mut running = on_terminal(&server.url(), script);
        let [command, own] = &pids(&mut running);
        until("the stop", || state(command) == Some('T') && foreground(own).as_ref() == Some(own));
        kill("CONT", command);
        until("its turn", || foreground(own).as_ref() == Some(command));
        running.tell("on\n");
        wait_for(&mut running, "<on>");
        assert_eq!(running.end().code, Some(0));
    }
}

/// The outer `lockctl` would continue both if the inner one stopped as well.
#[test]
fn a_command_of_a_nested_run_that_was_stopped_on_purpose_stays_stopped() {
    let server = RedisServer::start();
    let inner =
        r#"trap \"echo caught; exit 6\" INT; echo pids \$\$ \$PPID; while :; do sleep 0.02; done"#;
    let script = format!(
        r#"run a -- sh -c 'trap : INT; "$LOCKCTL" run b -- sh -c "{inner}"; echo outer $?'"#
    );
    let mut running = on_terminal(&server.url(), &script);
    let [command, own] = &pids(&mut running);
    until("the loan", || foreground(own).as_ref() == Some(command));
    kill("STOP", command);
    until("the stop", || foreground(own).as_ref() != Some(command));
    assert_eq!(state(command), Some('T'));
    running.tell("\u{3}");
    wait_for(&mut running, "caught");
    wait_for(&mut running, "outer 6");
    assert_eq!(running.end().code, Some(0));
}

/// The process group in the foreground of the terminal that `pid` has.
fn foreground(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(5).map(str::to_owned)
}

/// The outer `lockctl` is the parent in another group, so that the inner one can be stopped, but no
/// shell is there.
#[test]
fn a_nested_run_that_is_stopped_goes_on_where_no_shell_could_continue_it() {
    let server = RedisServer::start();
    let inner = r#"echo ready; read x; echo \"got <\$x>\"; exit 5"#;
    let script = format!(r#"run a -- sh -c '"$LOCKCTL" run b -- sh -c "{inner}"; echo outer $?'"#);
    let mut running = on_terminal(&server.url(), &script);
    wait_for(&mut running, "ready");
    running.tell("\u{1a}hello\n");
    wait_for(&mut running, "got <hello>");
    wait_for(&mut running, "outer 5");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn the_terminal_is_given_back() {
    let server = RedisServer::start();
    let script = r#""$LOCKCTL" run a -- true; read x; echo "got <$x>""#;
    let mut running = script_on_terminal(&server.url(), script);
    running.tell("again\n");
    wait_for(&mut running, "got <again>");
    assert_eq!(running.end().code, Some(0));
}

/// The command of the inner run has the terminal when the outer command ends, and gives it back to
/// the group of that.
#[test]
fn the_terminal_is_given_back_after_a_signal_to_the_outer_of_nested_runs() {
    let server = RedisServer::start();
    let file = server.directory().join("job");
    let script = r#""$LOCKCTL" run a -- sh -c 'echo outer $PPID
        "$LOCKCTL" run b -- sh -c "echo inner \$\$; exec sleep 600"; :'; read x; echo "got <$x>""#;
    fs::write(&file, script).unwrap();
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command(&format!("bash {}", file.display()));
    let screen = tmux.until_shown(&["inner "]);
    let [outer, inner] = ["outer ", "inner "].map(|word| {
        let line = screen.lines().find_map(|line| line.strip_prefix(word));
        line.expect("a process").trim().to_owned()
    });
    until("the loan", || foreground(&inner).as_ref() == Some(&inner));
    kill("TERM", &outer);
    until("the end of lockctl", || state(&outer).is_none());
    tmux.command("again");
    tmux.until_shown(&["got <again>"]);
}

/// A shell with job control brings its command to the foreground itself.
#[test]
fn the_keys_reach_lockctl_once_a_shell_with_jobs_was_killed() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"run a -- sh -c 'echo pids $$ $PPID; set -m; sleep 600; :'"#;
    let mut running = on_terminal(&url, script);
    let [command, own] = &pids(&mut running);
    until("the job", || {
        let foreground = foreground(own);
        foreground.is_some_and(|group| group != *own && group != *command)
    });
    kill("KILL", command);
    wait_for(&mut running, "still run");
    until("the terminal", || foreground(own).as_ref() == Some(own));
    running.tell("\u{3}");
    until("the end of lockctl", || running.is_over());
    assert_eq!(running.end().code, Some(130));
    assert!(is_free(&url, "a", &[]));
}

/// While the command is in the foreground, a message of `lockctl` comes from the background.
#[test]
fn a_terminal_that_stops_writers_in_the_background_does_not_stop_lockctl() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#"stty tostop
        "$LOCKCTL" run --lease 6 a -- sh -c 'echo ready; exec sleep 600'; echo "code $?""#;
    let mut running = script_on_terminal(&url, script);
    wait_for(&mut running, "ready");
    assert_eq!(code(&url, &["release", "a", "--force", "--yes"]), 0);
    wait_for(&mut running, "was lost");
    wait_for(&mut running, "code 76");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_release_by_force_asks_first() {
    let server = RedisServer::start();
    let url = server.url();
    let _holder = Running::inside(&url, &["a"]);
    for (answer, code, is_released) in [("n\n", 75, false), ("y\n", 0, true)] {
        let mut running = on_terminal(&url, "release a --force");
        running.tell(answer);
        let End { code: ended, stdout, .. } = running.end();
        assert_eq!(ended, Some(code), "{stdout}");
        assert!(stdout.contains("Take it away?"), "{stdout}");
        assert_eq!(is_free(&url, "a", &[]), is_released);
    }
}
