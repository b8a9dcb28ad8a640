//! Starting etcd servers.

use std::{
    fmt,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    thread,
};

use crate::folder::new_folder;

/// The variable that names an `etcd` other than the one on the `PATH`.
const VARIABLE: &str = "LOCKCORE_ETCD";

/// The election times in milliseconds. The shortest lease follows from them: 1 s.
const TIMES: [&str; 4] = ["--heartbeat-interval", "60", "--election-timeout", "600"];

/// Why an etcd cluster could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum EtcdStartError {
    /// There is no `etcd` on the `PATH`.
    NotInstalled,
    /// There is no executable at the path in the variable `LOCKCORE_ETCD`.
    Missing(PathBuf),
    /// A server did not come up; with its output.
    Failed(String),
}

impl fmt::Display for EtcdStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "etcd is not installed: run ./scripts/test, which installs it, or install it \
                 yourself (Debian, Ubuntu: apt-get install etcd-server; Fedora: dnf install etcd; \
                 macOS: brew install etcd), or set LOCKCORE_ETCD to its path",
            ),
            Self::Missing(path) => {
                write!(f, "{VARIABLE} names {}, which does not exist", path.display())
            }
            Self::Failed(said) => write!(f, "etcd did not start: {said}"),
        }
    }
}

impl std::error::Error for EtcdStartError {}

pub(super) fn failed(error: impl fmt::Display) -> EtcdStartError {
    EtcdStartError::Failed(error.to_string())
}

/// How a member is started and restarted.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) port: u16,
    pub(super) peer_port: u16,
    /// All members: `name=url,..`
    pub(super) cluster: String,
    /// `true` if the cluster begins with this member, `false` if the member is added to it.
    pub(super) is_new: bool,
    pub(super) options: Vec<String>,
}

impl Launch {
    pub(super) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    /// Starts the process. [`ready`] waits until it serves.
    pub(super) fn spawn(&self) -> Result<Child, EtcdStartError> {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let program = named.clone().unwrap_or_else(|| PathBuf::from("etcd"));
        let scheme = match self.options.iter().any(|option| option == "--cert-file") {
            true => "https",
            false => "http",
        };
        let client = format!("{scheme}://127.0.0.1:{}", self.port);
        let (peer, state) = (self.peer_url(), if self.is_new { "new" } else { "existing" });
        let spawned = Command::new(program)
            .args(["--name", &self.name, "--data-dir"])
            .arg(&self.directory)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.cluster, "--initial-cluster-state", state])
            .args(TIMES)
            .args(&self.options)
            // Older versions require this on processors that they were not tested on.
            .env("ETCD_UNSUPPORTED_ARCH", architecture())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        spawned.map_err(|error| match (error.kind(), named) {
            (io::ErrorKind::NotFound, Some(path)) => EtcdStartError::Missing(path),
            (io::ErrorKind::NotFound, None) => EtcdStartError::NotInstalled,
            _ => failed(error),
        })
    }
}

/// The Go name of this processor architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns when a member serves clients, which it does once a majority is up.
pub(super) fn ready(output: Option<ChildStderr>) -> Result<(), EtcdStartError> {
    let mut said = String::new();
    if let Some(output) = output {
        let mut lines = BufReader::new(output);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            if line.contains("ready to serve client requests") {
                // The server continues to write, and would block if nobody read its output.
                thread::spawn(move || io::copy(&mut lines, &mut io::sink()));
                return Ok(());
            }
            said.push_str(&line);
            line.clear();
        }
    }
    Err(EtcdStartError::Failed(said))
}

/// Different free ports: all are bound at the same time.
pub(super) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let bind = |_| TcpListener::bind("127.0.0.1:0");
    let bound = (0..count).map(bind).collect::<io::Result<Vec<_>>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// A new folder in `parent`.
pub(super) fn new_directory(parent: &Path) -> io::Result<PathBuf> {
    new_folder(parent, "lockcore-etcd")
}

pub(super) fn data(directory: &Path, name: &str) -> PathBuf {
    directory.join(name)
}
