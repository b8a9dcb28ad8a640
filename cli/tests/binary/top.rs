//! `lockctl top` on a terminal.

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockcore::{LockGuard, Locks};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;
use rustix::{
    pty::{self, OpenptFlags},
    termios::{Winsize, tcsetwinsize},
};

use crate::{
    program::{LONG, Running, end, is_free, kill, lockctl, state},
    tmux::{PROMPT, Tmux},
};

async fn locks(url: &str) -> Locks {
    let backend = RedisBackend::connect(url).await.unwrap();
    Locks::builder(backend).lease(Duration::from_secs(600)).build().unwrap()
}

/// `lockctl top` in a terminal, once `shown` is on the screen.
fn top(url: &str, (width, height): (u16, u16), shown: &[&str]) -> Tmux {
    let tmux = Tmux::start(url, width, height);
    tmux.command(r#"echo before; "$LOCKCTL" top --interval 0.2; echo "code $?""#);
    tmux.until_shown(&[&["lockctl top"], shown].concat());
    tmux
}

/// Shows that the terminal is restored: the earlier content is back, and typed text is shown.
fn is_restored(tmux: &Tmux, code: u8) {
    tmux.until_shown(&["before", &format!("code {code}")]);
    tmux.command("stty -a | tr ' ;' '\\n\\n' | grep -cx -e echo -e icanon -e isig");
    tmux.until("the settings", |screen| screen.lines().any(|line| line == "3"));
    assert!(!tmux.screen().contains("lockctl top  "), "{}", tmux.screen());
}

/// Lines of the table that begin with one of `names`.
fn order<'a>(screen: &str, names: &[&'a str]) -> Vec<&'a str> {
    let row = |line: &str| names.iter().find(|name| line.starts_with(**name)).copied();
    screen.lines().filter_map(row).collect()
}

/// Returns `true` if a colour is set, other than the default of the terminal.
fn has_colours(screen: &str) -> bool {
    let colours = (0..8).map(|colour| format!("\u{1b}[3{colour}m"));
    colours.chain(["\u{1b}[38;5;".to_owned()]).any(|code| screen.contains(&code))
}

async fn busy(locks: &Locks) -> Vec<LockGuard> {
    vec![
        locks.lock("alpha").acquire().await.unwrap(),
        locks.fair_lock("beta").acquire().await.unwrap(),
        locks.rw_lock("gamma").read().acquire().await.unwrap(),
        locks.semaphore("delta", 5).permits(2).acquire().await.unwrap(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn top_works_on_24_lines() {
    let server = RedisServer::start();
    let url = server.url();
    let locks = locks(&url).await;
    let guards = busy(&locks).await;
    let names = ["alpha", "beta", "delta", "gamma"];
    let tmux = top(&url, (80, 24), &names);
    let fair = locks.fair_lock("beta");
    let waiting = tokio::spawn(async move { fair.acquire().await.is_ok() });
    let screen = tmux.until_shown(&["waiting 1", "held 4", "████ 1"]);
    assert!(screen.contains("waiting, at most") && screen.lines().count() <= 24, "{screen}");
    assert_eq!(order(&screen, &names), ["beta", "alpha", "delta", "gamma"]);
    let row = screen.lines().find(|line| line.starts_with("delta")).unwrap();
    assert!(row.contains("permits") && row.contains("2/5") && row.contains("██████ "), "{row}");

    tmux.write("n");
    tmux.until("the order of names", |screen| order(screen, &names) == names);
    tmux.write("/");
    tmux.write("ETA");
    tmux.until("the filter", |screen| {
        order(screen, &names) == ["beta"] && screen.contains("/ETA_")
    });
    tmux.press(&["Escape"]);
    tmux.until("all of them", |screen| order(screen, &names) == names);
    tmux.press(&["Down", "Down", "Enter"]);
    tmux.until_shown(&[" details ", "HOLDERS", "WAITERS", "fair lock  held"]);
    tmux.write("?");
    tmux.until_shown(&["keys and columns", "force release, after asking"]);
    tmux.write("q");
    tmux.until("the end of the help", |screen| !screen.contains("keys and columns"));
    tmux.resize(120, 40);
    tmux.until("the new size", |screen| {
        screen.lines().any(|line| line.chars().count() > 100) && screen.contains("? help")
    });
    tmux.write("q");
    is_restored(&tmux, 0);
    drop(guards);
    assert!(waiting.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn top_uses_the_room_of_60_lines() {
    let server = RedisServer::start();
    let url = server.url();
    let locks = locks(&url).await;
    let names: Vec<String> = (0..200).map(|number| format!("order:{number:03}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.lock(name.as_str()).acquire().await.unwrap());
    }
    let tmux = top(&url, (200, 60), &["200 names", "held 200", " details ", "order:040"]);
    let screen = tmux.screen();
    assert!(screen.matches("order:").count() >= 40, "{screen}");
    tmux.press(&["Down"]);
    tmux.until_shown(&["HOLDERS"]);
    tmux.write("G");
    tmux.until_shown(&["order:199"]);
    tmux.write("g");
    tmux.until_shown(&["order:000"]);
    assert!(has_colours(&tmux.screen_with_codes()), "{:?}", tmux.screen_with_codes());
    drop(guards);
    tmux.until_shown(&["no name is in use"]);
    tmux.press(&["C-c"]);
    is_restored(&tmux, 0);
}

#[test]
fn top_asks_before_it_releases_by_force() {
    let server = RedisServer::start();
    let url = server.url();
    let name = "a\u{1b}[31m";
    let _holder = Running::inside(&url, &["--lease", "600", name]);
    let tmux = top(&url, (80, 24), &["a\\u{1b}[31m"]);
    tmux.write("f");
    tmux.until_shown(&["select a name first"]);
    tmux.press(&["Down"]);
    for (answer, said) in [("n", "nothing was released"), ("y", "released a\\u{1b}[31m, held by")] {
        tmux.write("f");
        tmux.until_shown(&["a\\u{1b}[31m is held by", "Take it away? [y/N]"]);
        assert!(!is_free(&url, name, &[]));
        tmux.write(answer);
        tmux.until_shown(&[said]);
    }
    assert!(is_free(&url, name, &[]));
    tmux.until_shown(&["no name is in use"]);
}

#[test]
fn a_release_that_was_confirmed_is_waited_for_at_the_end() {
    let server = RedisServer::start();
    let url = server.url();
    let _holder = Running::inside(&url, &["--lease", "600", "a"]);
    let tmux = top(&url, (80, 24), &["held 1"]);
    tmux.press(&["Down"]);
    tmux.write("f");
    tmux.until_shown(&["Take it away? [y/N]"]);
    // Both keys are read before the store has answered.
    tmux.write("yq");
    tmux.until_shown(&["before", "lockctl: released a, held by", "code 0"]);
    assert!(is_free(&url, "a", &[]));
}

#[test]
fn a_question_lapses_when_the_name_has_another_holder() {
    let server = RedisServer::start();
    let url = server.url();
    let mut first = Running::inside(&url, &["a"]);
    let tmux = top(&url, (80, 24), &["held 1"]);
    tmux.press(&["Down"]);
    tmux.write("f");
    tmux.until_shown(&["Take it away? [y/N]"]);
    first.close_stdin();
    let _second = Running::inside(&url, &["a"]);
    tmux.until_shown(&["a has another holder by now"]);
    tmux.write("y");
    tmux.until_shown(&["nothing was released"]);
    assert!(!is_free(&url, "a", &[]));
}

/// As after `ssh -t` or `docker exec`: nobody could continue a stopped group.
#[test]
fn top_is_not_stopped_where_no_shell_can_continue_it() {
    let server = RedisServer::start();
    let url = server.url();
    let tmux = Tmux::start(&url, 80, 24);
    tmux.command(r#"exec "$LOCKCTL" top"#);
    tmux.until_shown(&["no name is in use"]);
    tmux.press(&["C-z"]);
    // A key takes effect at once, without Enter, and is not echoed.
    tmux.write("?");
    tmux.until_shown(&["lockctl top  ", "keys and columns"]);
    assert_ne!(state(&tmux.shell()), Some('T'));
}

#[test]
fn top_goes_on_when_the_store_is_back() {
    let mut server = RedisServer::start();
    let url = server.url();
    let tmux = top(&url, (80, 24), &["no name is in use"]);
    server.stop();
    tmux.until_shown(&["STORE AWAY for"]);
    server.restart();
    let _holder = Running::inside(&url, &["back"]);
    tmux.until("the lock", |screen| screen.contains("back ") && !screen.contains("STORE AWAY"));
}

#[test]
fn signals_restore_the_terminal() {
    let server = RedisServer::start();
    let url = server.url();
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let tmux = top(&url, (80, 24), &["no name is in use"]);
        kill(signal, &child_of(&tmux.shell()));
        is_restored(&tmux, code);
    }
}

/// As when the connection of `ssh -t` breaks off.
#[test]
fn a_terminal_that_goes_away_ends_top_like_its_signal() {
    let server = RedisServer::start();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = pty::openpt(flags).unwrap();
    pty::unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
    let inside = || Stdio::from(pty::ioctl_tiocgptpeer(&terminal, flags).unwrap());
    let top = lockctl(&server.url(), &["top"]);
    // As the leader of a session, it gets the signal itself.
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(top.get_program()).args(top.get_args());
    for (name, value) in top.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut top = command.stdin(inside()).stdout(inside()).stderr(inside()).spawn().unwrap();
    // Otherwise it has the terminal as well.
    drop(command);
    let (mut terminal, mut shown, mut chunk) = (File::from(terminal), Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&shown).contains("lockctl") {
        let length = terminal.read(&mut chunk).expect("top draws");
        shown.extend_from_slice(&chunk[..length]);
    }
    drop(terminal);
    let hung_up = Instant::now();
    while top.try_wait().unwrap().is_none() && hung_up.elapsed() < LONG {
        thread::sleep(Duration::from_millis(10));
    }
    // It would run on, with all of a processor.
    let _ = top.kill();
    assert_eq!(top.wait().unwrap().code(), Some(129));
}

/// The interval of the samples is much longer.
#[test]
fn a_notice_goes_away_by_itself() {
    let server = RedisServer::start();
    let tmux = Tmux::start(&server.url(), 80, 24);
    tmux.command(r#""$LOCKCTL" top --interval 600"#);
    tmux.until_shown(&["no name is in use"]);
    tmux.write("f");
    tmux.until_shown(&["select a name first"]);
    tmux.until("the end of the notice", |screen| !screen.contains("select a name first"));
}

/// The process that the shell has started.
fn child_of(shell: &str) -> String {
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    children.expect("the shell runs").trim().to_owned()
}

#[test]
fn top_can_be_suspended() {
    let server = RedisServer::start();
    let url = server.url();
    let tmux = Tmux::start(&url, 80, 24);
    tmux.command(r#""$LOCKCTL" top"#);
    tmux.until_shown(&["no name is in use"]);
    tmux.press(&["C-z"]);
    tmux.until("the shell", |screen| {
        screen.matches(PROMPT).count() == 2 && !screen.contains("no name is in use")
    });
    tmux.command("fg");
    tmux.until_shown(&["lockctl top  ", "no name is in use"]);
    tmux.write("q");
    tmux.until("the shell", |screen| screen.matches(PROMPT).count() == 3);
    tmux.command(r#"echo "then $?""#);
    tmux.until_shown(&["then 0"]);
}

#[test]
fn top_obeys_no_color_and_shows_no_password() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let url = server.url().replace("redis://", "redis://:hunter2@");
    let _holder = Running::inside(&url, &["a"]);
    let tmux = Tmux::start(&url, 80, 24);
    tmux.command(r#"NO_COLOR=1 "$LOCKCTL" top"#);
    tmux.until_shown(&["redis://***@127.0.0.1", "held 1"]);
    let screen = tmux.screen_with_codes();
    assert!(!has_colours(&screen) && !screen.contains("hunter2"), "{screen:?}");
}

#[test]
fn top_needs_a_terminal_and_a_store() {
    let server = RedisServer::start();
    let piped = end(&server.url(), &["top"]);
    assert_eq!((piped.code, piped.stderr.lines().count()), (Some(64), 1), "{piped:?}");
    assert!(piped.stderr.contains("lockctl ls"), "{piped:?}");
    let url = "redis://me:hunter2@127.0.0.1:1";
    let tmux = Tmux::start(url, 200, 24);
    tmux.command(r#""$LOCKCTL" top; echo "code $?""#);
    let screen = tmux.until_shown(&["code 69"]);
    assert!(screen.contains("redis://***@127.0.0.1:1") || screen.contains("lockctl: "), "{screen}");
    assert!(!screen.contains("hunter2"), "{screen}");
}
