//! [`PostgresServer`].

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::launch::{
    PostgresStartError, Template, failed, free_port, give, new_directory, run, spawn,
};

use crate::{shared::shared, stopping::until_stopped};

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// The time limit for the processes of a killed server to notice it.
const END: Duration = Duration::from_secs(20);

/// A private PostgreSQL server for one test: on a free port, with its own directory, stopped and
/// removed on drop, even if the test panics.
///
/// The programs are those in the folder that the variable `LOCKCORE_POSTGRES_BIN` names, or the
/// newest of Debian's packages, or those in the `PATH`: PostgreSQL 13 or newer. If the test runs as
/// root, the server runs as the user `postgres`, because it refuses to run as root.
///
/// The superuser `postgres` connects without a password, and other roles with theirs.
/// # Examples
/// ```
/// use lockcore_testkit::PostgresServer;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let server = PostgresServer::start();
/// assert_eq!(server.query("SELECT 6 * 7").await, [["42"]]);
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresServer {
    process: Child,
    port: u16,
    directory: PathBuf,
    options: Vec<String>,
    is_ended: bool,
    /// The ids of the frozen processes. Locked for short critical sections.
    frozen: Mutex<Vec<u32>>,
    /// Kept for the next server.
    template: Arc<Template>,
}

impl PostgresServer {
    /// Starts a server with an empty database.
    ///
    /// # Panics
    /// If PostgreSQL is not installed, with a message that says how to install it: a test that
    /// cannot run has failed.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more settings: `&["max_connections=20"]`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        Self::try_start(settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The server that the tests of this process share while any of them runs.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
        shared(&SHARED, || Self::try_start(&["max_connections=1000"]))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server with more settings.
    ///
    /// # Errors
    /// [`PostgresStartError`], which says what to do about it.
    pub fn try_start(settings: &[&str]) -> Result<Self, PostgresStartError> {
        let template = Template::shared()?;
        Self::prepare(settings, template.clone(), |directory| template.copy_to(directory))
    }

    /// Starts a streaming replica of this server.
    ///
    /// # Panics
    /// If the replica does not come up.
    #[must_use]
    pub fn start_replica(&self) -> Self {
        let port = self.port.to_string();
        let replica = Self::prepare(&[], self.template.clone(), |directory| {
            let arguments = ["-D", "data", "-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
            let more = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
            run("pg_basebackup", directory, &[&arguments[..], &more[..]].concat())
        });
        replica.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls `fill` to create the data of a server in a new directory, and starts the server.
    fn prepare(
        settings: &[&str],
        template: Arc<Template>,
        fill: impl FnOnce(&Path) -> Result<(), PostgresStartError>,
    ) -> Result<Self, PostgresStartError> {
        let directory = new_directory()?;
        let options = settings.iter().map(|&setting| setting.to_owned()).collect();
        let started = fill(&directory).and_then(|()| Self::start_in(&directory, options, template));
        if started.is_err() {
            let _ = fs::remove_dir_all(&directory);
        }
        started
    }

    fn start_in(
        directory: &Path,
        options: Vec<String>,
        template: Arc<Template>,
    ) -> Result<Self, PostgresStartError> {
        let mut failure = failed("there is no free port");
        for _ in 0..ATTEMPTS {
            let port = free_port().map_err(failed)?;
            match spawn(directory, port, &options) {
                Ok(process) => {
                    let directory = directory.to_owned();
                    let (is_ended, frozen) = (false, Mutex::default());
                    return Ok(Self {
                        process,
                        port,
                        directory,
                        options,
                        is_ended,
                        frozen,
                        template,
                    });
                }
                Err(error) => failure = error,
            }
            if !failure.to_string().contains("Address already in use") {
                break;
            }
        }
        Err(failure)
    }

    /// The URL of the server for its superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.address())
    }

    /// The URL of the server for another role.
    #[must_use]
    pub fn url_of(&self, role: &str, password: &str) -> String {
        format!("postgresql://{role}:{password}@{}/postgres", self.address())
    }

    /// The address of the server, such as `127.0.0.1:5432`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory, which is removed with it. Its data is in the folder `data`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the server's user the owner of a file in the server's directory, with no access for
    /// others.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn owns(&self, file: &str) {
        give(&self.directory.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Kills the server with SIGKILL, like a crash.
    pub fn kill(&mut self) {
        let children = if self.is_ended { Vec::new() } else { self.children() };
        // An error means that the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.is_ended = true;
        // The child processes notice by themselves, but a stopped one only when it is resumed.
        send("KILL", &children);
        let end = Instant::now() + END;
        while children.iter().any(|child| is_alive(*child)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes the segment of shared memory that a killed server leaves. A machine has room for a few
    /// thousand of them. A test process that is itself killed still leaves its own.
    fn remove_segment(&self) {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid"));
        // The seventh line has its key and its id.
        if let Some(id) =
            file.unwrap_or_default().lines().nth(6).and_then(|line| line.split_whitespace().nth(1))
        {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
    }

    /// Stops the server cleanly, without waiting for its clients, and returns when it has ended.
    pub fn stop(&mut self) {
        if !self.is_ended {
            send("INT", &[self.process.id()]);
            let _ = self.process.wait();
            self.is_ended = true;
        }
    }

    /// Restarts the server on its port with the data that it had written, killing it first if it
    /// runs.
    ///
    /// # Panics
    /// If the server does not come up.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.directory, self.port, &self.options)
            .unwrap_or_else(|error| panic!("restart: {error}"));
        self.is_ended = false;
        self.frozen().clear();
    }

    /// Freezes the server with SIGSTOP: its connections stay open, but it does not answer.
    pub fn freeze(&self) {
        let main = self.process.id();
        // From then on there are no new child processes.
        send("STOP", &[main]);
        until_stopped(&[main]);
        let children = self.children();
        send("STOP", &children);
        until_stopped(&children);
        *self.frozen() = [&[main][..], &children].concat();
    }

    /// Resumes a frozen server with SIGCONT.
    pub fn thaw(&self) {
        // All at once, so that the server is frozen exactly as long as the test says.
        send("CONT", &std::mem::take(&mut *self.frozen()));
    }

    fn frozen(&self) -> MutexGuard<'_, Vec<u32>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids of the child processes of the server.
    fn children(&self) -> Vec<u32> {
        let parent = self.process.id().to_string();
        let listed = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        let child = |line: &str| {
            let (id, of) = line.trim().split_once(' ')?;
            if of.trim() == parent { id.parse().ok() } else { None }
        };
        String::from_utf8_lossy(&listed).lines().filter_map(child).collect()
    }

    /// Runs SQL as the superuser, on a new connection, and returns the rows as text.
    ///
    /// # Panics
    /// If the server does not answer, or answers with an error.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs SQL as the superuser, on a new connection, and returns the rows as text.
    ///
    /// # Errors
    /// The error of the server.
    pub async fn try_query(&self, sql: &str) -> Result<Vec<Vec<String>>, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        let driver = tokio::spawn(connection);
        let messages = client.simple_query(sql).await;
        drop(client);
        // An error of the connection is reported by the query.
        let _ = driver.await;
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |at| row.get(at).unwrap_or_default().to_owned();
                Some((0..row.len()).map(column).collect())
            }
            _ => None,
        };
        Ok(messages?.into_iter().filter_map(row).collect())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
        self.remove_segment();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Sends a signal to processes. Processes that are gone already are not a failure.
fn send(signal: &str, ids: &[u32]) {
    if ids.is_empty() {
        return;
    }
    let mut command = Command::new("kill");
    command.arg(format!("-{signal}")).args(ids.iter().map(u32::to_string));
    let _ = command.stderr(Stdio::null()).status();
}

/// Returns `false` also for a zombie process.
fn is_alive(id: u32) -> bool {
    let listed = Command::new("ps").args(["-o", "stat=", "-p", &id.to_string()]).output();
    let state = listed.map(|output| output.stdout).unwrap_or_default();
    state.trim_ascii().first().is_some_and(|first| *first != b'Z')
}
