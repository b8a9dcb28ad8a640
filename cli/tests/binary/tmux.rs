//! A terminal whose screen can be read, which tmux provides.

use std::{
    fs,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::program::{LONG, lockctl};

/// The prompt of the shell in the terminal.
pub(crate) const PROMPT: &str = "ready>";

/// A terminal with a shell, in a separate tmux server. Both end when this is dropped.
#[derive(Debug)]
pub(crate) struct Tmux {
    socket: String,
}

impl Tmux {
    /// A terminal of `width` x `height` characters. Commands in it find the store at `url`.
    pub(crate) fn start(url: &str, width: u16, height: u16) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let tmux = Self { socket: format!("lockctl-{}-{count}", process::id()) };
        let mut command = Command::new("tmux");
        for (name, value) in lockctl(url, &[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let (width, height) = (width.to_string(), height.to_string());
        // With UTF-8, whatever the locale of the tests is.
        command.args(["-u", "-L", &tmux.socket, "-f", "/dev/null", "new-session", "-d"]);
        command.args(["-x", &width, "-y", &height]);
        command.args(["env", "--default-signal", "-u", "ENV", "-u", "NO_COLOR"]);
        command.args([&format!("PS1={PROMPT} "), "sh", "-i"]);
        let output = command.output().unwrap_or_else(|error| {
            panic!("tmux cannot be started ({error}); ./scripts/test installs it")
        });
        assert!(output.status.success(), "{output:?}");
        tmux.until("the prompt", |screen| screen.contains(PROMPT));
        tmux
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.socket]).args(arguments);
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("the screen is UTF-8")
    }

    /// The content of the screen.
    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// The content of the screen, with the codes for colours and the like.
    pub(crate) fn screen_with_codes(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// The process of the shell.
    pub(crate) fn shell(&self) -> String {
        self.run(&["display-message", "-p", "#{pane_pid}"]).trim().to_owned()
    }

    /// Types a text.
    pub(crate) fn write(&self, text: &str) {
        self.run(&["send-keys", "-l", text]);
    }

    /// Presses keys that have names, such as `Enter`, `Down` or `C-c`.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Gives the shell a command.
    pub(crate) fn command(&self, command: &str) {
        self.write(command);
        self.press(&["Enter"]);
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.run(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Polls until the screen is as expected, and returns it.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        self.until_within(LONG, what, is_so)
    }

    /// The same with another time limit.
    pub(crate) fn until_within(
        &self,
        limit: Duration,
        what: &str,
        is_so: impl Fn(&str) -> bool,
    ) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(began.elapsed() < limit, "{what} is not on the screen:\n{screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Polls until all of `texts` are on the screen.
    pub(crate) fn until_shown(&self, texts: &[&str]) -> String {
        self.until(&format!("{texts:?}"), |screen| texts.iter().all(|text| screen.contains(text)))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Fails if the shell has ended, and the server with it.
        let tmux = |arguments: &[&str]| {
            Command::new("tmux").args(["-L", &self.socket]).args(arguments).output()
        };
        let path = tmux(&["display-message", "-p", "#{socket_path}"]);
        let _ = tmux(&["kill-server"]);
        // tmux leaves the file behind.
        if let Some(path) = path.ok().and_then(|output| String::from_utf8(output.stdout).ok()) {
            let _ = fs::remove_file(path.trim());
        }
    }
}
