//! [`RedisServer`]: a private redis-server for a test.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use redis::{AsyncConnectionConfig, FromRedisValue};

use super::{
    StartError, Version,
    launch::{Launch, configuration_file, free_port, new_directory, socket},
};

use crate::stopping::until_stopped;

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// The commands that clients of locks send. All others are sent by the test itself, run inside
/// scripts, or follow one of these. `HDEL` is a release, alone or in a batch.
const OF_CLIENTS: [&str; 6] = ["evalsha", "eval", "hdel", "subscribe", "unsubscribe", "ping"];

/// A private redis-server for one test: on a free port, with its own directory, stopped and removed
/// on drop, even if the test panics.
///
/// The executable is the one that the variable `LOCKCORE_REDIS_SERVER` names, an absolute path, or
/// `redis-server` from the `PATH`: Redis 6.0 or newer, or Valkey.
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
    version: Version,
    port: u16,
    tls_port: u16,
    directory: PathBuf,
    launch: Launch,
    is_ended: bool,
    is_frozen: AtomicBool,
}

impl RedisServer {
    /// Starts a server without persistence.
    ///
    /// # Panics
    /// If there is no redis-server, with a message that says how to install it: a test that cannot
    /// run has failed.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more options, as on the command line: `&["--maxmemory", "1mb"]`.
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
    /// [`StartError`], which says what to do about it.
    pub fn try_start(options: &[&str]) -> Result<Self, StartError> {
        Self::try_start_with_environment(options, &[])
    }

    /// Starts a server with more options and with environment variables, for example to preload a
    /// library.
    ///
    /// # Errors
    /// [`StartError`], which says what to do about it.
    pub fn try_start_with_environment(
        options: &[&str],
        environment: &[(String, String)],
    ) -> Result<Self, StartError> {
        let launch = Launch {
            options: options.iter().map(|&option| option.to_owned()).collect(),
            environment: environment.to_vec(),
            ..Launch::default()
        };
        Self::launch(launch, free_port)
    }

    /// Starts a server on a port that `free_port` finds.
    pub(super) fn launch(
        launch: Launch,
        free_port: fn() -> io::Result<u16>,
    ) -> Result<Self, StartError> {
        let directory = new_directory().map_err(|error| StartError::Failed(error.to_string()))?;
        let launched = Self::launch_in(&directory, launch, free_port);
        if launched.is_err() {
            let _ = fs::remove_dir_all(&directory);
        }
        launched
    }

    fn launch_in(
        directory: &Path,
        launch: Launch,
        free_port: fn() -> io::Result<u16>,
    ) -> Result<Self, StartError> {
        let version = Version::of_server()?;
        let failed = |error: io::Error| StartError::Failed(error.to_string());
        if let Some(lines) = &launch.configuration {
            fs::write(configuration_file(directory), lines).map_err(failed)?;
        }
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let port = free_port().map_err(failed)?;
            match launch.spawn(port, directory) {
                Ok(process) => {
                    return Ok(Self {
                        process,
                        version,
                        port,
                        tls_port: 0,
                        directory: directory.to_owned(),
                        launch,
                        is_ended: false,
                        is_frozen: AtomicBool::new(false),
                    });
                }
                Err(StartError::Failed(message)) => said = message,
                Err(error) => return Err(error),
            }
            if !said.contains("Address already in use") {
                break;
            }
        }
        Err(StartError::Failed(said))
    }

    /// Starts a server that also accepts TLS on another port, with these files in PEM format, and
    /// does not ask clients for a certificate.
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

    /// Starts a Sentinel that watches nothing yet.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_sentinel() -> Self {
        let launch = Launch {
            options: vec!["--sentinel".to_owned()],
            configuration: Some(String::new()),
            ..Launch::default()
        };
        Self::launch(launch, free_port).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The version of the server.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
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

    /// The address of the server, such as `127.0.0.1:6379`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The password of the default user, if the server was started with one.
    pub(super) fn password(&self) -> Option<&str> {
        self.launch.option("--requirepass")
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The server's directory, which is removed with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(&self.directory)
    }

    /// Kills the server with SIGKILL, like a crash.
    pub fn kill(&mut self) {
        // An error means that the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.is_ended = true;
    }

    /// Stops the server cleanly with SIGTERM, and returns when it has ended.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn stop(&mut self) {
        if !self.is_ended {
            self.thaw();
            self.signal("TERM");
            let _ = self.process.wait();
            self.is_ended = true;
        }
    }

    /// Restarts a killed server on its port, with the data that it had written.
    ///
    /// # Panics
    /// If the server does not come up.
    pub fn restart(&mut self) {
        self.kill();
        self.process = self
            .launch
            .spawn(self.port, &self.directory)
            .unwrap_or_else(|error| panic!("restart: {error}"));
        self.is_ended = false;
        self.is_frozen.store(false, Ordering::Relaxed);
    }

    /// Freezes the process with SIGSTOP: its connections stay open, but it does not answer.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Resumes a frozen process with SIGCONT.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Sends the process a signal: `STOP`, `CONT`.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.process.id().to_string())
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{signal} failed");
        match signal {
            "STOP" => {
                until_stopped(&[self.process.id()]);
                self.is_frozen.store(true, Ordering::Relaxed);
            }
            "CONT" => self.is_frozen.store(false, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Returns `true` unless the test has killed, stopped or frozen the server.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !self.is_ended && !self.is_frozen.load(Ordering::Relaxed)
    }

    /// Sends the server a command on a new connection, and returns the answer.
    ///
    /// # Panics
    /// If the server does not answer, or the answer is not of this type.
    pub async fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Sends the server a command on a new connection, and returns the answer.
    ///
    /// # Errors
    /// The error of the server or of the connection.
    pub async fn try_query<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut url = self.url();
        if let Some(password) = self.password() {
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

    /// The number of commands that the clients of locks have sent so far: script calls, releases,
    /// subscriptions and pings.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn client_commands(&self) -> u64 {
        let statistics: String = self.query(&["INFO", "commandstats"]).await;
        OF_CLIENTS.iter().map(|command| calls(&statistics, command)).sum()
    }

    /// The number of calls of one command so far, by clients or inside scripts.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn calls_of(&self, command: &str) -> u64 {
        let statistics: String = self.query(&["INFO", "commandstats"]).await;
        calls(&statistics, command)
    }

    /// The channels with at least one subscriber.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn channels(&self) -> Vec<String> {
        self.query(&["PUBSUB", "CHANNELS"]).await
    }

    /// The keys that would stay forever.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn keys_without_expiry(&self) -> Vec<String> {
        // In one script, because tokens stay and a server may have thousands of keys.
        let script = "local endless = {} \
                      for _, key in ipairs(redis.call('KEYS', '*')) do \
                      if redis.pcall('PTTL', key) == -1 then table.insert(endless, key) end end \
                      return endless";
        self.query(&["EVAL", script, "0"]).await
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
