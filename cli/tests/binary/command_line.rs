//! Arguments, messages, and secrets that are never shown.

use std::{fs, net::TcpListener, process::Command};

use lockcore_testkit::RedisServer;

use crate::program::{Running, code, end, shown, until};

/// A port that nobody listens on, as far as one can know.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn mistakes_on_the_command_line_are_one_line_and_64() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    for arguments in [
        &[][..],
        &["nonsense"],
        &["run"],
        &["run", "a"],
        &["run", "a", "true"],
        &["run", "a", "--"],
        &["run", "-n", "-w", "1", "a", "--", "true"],
        &["run", "-w", "-1", "a", "--", "true"],
        &["run", "-w", "soon", "a", "--", "true"],
        &["run", "-s", "-x", "a", "--", "true"],
        &["run", "-s", "--of", "2", "a", "--", "true"],
        &["run", "--permits", "2", "a", "--", "true"],
        &["run", "--lease", "0.5", "a", "--", "true"],
        &["run", "--kill-after", "9999999999999999999", "a", "--", "true"],
        &["run", "--kill-after", "11", "a", "--", "true"],
        &["run", "--lease", "1", "--kill-after", "0.5", "a", "--", "true"],
        &["run", "--permits", "0", "--of", "2", "a", "--", "true"],
        &["run", "--of", "0", "a", "--", "true"],
        &["run", "-s", "--fair", "a", "--", "true"],
        &["run", "--at-least", "0", "a", "--", "true"],
        &["run", "--lease", "366d", "a", "--", "true"],
        &["run", "--at-least", "366d", "a", "--", "true"],
        &["run", "--kill-after", "3651d", "a", "--", "true"],
        &["run", "-w", "1e400", "a", "--", "true"],
        &["run", "-E", "-1", "a", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "-E", "256", "a", "--", "true"],
        &["run", "--on-lost", "cry", "a", "--", "true"],
        &["ls", "a", "b"],
        &["ls", "--rate", "-1"],
        &["ls", "--limit", "many"],
        &["top", "--interval", "0.1"],
        &["top", "--interval", "2h"],
        &["top"],
        &["release", "a"],
        &["release", "a", "--force"],
        &["bench", "--tasks", "0"],
        &["bench", "--tasks", "1001"],
        &["bench", "--seconds", "0"],
        &["bench", "--seconds", "601"],
        &["man", "nonsense"],
        &["completions", "nonsense"],
        &["--url", "mysql://h", "show", "a"],
    ] {
        let end = end(&url, arguments);
        assert_eq!(end.code, Some(64), "{arguments:?}: {end:?}");
        assert_eq!(end.stderr.lines().count(), 1, "{arguments:?}: {end:?}");
        assert!(end.stderr.starts_with("lockctl: ") && end.stdout.is_empty(), "{end:?}");
        assert!(!end.stderr.contains("For more information"), "{end:?}");
    }
}

#[test]
fn a_mistake_on_the_command_line_is_answered_with_what_helps() {
    for (arguments, answer) in [
        (
            &["run", "--lease", "0.5", "a", "--", "true"][..],
            "invalid value '0.5' for '--lease <D>': a lease is at least 1 s",
        ),
        (
            &["run", "-w", "abc", "a", "--", "true"],
            "invalid value 'abc' for '--wait <SECS>': give a number with a unit, such as 2s, 0.5s \
             or 500ms",
        ),
        (
            &["ls", "-d"],
            "unexpected argument '-d' found; tip: to pass '-d' as a value, use '-- -d'",
        ),
        (
            &["ls", "--limit", "-1"],
            "invalid value '-1' for '--limit <N>': invalid digit found in string",
        ),
        (
            &["ls", "--rate", "-1"],
            "invalid value '-1' for '--rate <N>': -1 is not in 0..=4294967295",
        ),
    ] {
        let end = end("", arguments);
        assert_eq!(end.stderr, format!("lockctl: {answer}; see `lockctl --help`\n"));
    }
    for (arguments, answer) in [
        (&["run", "-d", "--", "true"][..], "unexpected argument '-d' found"),
        (
            &["run", "--leas", "3", "a", "--", "true"],
            "unexpected argument '--leas' found; tip: a similar argument exists: '--lease'",
        ),
        (
            &["run", "a", "true", "-x"],
            "unexpected argument 'true' found; put `--` before the command",
        ),
    ] {
        let end = end("", arguments);
        assert_eq!(end.stderr, format!("lockctl: {answer}; see `lockctl run --help`\n"));
    }
}

#[test]
fn a_missing_separator_is_advised_under_any_name_of_the_program_and_only_if_it_is_missing() {
    use std::os::unix::process::CommandExt;

    let answer = |name: &str, arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_lockctl"));
        let output = program.arg0(name).arg("run").args(arguments).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    for name in ["lockctl", "/opt/bin/lock"] {
        let without = "lockctl: unexpected argument 'true' found; put `--` before the command; \
                       see `lockctl run --help`\n";
        assert_eq!(answer(name, &["a", "true"]), without);
        let with = "lockctl: unexpected argument 'b' found; see `lockctl run --help`\n";
        assert_eq!(answer(name, &["a", "b", "--", "true"]), with);
    }
}

#[test]
fn a_mistake_in_the_url_of_etcd_is_answered_with_its_form() {
    for (url, shown) in [
        ("etcd://h:x", "etcd://h:x"),
        ("etcds://a:1,b:0/prefix", "etcds://b:0"),
        ("etcd://me:hunter2@h:1:2", "etcd://h:1:2"),
    ] {
        for arguments in [&["ls"][..], &["doctor"], &["run", "a", "--", "true"]] {
            let end = end(url, arguments);
            let answer = format!(
                "lockctl: `{shown}` has no valid host and port; give etcd://host:port, or \
                 etcds://host:port for TLS\n"
            );
            assert_eq!((end.code, end.stderr), (Some(64), answer));
        }
    }
}

#[test]
fn a_name_that_is_not_valid_is_a_mistake_of_the_caller() {
    let server = RedisServer::start();
    for name in ["", "a{b"] {
        assert_eq!(code(&server.url(), &["run", name, "--", "true"]), 64, "{name:?}");
        assert_eq!(code(&server.url(), &["show", name]), 64, "{name:?}");
    }
}

#[test]
fn a_store_that_is_away_is_69_and_passwords_are_not_shown() {
    let port = closed_port();
    let server = RedisServer::start_with(&["--requirepass", "other"]);
    for url in [
        format!("redis://me:hunter2@127.0.0.1:{port}/1"),
        format!("valkey://:hunter2@127.0.0.1:{port}"),
        format!("redis+sentinel://me:hunter2@127.0.0.1:{port}/primary"),
        format!("redis+cluster://me:hunter2@127.0.0.1:{port}"),
        format!("postgres://me:hunter2@127.0.0.1:{port}/db"),
        format!("etcd://me:hunter2@127.0.0.1:{port}"),
        format!("redis://:hunter2@{}", server.address()),
    ] {
        for arguments in [
            &["run", "--verbose", "-n", "a", "--", "true"][..],
            &["show", "a", "--json"],
            &["ls", "--json"],
            &["release", "a", "--force", "--yes"],
        ] {
            let end = end(&url, arguments);
            assert_eq!(end.code, Some(69), "{url} {arguments:?}: {end:?}");
            if !arguments.contains(&"--verbose") {
                assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
            }
            assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
        }
        let misplaced = end("", &["show", "a", &url]);
        assert_eq!(misplaced.code, Some(64));
        assert!(!misplaced.stderr.contains("hunter2"), "{misplaced:?}");
    }
    let unknown = end("mysql://me:hunter2@h", &["show", "a"]);
    assert!(unknown.code == Some(64) && !unknown.stderr.contains("hunter2"), "{unknown:?}");
}

#[test]
fn a_password_is_not_shown_whatever_it_contains() {
    let server = RedisServer::start();
    let url = server.url();
    for password in ["hun'ter2", "hun ter2", "hun  ter2", "hun\"ter2", "hun`ter2", "hun<t>er2"] {
        let secret = format!("redis://me:{password}@nowhere");
        let option = format!("--url={secret}");
        for arguments in [
            &["show", "a", &secret][..],
            &["show", &option, "a", "b"],
            &["show", "a", "--nonsense", &secret],
            &["man", &secret],
            &["run", "-v", &secret, "--", "true"],
            &["run", "-w", &secret, "a", "--", "true"],
        ] {
            let end = end(&url, arguments);
            assert!(!end.stderr.is_empty(), "{arguments:?}");
            assert!(!end.stderr.contains("er2"), "{end:?}");
        }
    }
}

#[test]
fn a_name_with_control_characters_does_nothing_to_the_terminal() {
    let server = RedisServer::start();
    let url = server.url();
    let name = "a\u{1b}[31m\u{9b}2J\u{202e}\r\nb";
    let holder = Running::inside(&url, &["-v", name]);
    assert_eq!(shown(&url, name)["name"], name, "JSON says what it is");
    let outputs = [
        end(&url, &["show", name]),
        end(&url, &["show", name, "--json"]),
        end(&url, &["run", "-v", "-n", name, "--", "true"]),
        end(&url, &["run", "-s", name, "--", "true"]),
        end(&url, &["release", name, "--force", "--yes"]),
        holder.end(),
    ];
    for end in outputs {
        let text = end.stdout.clone() + &end.stderr;
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.chars().any(obeyed), "{end:?}");
        assert!(text.contains("u{1b}") || text.contains("\\u001b"), "{end:?}");
    }
}

#[test]
fn show_tells_of_a_name_that_is_not_in_use() {
    let server = RedisServer::start();
    let state = shown(&server.url(), "a");
    assert_eq!((state["held"].as_bool(), &state["kind"]), (Some(false), &serde_json::Value::Null));
    let text = end(&server.url(), &["show", "a"]).stdout;
    assert!(text.contains("not held"), "{text}");
}

#[test]
fn release_says_whom_it_took_the_lock_from() {
    let server = RedisServer::start();
    let url = server.url();
    let free = end(&url, &["release", "a", "--force", "--yes"]);
    assert_eq!((free.code, free.stdout.as_str()), (Some(0), "a is not held\n"));
    let holder = Running::inside(&url, &["a"]);
    until("the record", || !shown(&url, "a")["holders"][0]["client"].is_null());
    let first = &shown(&url, "a")["holders"][0];
    let [owner, host] = [&first["owner"], &first["client"]["host"]].map(|it| it.as_str().unwrap());
    let taken = end(&url, &["release", "a", "--force", "--yes"]);
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let whom = format!("{owner} (exclusive) of {host} lockctl {}", holder.pid());
    assert_eq!(taken.stdout, format!("released a, held by {whom}\n"));
    assert_eq!(shown(&url, "a")["held"], false);
}

#[test]
fn help_pages_and_completions_are_written() {
    let folder = RedisServer::start();
    let folder = folder.directory().join("man");
    for command in ["run", "ls", "show", "top", "release", "doctor", "bench", "completions", "man"]
    {
        let help = end("", &[command, "--help"]);
        assert_eq!(help.code, Some(0), "{help:?}");
        assert!(help.stdout.contains("Examples:"), "{command}");
        let page = end("", &["man", command]);
        assert!(page.stdout.contains(&format!(".TH lockctl-{command} 1")), "{}", page.stdout);
    }
    assert!(end("", &["--help"]).stdout.contains("LOCKCTL_URL"));
    assert_eq!(code("", &["--version"]), 0);
    assert!(end("", &["man"]).stdout.contains(".TH lockctl 1"));
    assert_eq!(code("", &["man", "--dir", folder.to_str().unwrap()]), 0);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 10);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(end("", &["completions", shell]).stdout.contains("at-least"), "{shell}");
    }
}

#[test]
fn a_url_without_slashes_is_refused_and_its_password_is_not_shown() {
    for url in ["unix:/nowhere/redis.sock?pass=hunter2", "redis:hunter2@127.0.0.1"] {
        for arguments in [&["ls", "-v"][..], &["run", "-v", "a", "--", "true"]] {
            let end = end(url, arguments);
            assert_eq!(end.code, Some(64), "{end:?}");
            assert!(end.stderr.contains("unix://") && !end.stderr.contains("hunter2"), "{end:?}");
        }
    }
}
