//! [`RedisServer`]: a private redis-server for a test.

use std::{
    fmt, fs,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use redis::{AsyncConnectionConfig, FromRedisValue};

/// How often another port is tried when somebody else was faster.
const ATTEMPTS: u32 = 20;

/// Commands that clients of the lock send. Everything else that is counted is the test's own curiosity, or runs inside scripts.
const OF_CLIENTS: [&str; 5] = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];

/// A redis-server process of one test's own: on a free port, with a directory of its own, stopped and removed when dropped, also
/// when the test panics.
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisServer;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let server = RedisServer::start();
/// let pong: String = server.query(&["PING"]).await;
/// assert_eq!(pong, "PONG");
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    tls_port: u16,
    directory: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    /// For the test's own questions, if the server asks for a password.
    password: Option<String>,
}

/// Why a server could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no `redis-server` on the `PATH`.
    NotInstalled,
    /// It did not come up; with what it said.
    Failed(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "redis-server is not installed: run ./scripts/test, which installs it, or install it yourself \
                 (Debian, Ubuntu: apt-get install redis-server; Fedora: dnf install redis; macOS: brew install redis)",
            ),
            Self::Failed(said) => write!(f, "redis-server did not start: {said}"),
        }
    }
}

impl std::error::Error for StartError {}

impl RedisServer {
    /// Starts a server without persistence.
    ///
    /// # Panics
    /// If there is no redis-server, with a sentence that says how to install it: a test that cannot run has failed.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more options, as on its command line: `&["--maxmemory", "1mb"]`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(options: &[&str]) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server with more options.
    ///
    /// # Errors
    /// [`StartError`], with what to do about it.
    pub fn try_start(options: &[&str]) -> Result<Self, StartError> {
        let directory = new_directory().map_err(|error| StartError::Failed(error.to_string()))?;
        Self::try_start_in(directory, None, options, &[])
    }

    /// Starts a server with more options and with environment variables, to preload a library for example.
    ///
    /// # Errors
    /// [`StartError`], with what to do about it.
    pub fn try_start_with_environment(
        options: &[&str],
        environment: &[(String, String)],
    ) -> Result<Self, StartError> {
        let directory = new_directory().map_err(|error| StartError::Failed(error.to_string()))?;
        Self::try_start_in(directory, None, options, environment)
    }

    fn try_start_in(
        directory: PathBuf,
        file: Option<&Path>,
        options: &[&str],
        environment: &[(String, String)],
    ) -> Result<Self, StartError> {
        let file = file.map(|file| file.display().to_string());
        let options = file.iter().map(String::as_str).chain(options.iter().copied());
        let options: Vec<String> = options.map(str::to_owned).collect();
        let password = options
            .iter()
            .position(|option| option == "--requirepass")
            .and_then(|at| options.get(at + 1))
            .cloned();
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let port = free_port().map_err(|error| StartError::Failed(error.to_string()))?;
            match spawn(port, &directory, &options, environment) {
                Ok(process) => {
                    let environment = environment.to_vec();
                    return Ok(Self {
                        process,
                        port,
                        tls_port: 0,
                        directory,
                        options,
                        environment,
                        password,
                    });
                }
                Err(StartError::NotInstalled) => return Err(StartError::NotInstalled),
                Err(StartError::Failed(message)) => said = message,
            }
            if !said.contains("Address already in use") {
                break;
            }
        }
        let _ = fs::remove_dir_all(&directory);
        Err(StartError::Failed(said))
    }

    /// Starts a server that speaks TLS on another port as well, with these files in PEM form, and asks clients for no
    /// certificate.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_tls(authority: &str, certificate: &str, key: &str) -> Self {
        let mut failure = String::new();
        for _ in 0..ATTEMPTS {
            let tls_port = free_port().unwrap_or_default();
            let tls_option = tls_port.to_string();
            let options = [
                "--tls-port",
                &tls_option,
                "--tls-auth-clients",
                "no",
                "--tls-ca-cert-file",
                authority,
            ];
            let files = ["--tls-cert-file", certificate, "--tls-key-file", key];
            match Self::try_start(&[&options[..], &files[..]].concat()) {
                Ok(mut server) => {
                    server.tls_port = tls_port;
                    return server;
                }
                Err(error) => failure = error.to_string(),
            }
        }
        panic!("{failure}");
    }

    /// Starts a Sentinel, which watches nothing.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_sentinel() -> Self {
        // It refuses to start without a file that it can rewrite; everything else is on the command line.
        let directory = new_directory().unwrap_or_else(|error| panic!("{error}"));
        let file = directory.join("sentinel.conf");
        fs::write(&file, "").unwrap_or_else(|error| panic!("{error}"));
        Self::try_start_in(directory, Some(&file), &["--sentinel"], &[])
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The port for TLS, if it was started with TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The URL of the server, without credentials.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The server's directory, removed with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(&self.directory)
    }

    /// Kills the server as a crash would: SIGKILL.
    pub fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts a killed server again on its port, with the data that it had written.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.port, &self.directory, &self.options, &self.environment)
            .unwrap_or_else(|error| panic!("restart: {error}"));
    }

    /// Stops the process without ending it, or lets it go on: `STOP`, `CONT`.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.process.id().to_string())
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{signal} failed");
    }

    /// Asks the server something on a connection of its own.
    ///
    /// # Panics
    /// If the server does not answer, or not what was expected.
    pub async fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Asks the server something on a connection of its own.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn try_query<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut url = self.url();
        if let Some(password) = &self.password {
            url = format!("redis://:{password}@127.0.0.1:{}", self.port);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(10)));
        let mut connection =
            redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        let mut request = redis::Cmd::new();
        for part in command {
            request.arg(part);
        }
        request.query_async(&mut connection).await
    }

    /// How many commands the clients of locks have sent so far: script calls, subscriptions and pings.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn client_commands(&self) -> u64 {
        let statistics: String = self.query(&["INFO", "commandstats"]).await;
        OF_CLIENTS.iter().map(|command| calls(&statistics, command)).sum()
    }

    /// How often one command has been called so far, by clients or inside scripts.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn calls_of(&self, command: &str) -> u64 {
        let statistics: String = self.query(&["INFO", "commandstats"]).await;
        calls(&statistics, command)
    }

    /// The channels that somebody is subscribed to.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn channels(&self) -> Vec<String> {
        self.query(&["PUBSUB", "CHANNELS"]).await
    }

    /// The keys that would stay for ever.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn keys_without_expiry(&self) -> Vec<String> {
        let keys: Vec<String> = self.query(&["KEYS", "*"]).await;
        let mut endless = Vec::new();
        for key in keys {
            if self.query::<i64>(&["PTTL", &key]).await == -1 {
                endless.push(key);
            }
        }
        endless
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// `calls=` of one command in the output of `INFO commandstats`; 0 if it was never called.
fn calls(statistics: &str, command: &str) -> u64 {
    let prefix = format!("cmdstat_{command}:calls=");
    let line = statistics.lines().find_map(|line| line.strip_prefix(prefix.as_str()));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn new_directory() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("lockcore-{}-{number}", std::process::id()));
    // Left over from a process of the same number that was killed.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts the process and returns when it accepts connections.
fn spawn(
    port: u16,
    directory: &Path,
    options: &[String],
    environment: &[(String, String)],
) -> Result<Child, StartError> {
    let mut command = Command::new("redis-server");
    // A configuration file comes before all options.
    let (file, options) =
        options.split_at(options.iter().take_while(|option| !option.starts_with("--")).count());
    command
        .args(file)
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args(["--enable-debug-command", "local", "--unixsocket"])
        .arg(socket(directory))
        .arg("--dir")
        .arg(directory)
        .args(options)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StartError::NotInstalled,
        _ => StartError::Failed(error.to_string()),
    })?;
    let mut said = String::new();
    if let Some(output) = process.stdout.take() {
        let mut lines = BufReader::new(output);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            // A Sentinel says that it has an identity, and listens by then.
            if line.contains("Ready to accept connections") || line.contains("Sentinel ID is") {
                // It goes on talking, and would stop if nobody listened.
                thread::spawn(move || io::copy(&mut lines, &mut io::sink()));
                return Ok(process);
            }
            said.push_str(&line);
            line.clear();
        }
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(StartError::Failed(said))
}
