//! [`PgBouncer`]: a private pooler in front of a server.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Arc, Mutex, Weak},
};

use super::{
    PostgresServer, PostgresStartError,
    launch::{as_server_user, failed, free_port, give, new_directory, until_it_says},
};
use crate::shared::shared;

/// Debian keeps it outside of the `PATH` of most users.
const DEBIAN: &str = "/usr/sbin/pgbouncer";

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// A private PgBouncer in transaction mode in front of a [`PostgresServer`], on a free port. It is
/// stopped on drop, even if the test panics.
///
/// It is the `pgbouncer` in the `PATH`, or Debian's. If the test runs as root, it runs as the user
/// `postgres`, because it refuses to run as root. The superuser connects without a password.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    program: PathBuf,
    port: u16,
    directory: PathBuf,
    /// The server behind it, if the tests of the process share both.
    _server: Option<Arc<PostgresServer>>,
}

impl PgBouncer {
    /// Starts a pooler in front of `server`.
    ///
    /// # Panics
    /// If PgBouncer is not installed, with a message that says how to install it.
    #[must_use]
    pub fn before(server: &PostgresServer) -> Self {
        Self::before_with(server, &[])
    }

    /// Starts a pooler with more settings: `&["default_pool_size=1"]`.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn before_with(server: &PostgresServer, settings: &[&str]) -> Self {
        Self::start(server, settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The pooler in front of the [shared](PostgresServer::shared) server that the tests of this
    /// process share while any of them runs.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<PgBouncer>> = Mutex::new(Weak::new());
        let server = PostgresServer::shared();
        shared(&SHARED, || {
            let mut pooler = Self::start(&server, &[])?;
            pooler._server = Some(server);
            Ok::<_, PostgresStartError>(pooler)
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    fn start(server: &PostgresServer, settings: &[&str]) -> Result<Self, PostgresStartError> {
        let program = program()?;
        let directory = new_directory()?;
        let mut failure = failed("there is no free port");
        for _ in 0..ATTEMPTS {
            let port = free_port().map_err(failed)?;
            let started = write(&directory, server.port(), port, settings)
                .and_then(|()| spawn(&program, &directory));
            match started {
                Ok(process) => {
                    return Ok(Self { process, program, port, directory, _server: None });
                }
                Err(error) => failure = error,
            }
            if !failure.to_string().contains("Address already in use") {
                break;
            }
        }
        let _ = fs::remove_dir_all(&directory);
        Err(failure)
    }

    /// The URL of the pooler for the superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.address())
    }

    /// The address of the pooler, such as `127.0.0.1:6432`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the pooler with SIGKILL, and starts it again on its port.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.program, &self.directory)
            .unwrap_or_else(|error| panic!("restart: {error}"));
    }

    fn kill(&mut self) {
        // An error means that the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn program() -> Result<PathBuf, PostgresStartError> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|folder| folder.join("pgbouncer"))
        .chain([PathBuf::from(DEBIAN)])
        .find(|program| program.exists())
        .ok_or(PostgresStartError::NoPooler)
}

/// Writes the settings for a pooler on `port` in front of the server on `server`.
fn write(
    directory: &Path,
    server: u16,
    port: u16,
    settings: &[&str],
) -> Result<(), PostgresStartError> {
    let fixed = format!(
        "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\npool_mode=transaction\n\
         listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=trust\n\
         auth_file=users\nmax_client_conn=2000\n"
    );
    let more: String = settings.iter().map(|setting| format!("{setting}\n")).collect();
    for (file, text) in [("settings", fixed + &more), ("users", "\"postgres\" \"\"\n".to_owned())] {
        let file = directory.join(file);
        fs::write(&file, text).map_err(failed)?;
        give(&file)?;
    }
    Ok(())
}

/// Starts the pooler whose settings are in `directory`, and returns when it accepts connections.
fn spawn(program: &Path, directory: &Path) -> Result<Child, PostgresStartError> {
    let mut command = as_server_user(Command::new(program), directory)?;
    command.arg("settings");
    until_it_says("process up", command).map_err(|error| match error {
        PostgresStartError::Failed(said) => failed(format_args!("pgbouncer: {said}")),
        error => error,
    })
}
