//! `lockctl run`: exclusion, exit codes and the environment.

use std::{fs, process::Command, time::Duration};

use lockcore_testkit::{Conditions, Proxy, RedisServer};

use serde_json::Value;

use crate::program::{End, QUIET, Running, code, end, is_free, lockctl, shown, until};

#[test]
fn the_exit_code_is_that_of_the_command() {
    let server = RedisServer::start();
    let script = |script| code(&server.url(), &["run", "a", "--", "sh", "-c", script]);
    assert_eq!(script("exit 0"), 0);
    assert_eq!(script("exit 3"), 3);
    assert_eq!(script("kill -TERM $$"), 143);
    assert_eq!(script("kill -KILL $$"), 137);
    let missing = end(&server.url(), &["run", "a", "--", "/nowhere/to/be/found", "-x"]);
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.stderr.starts_with("lockctl: cannot find"), "{missing:?}");
    assert_eq!(code(&server.url(), &["run", "a", "--", "/etc/passwd"]), 126);
    assert!(is_free(&server.url(), "a", &[]), "nothing is left");
}

/// Not only to the one run of many that gets the lock.
#[test]
fn a_command_that_is_missing_is_told_before_the_lock_is_waited_for() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["a"]);
    for (command, expected) in [
        ("/nowhere/to/be/found", 127),
        ("no-such-program-here", 127),
        ("", 127),
        ("/etc/passwd", 126),
        ("/", 126),
    ] {
        for option in ["-n", "-w600"] {
            let end = end(&url, &["run", option, "a", "--", command]);
            assert_eq!(end.code, Some(expected), "{command}: {end:?}");
            assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        }
    }
    // Only the system can tell that the interpreter is missing.
    let script = server.directory().join("script");
    fs::write(&script, "#!/nowhere/sh\n").unwrap();
    let mode = Command::new("chmod").arg("755").arg(&script).status().unwrap();
    assert!(mode.success());
    let script = script.to_str().unwrap();
    assert_eq!(code(&url, &["run", "-n", "a", "--", script]), 75);
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(code(&url, &["run", "-n", "--at-least", "60", "a", "--", script]), 127);
    assert!(is_free(&url, "a", &[]), "nothing is left");
}

/// As a shell, `timeout` and `flock` run it.
#[test]
fn a_script_that_names_no_interpreter_is_run_by_the_shell() {
    let server = RedisServer::start();
    let url = server.url();
    let script = server.directory().join("script");
    fs::write(&script, "echo \"$0 $1 $LOCKCTL_NAME\"; exit 3\n").unwrap();
    let mode = Command::new("chmod").arg("755").arg(&script).status().unwrap();
    assert!(mode.success());
    let path = script.to_str().unwrap();
    let nested = ["run", "a", "--", env!("CARGO_BIN_EXE_lockctl"), "run", "a", "--", path, "-x"];
    for words in [&["run", "a", "--", path, "-x"][..], &nested] {
        let end = end(&url, words);
        assert_eq!((end.code, end.stdout.trim()), (Some(3), &*format!("{path} -x a")), "{end:?}");
    }
    let mut found = lockctl(&url, &["run", "a", "--", "script", "-x"]);
    found.env("PATH", format!("{}:/usr/bin:/bin", server.directory().display()));
    let end = End::from(found.output().unwrap());
    assert_eq!((end.code, end.stdout.trim()), (Some(3), &*format!("{path} -x a")), "{end:?}");
    // A binary of another machine is not a script.
    fs::write(&script, b"\x7fELF\0of another machine\n").unwrap();
    assert_eq!(code(&url, &["run", "a", "--", path]), 126);
}

#[test]
fn the_command_is_run_without_a_shell_and_keeps_its_flags() {
    let server = RedisServer::start();
    let said = end(&server.url(), &["run", "a", "-n", "--", "echo", "-n", "$HOME;", "--help"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "$HOME; --help"), "{said:?}");
}

#[test]
fn a_lock_that_is_held_cannot_be_had() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["a"]);
    let refused = end(&url, &["run", "-n", "a", "--", "true"]);
    assert_eq!((refused.code, refused.stderr.as_str()), (Some(75), ""), "{refused:?}");
    let told = end(&url, &["run", "-n", "-v", "a", "--", "true"]);
    assert!(told.stderr.ends_with("lockctl: a is not free\n"), "{told:?}");
    assert!(told.stderr.contains("acquire: Held"), "{told:?}");
    assert_eq!(code(&url, &["run", "-w", "0.1", "a", "--", "true"]), 75);
    assert_eq!(code(&url, &["run", "-n", "-E", "9", "a", "--", "true"]), 9);
    assert_eq!(code(&url, &["run", "-n", "b", "--", "true"]), 0, "another name is free");

    let mut waiter = Running::script(&url, &["-w", "60", "a"], "echo entered");
    assert!(!waiter.is_over());
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(waiter.line(), "entered");
    assert_eq!(waiter.end().code, Some(0));
}

/// The number of waiters for `name` that `lockctl ls` shows.
fn listed_waiters(url: &str, name: &str) -> u64 {
    let end = end(url, &["ls", "--json", name]);
    let listed: Value = serde_json::from_str(&end.stdout).unwrap();
    listed[0]["waiters"].as_u64().unwrap_or_else(|| panic!("{name} is not in use: {end:?}"))
}

/// A record of a process that has ended would list its wait for at least half a minute.
#[test]
fn a_run_that_has_ended_is_not_listed_as_a_waiter() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["a"]);
    let impatient = Running::script(&url, &["-w", "10", "a"], "echo entered");
    until("the record of the wait", || listed_waiters(&url, "a") == 1);
    assert_eq!(impatient.end().code, Some(75));
    assert_eq!(listed_waiters(&url, "a"), 0, "it has given up");

    let waiter = Running::script(&url, &["a"], "echo entered");
    until("the record of the wait", || listed_waiters(&url, "a") == 1);
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(waiter.end().code, Some(0));
    let holder = Running::inside(&url, &["a"]);
    assert_eq!(listed_waiters(&url, "a"), 0, "it has been inside");
    // Nor is one that has waited, and whose command cannot be started.
    let script = server.directory().join("script");
    fs::write(&script, "#!/nowhere/sh\n").unwrap();
    assert!(Command::new("chmod").arg("755").arg(&script).status().unwrap().success());
    let waiter = Running::start(lockctl(&url, &["run", "a", "--", script.to_str().unwrap()]));
    until("the record of the wait", || listed_waiters(&url, "a") == 1);
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(waiter.end().code, Some(127));
    let _holder = Running::inside(&url, &["a"]);
    assert_eq!(listed_waiters(&url, "a"), 0, "its command was not started");
}

/// The store is as far away as on another continent.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_a_signal_ends_is_not_listed_where_the_store_is_far() {
    let _quiet = QUIET.lock().await;
    let server = RedisServer::start();
    let url = server.url();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let _holder = Running::inside(&url, &["a"]);
    let waiter = Running::script(&proxy.url(), &["a"], "echo entered");
    until("the record of the wait", || listed_waiters(&url, "a") == 1);
    let latency = Duration::from_millis(60);
    proxy.set(Conditions { latency, ..Conditions::default() });
    waiter.signal("TERM");
    assert_eq!(waiter.end().code, Some(143));
    assert_eq!(listed_waiters(&url, "a"), 0);
}

#[test]
fn readers_share_and_writers_do_not() {
    let server = RedisServer::start();
    let url = server.url();
    let reader = Running::inside(&url, &["-s", "a"]);
    assert!(is_free(&url, "a", &["-s"]));
    assert!(!is_free(&url, "a", &["-x"]));
    let plain = end(&url, &["run", "-n", "a", "--", "true"]);
    assert_eq!(plain.code, Some(64), "a name has one kind at a time: {plain:?}");
    assert!(plain.stderr.contains("-s and -x"), "{plain:?}");
    assert_eq!(reader.end().code, Some(0));
    let writer = Running::inside(&url, &["-x", "a"]);
    assert!(!is_free(&url, "a", &["-s"]));
    assert_eq!(writer.end().code, Some(0));
}

#[test]
fn at_most_as_many_permits_are_given_as_there_are() {
    let server = RedisServer::start();
    let url = server.url();
    let two = Running::inside(&url, &["--permits", "2", "--of", "3", "a"]);
    assert!(is_free(&url, "a", &["--of", "3"]));
    assert!(!is_free(&url, "a", &["--permits", "2", "--of", "3"]));
    let permits = &shown(&url, "a")["permits"];
    assert_eq!((permits["available"].as_u64(), permits["total"].as_u64()), (Some(1), Some(3)));
    assert_eq!(code(&url, &["run", "--permits", "4", "--of", "3", "a", "--", "true"]), 64);
    assert_eq!(two.end().code, Some(0));
}

#[test]
fn a_fair_lock_goes_to_the_first_that_came() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["--fair", "a"]);
    let log = server.directory().join("order");
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let script = format!("echo {number} >> {}", log.display());
        waiters.push(Running::script(&url, &["--fair", "a"], &script));
        until("the place in the queue", || {
            shown(&url, "a")["queue"].as_array().is_some_and(|queue| queue.len() == number)
        });
    }
    assert_eq!(holder.end().code, Some(0));
    for waiter in waiters {
        assert_eq!(waiter.end().code, Some(0));
    }
    assert_eq!(fs::read_to_string(log).unwrap(), "1\n2\n3\n");
}

#[test]
fn the_environment_names_the_hold_and_tokens_rise() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "echo $LOCKCTL_NAME $LOCKCTL_OWNER $LOCKCTL_TOKEN; cat > /dev/null";
    let mut last_token = 0;
    for _ in 0..2 {
        let mut running = Running::script(&url, &["a b"], script);
        let line = running.line();
        let words: Vec<&str> = line.split(' ').collect();
        let [first, second, owner, token] = words[..] else { panic!("{line}") };
        assert_eq!((first, second), ("a", "b"));
        assert_eq!(shown(&url, "a b")["holders"][0]["owner"], owner);
        let token: u64 = token.parse().unwrap();
        assert!(token > last_token);
        last_token = token;
        assert_eq!(running.end().code, Some(0));
    }
}

#[test]
fn a_nested_run_of_the_same_name_enters_at_once() {
    let server = RedisServer::start();
    let inner = r#"echo "$LOCKCTL_NAME $LOCKCTL_TOKEN"; exit 5"#;
    let nested = format!(
        r#"echo "$LOCKCTL_NAME $LOCKCTL_TOKEN"
        "$LOCKCTL" run -n a -- "$LOCKCTL" run -n b -- "$LOCKCTL" run -n a -- sh -c '{inner}'"#
    );
    let end = end(&server.url(), &["run", "a", "--", "sh", "-c", &nested]);
    assert_eq!(end.code, Some(5), "{end:?}");
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{end:?}");
    assert_eq!(lines[0], lines[1], "one hold, one token");
}

#[test]
fn a_nested_run_holds_nothing_of_its_own() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#""$LOCKCTL" run a -- true; echo back; cat > /dev/null"#;
    let mut outer = Running::script(&url, &["a"], script);
    assert_eq!(outer.line(), "back");
    assert!(!is_free(&url, "a", &[]), "the outer run holds it still");
    assert_eq!(outer.end().code, Some(0));
    assert!(is_free(&url, "a", &[]));
}

#[test]
fn a_nested_run_knows_the_store_of_the_option() {
    let server = RedisServer::start();
    let url = server.url();
    let script = r#""$LOCKCTL" run -n a -- echo entered"#;
    let arguments = ["--url", &url, "run", "a", "--", "sh", "-c", script];
    for outer in [None, Some("redis://127.0.0.1:1")] {
        let mut command = lockctl("", &arguments);
        match outer {
            Some(url) => command.env("LOCKCTL_URL", url),
            None => command.env_remove("LOCKCTL_URL"),
        };
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "entered\n");
    }
}

#[test]
fn a_reader_inside_a_writer_enters_and_a_writer_inside_a_reader_is_refused() {
    let server = RedisServer::start();
    let url = server.url();
    let nested = |outer, inner| {
        let script = format!(r#""$LOCKCTL" run -n {inner} a -- true"#);
        code(&url, &["run", outer, "a", "--", "sh", "-c", &script])
    };
    assert_eq!(nested("-x", "-s"), 0);
    assert_eq!(nested("-x", "-x"), 0);
    assert_eq!(nested("-s", "-s"), 0);
    assert_eq!(nested("-s", "-x"), 64);
}

#[test]
fn a_hold_that_has_ended_lets_nobody_enter() {
    let server = RedisServer::start();
    let url = server.url();
    // The hold is taken away while the command runs, and another process can acquire the lock.
    let script = r#""$LOCKCTL" release a --force --yes > /dev/null; echo free; read go
        "$LOCKCTL" run -n a -- echo entered; echo "code $?""#;
    let mut outer = Running::script(&url, &["--on-lost", "warn", "a"], script);
    assert_eq!(outer.line(), "free");
    let other = Running::inside(&url, &["a"]);
    outer.tell("go\n");
    assert_eq!(outer.line(), "code 75");
    assert_eq!(other.end().code, Some(0));

    // A copy of the environment is not a hold either.
    let mut holder = Running::script(&url, &["a"], "echo $LOCKCTL_HELD; cat > /dev/null");
    let held = holder.line();
    let mut copied = lockctl(&url, &["run", "-n", "a", "--", "true"]);
    assert_eq!(copied.env("LOCKCTL_HELD", held).status().unwrap().code(), Some(75));
}

#[test]
fn a_hundred_runs_at_once_never_overlap() {
    let _quiet = QUIET.blocking_lock();
    let server = RedisServer::start();
    let folder = server.directory();
    let (inside, log) = (folder.join("inside"), folder.join("log"));
    let script = format!(
        "mkdir {inside} || echo overlap >> {log}; echo entered >> {log}; rmdir {inside}",
        inside = inside.display(),
        log = log.display()
    );
    let arguments = ["run", "a", "--", "sh", "-c", &script];
    let start = |_| lockctl(&server.url(), &arguments).spawn().unwrap();
    let children: Vec<_> = (0..100).map(start).collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(fs::read_to_string(log).unwrap(), "entered\n".repeat(100));
}

#[test]
fn the_lock_is_held_until_the_last_process_of_the_group_has_ended() {
    let server = RedisServer::start();
    let url = server.url();
    // The shell gives background processes an empty stdin, hence the copy.
    let script = "exec 3<&0; { cat <&3 > /dev/null; echo over; } & echo left; exit 5";
    let mut running = Running::script(&url, &["a"], script);
    assert_eq!(running.line(), "left");
    // On a busy machine, the shell may end later than this test goes on.
    running.error_line_with("still run");
    assert!(!is_free(&url, "a", &[]));
    assert!(!running.is_over());
    running.close_stdin();
    let end = running.end();
    assert_eq!((end.code, end.stdout.as_str()), (Some(5), "over\n"), "{end:?}");
    assert!(is_free(&url, "a", &[]));
}

#[test]
fn the_url_comes_from_the_option_or_the_environment() {
    let server = RedisServer::start();
    let run = |option: &[&str], variables: &[(&str, &str)]| {
        let all = [option, &["show", "a"]].concat();
        let mut command: Command = lockctl("", &all);
        command.env_remove("LOCKCTL_URL").envs(variables.iter().copied());
        command.output().unwrap().status.code()
    };
    let (url, wrong) = (server.url(), "nonsense://");
    assert_eq!(run(&[], &[]), Some(64));
    assert_eq!(run(&["--url", &url], &[("LOCKCTL_URL", wrong)]), Some(0));
    assert_eq!(run(&[], &[("LOCKCTL_URL", &url), ("REDIS_URL", wrong)]), Some(0));
    assert_eq!(run(&[], &[("LOCKCTL_URL", ""), ("REDIS_URL", &url)]), Some(0));
}
