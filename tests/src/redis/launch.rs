//! [`Launch`]: how a server process is started and restarted.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io::{self, BufRead, BufReader, Read},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use super::version::{Version, executable, not_started};
use crate::{folder::new_folder, scratch::scratch};

/// The difference between the port of the cluster bus and that of the clients.
const BUS_OFFSET: u16 = 10_000;

/// Options with which a replica gets its data at once. Without a file on the disk, Redis 7.0 holds
/// writes back for up to one more second, although it reports the replica as online.
pub(super) const SYNC_AT_ONCE: [&str; 2] = ["--repl-diskless-sync", "no"];

/// Why a server could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no `redis-server` on the `PATH`.
    NotInstalled,
    /// There is no executable at the path in the variable `LOCKCORE_REDIS_SERVER`.
    Missing(PathBuf),
    /// The server did not come up; with its output.
    Failed(String),
    /// The servers of a group did not find each other; with what was missing last.
    Incomplete(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "redis-server is not installed: run ./scripts/test, which installs it, or install \
                 it yourself (Debian, Ubuntu: apt-get install redis-server; Fedora: dnf install \
                 redis; macOS: brew install redis), or set LOCKCORE_REDIS_SERVER to its path",
            ),
            Self::Missing(path) => write!(
                f,
                "LOCKCORE_REDIS_SERVER names {}, which does not exist: ./scripts/servers unpacks \
                 servers of several versions and prints their paths",
                path.display()
            ),
            Self::Failed(said) => write!(f, "redis-server did not start: {said}"),
            Self::Incomplete(missing) => write!(f, "the servers did not agree: {missing}"),
        }
    }
}

impl std::error::Error for StartError {}

/// The arguments of the process, at its first start and at each restart.
#[derive(Clone, Default)]
pub(super) struct Launch {
    /// The lines of a configuration file, which the server may rewrite. A Sentinel needs one.
    pub(super) configuration: Option<String>,
    pub(super) options: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

impl fmt::Debug for Launch {
    /// Omits the options, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").finish_non_exhaustive()
    }
}

impl Launch {
    /// The value of an option, if it was given.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        let at = self.options.iter().position(|option| option == name)?;
        self.options.get(at + 1).map(String::as_str)
    }

    /// Starts the process and returns when it accepts connections.
    pub(super) fn spawn(&self, port: u16, directory: &Path) -> Result<Child, StartError> {
        let mut process = self.command(port, directory)?.spawn().map_err(not_started)?;
        let mut said = String::new();
        if let Some(output) = process.stdout.take() {
            let mut lines = BufReader::new(output);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                // By the time a Sentinel prints its id, it listens.
                if line.contains("Ready to accept connections") || line.contains("Sentinel ID is") {
                    process.stderr = None;
                    // The server continues to write, and would block if nobody read its output.
                    thread::spawn(move || io::copy(&mut lines, &mut io::sink()));
                    return Ok(process);
                }
                said.push_str(&line);
                line.clear();
            }
        }
        let _ = process.kill();
        let _ = process.wait();
        // The errors are about unknown options.
        if let Some(mut errors) = process.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        Err(StartError::Failed(said))
    }

    fn command(&self, port: u16, directory: &Path) -> Result<Command, StartError> {
        let mut command = Command::new(executable());
        command
            .args(self.configuration.as_ref().map(|_| configuration_file(directory)))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(socket(directory))
            .arg("--dir")
            .arg(directory);
        // Older servers allow it by default, and do not know the option.
        if Version::of_server()? >= Version::new(7, 0, 0) {
            command.args(["--enable-debug-command", "local"]);
        }
        command
            .args(&self.options)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }
}

pub(super) fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

pub(super) fn configuration_file(directory: &Path) -> PathBuf {
    directory.join("redis.conf")
}

pub(super) fn new_directory() -> io::Result<PathBuf> {
    new_folder(&scratch(), "lockcore")
}

pub(super) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A free port whose cluster bus port is free as well.
///
/// Both are below the range that systems use for outgoing connections, which could occupy the port
/// of a node that is restarted.
pub(super) fn free_cluster_port() -> io::Result<u16> {
    let mut failure = None;
    for attempt in 0..100_u32 {
        let random = RandomState::new().hash_one(attempt) % 12_000;
        let port = BUS_OFFSET + u16::try_from(random).unwrap_or_default();
        let bind = |port| TcpListener::bind(("127.0.0.1", port));
        match bind(port).and_then(|_| bind(port + BUS_OFFSET)) {
            Ok(_) => return Ok(port),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}
