//! How the tests start `lockctl`, and how they observe it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::sync::Mutex;

/// The limit for events that come at once on an idle machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Held by tests that keep the machine busy, and by those that a busy machine would disturb.
pub(crate) static QUIET: Mutex<()> = Mutex::const_new(());

/// `lockctl` with `arguments`, on the store at `url`.
pub(crate) fn lockctl(url: &str, arguments: &[&str]) -> Command {
    let mut command = on_store(url, env!("CARGO_BIN_EXE_lockctl"));
    command.args(arguments);
    command
}

/// A shell that runs `script`, in which `$LOCKCTL` is the program, on the store at `url`.
pub(crate) fn shell(url: &str, script: &str) -> Command {
    let mut command = on_store(url, "sh");
    command.args(["-c", script]);
    command
}

fn on_store(url: &str, program: &str) -> Command {
    // The process that starts the tests may ignore signals, as with `nohup`, or in a background job
    // of a shell. Every child inherits that.
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    for variable in ["REDIS_URL", "LOCKCTL_HELD", "LOCKCTL_NAME"] {
        command.env_remove(variable);
    }
    command.env("LOCKCTL_URL", url).env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"));
    command.stdin(Stdio::null());
    command
}

/// The end of a run of `lockctl`.
#[derive(Debug)]
pub(crate) struct End {
    /// The exit code, or 128 + n after signal n, as in shells.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for End {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        Self::new(status, text(stdout), text(stderr))
    }
}

impl End {
    fn new(status: ExitStatus, stdout: String, stderr: String) -> Self {
        let signal = status.signal();
        let code = status.code().or(signal.map(|signal| 128 + signal));
        Self { code, signal, stdout, stderr }
    }
}

/// Runs `lockctl` until it ends.
pub(crate) fn end(url: &str, arguments: &[&str]) -> End {
    lockctl(url, arguments).output().expect("lockctl starts").into()
}

/// The exit code of a run.
pub(crate) fn code(url: &str, arguments: &[&str]) -> i32 {
    let end = end(url, arguments);
    end.code.unwrap_or_else(|| panic!("{end:?}"))
}

/// Returns `true` if `name` can be acquired without waiting, with `arguments`.
pub(crate) fn is_free(url: &str, name: &str, arguments: &[&str]) -> bool {
    let all = [&["run", "-n"], arguments, &[name, "--", "true"]].concat();
    match code(url, &all) {
        0 => true,
        75 => false,
        other => panic!("{all:?} ended with {other}"),
    }
}

/// The output of `lockctl show --json`.
pub(crate) fn shown(url: &str, name: &str) -> Value {
    let end = end(url, &["show", name, "--json"]);
    assert_eq!(end.code, Some(0), "{end:?}");
    serde_json::from_str(&end.stdout).expect("JSON")
}

/// Polls until `is_so` holds. If that takes too long, it shows what each process is doing.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what} does not happen\n{}", processes());
        thread::sleep(Duration::from_millis(10));
    }
}

/// All processes of this machine, with the process groups in the foreground of their terminals.
fn processes() -> String {
    let columns = "pid,ppid,pgid,sid,tpgid,stat,wchan:20,etimes,args";
    match Command::new("ps").args(["-eo", columns]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("ps: {error}"),
    }
}

/// A running `lockctl`, with pipes to its command. Killed with SIGKILL if it was not waited for.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    /// `lockctl run` of a shell script.
    pub(crate) fn script(url: &str, arguments: &[&str], script: &str) -> Self {
        let all = [&["run"], arguments, &["--", "sh", "-c", script]].concat();
        Self::start(lockctl(url, &all))
    }

    /// `lockctl run` of a command that is inside when this returns, and ends when its stdin is
    /// closed.
    pub(crate) fn inside(url: &str, arguments: &[&str]) -> Self {
        let mut running = Self::script(url, arguments, "echo inside; cat > /dev/null");
        assert_eq!(running.line(), "inside");
        running
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of the output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the output can be read");
        line.trim_end().to_owned()
    }

    /// Reads stderr until a line contains `text`.
    pub(crate) fn error_line_with(&mut self, text: &str) {
        let pipe = self.child.stderr.as_mut().expect("a pipe");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&line).contains(text) {
            if byte[0] == b'\n' {
                line.clear();
            }
            // Byte by byte, so that nothing after the line is consumed.
            let read = pipe.read(&mut byte).expect("stderr can be read");
            assert_eq!(read, 1, "`{text}` does not come");
            line.push(byte[0]);
        }
    }

    /// Writes a line to the command.
    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).expect("it reads");
    }

    /// Closes the stdin of the command.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal to `lockctl` alone.
    pub(crate) fn signal(&self, signal: &str) {
        kill(signal, &self.pid().to_string());
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_some()
    }

    /// Waits for the end, and returns it. Output that was read before is not repeated.
    pub(crate) fn end(mut self) -> End {
        self.stdin = None;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).expect("UTF-8");
        let mut pipe = self.child.stderr.take().expect("a pipe");
        pipe.read_to_string(&mut stderr).expect("UTF-8");
        let status = self.child.wait().expect("it can be waited for");
        End::new(status, stdout, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, or to a group if its number is negative.
pub(crate) fn kill(signal: &str, pid: &str) {
    let status = Command::new("kill").args(["-s", signal, "--", pid]).status().expect("kill runs");
    assert!(status.success(), "{pid} cannot get {signal}");
}

/// The state of a process as `/proc` has it: `R`, `S`, `T` if it is stopped, `Z` if it has ended.
#[cfg(target_os = "linux")]
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Returns `true` if the process has not ended.
#[cfg(target_os = "linux")]
pub(crate) fn runs(pid: &str) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
