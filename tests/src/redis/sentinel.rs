//! [`RedisSentinel`]: a primary with replicas, watched by Sentinels.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    RedisServer, StartError, Version,
    launch::{Launch, SYNC_AT_ONCE, free_port},
    settle::{Patience, ask, assert_linked, assert_says, or_panic},
};

/// The name under which the Sentinels know the primary.
const MASTER_NAME: &str = "lockcore";

/// The time after which a server counts as down while the group starts, which keeps a machine busy.
const PATIENT: Duration = Duration::from_secs(60);

/// A manual failover that has not begun within this time will not begin.
const FAILOVER_LIMIT: Duration = Duration::from_secs(3);

/// A primary with replicas and the Sentinels that watch them: real processes on free ports, each
/// stopped when the group is dropped, even if the test panics.
///
/// Servers and Sentinels have indices, which do not change with their roles: at the start, server 0
/// is the primary. The Sentinels promote a replica when the primary does not answer for a second.
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisSentinel;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut group = RedisSentinel::start().await;
/// assert_eq!(group.primary().await, 0);
/// group.server_mut(0).kill();
/// assert_ne!(group.primary().await, 0);
/// # }
/// ```
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

/// Options of a [`RedisSentinel`].
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisSentinel;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let group = RedisSentinel::builder().replicas(1).password("secret").start().await;
/// assert_eq!(group.replicas().await, [1]);
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it starts the servers"]
pub struct RedisSentinelBuilder {
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
    failover_timeout: Duration,
    password: Option<String>,
    sentinel_password: Option<String>,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    sentinel_lines: Vec<String>,
}

impl std::fmt::Debug for RedisSentinelBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { replicas, sentinels, down_after, failover_timeout, .. } = self;
        f.debug_struct("RedisSentinelBuilder")
            .field("replicas", replicas)
            .field("sentinels", sentinels)
            .field("down_after", down_after)
            .field("failover_timeout", failover_timeout)
            .finish_non_exhaustive()
    }
}

impl RedisSentinelBuilder {
    /// Sets the number of replicas; 2 by default.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Sets the number of Sentinels; 3 by default. A majority of them decides.
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// Sets how long a server must be silent before a Sentinel considers it down; 1 s by default.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Sets the time limit of a failover; 3 s by default. After twice that time the Sentinels try
    /// again.
    pub fn failover_timeout(mut self, limit: Duration) -> Self {
        self.failover_timeout = limit;
        self
    }

    /// Sets the password of the servers, without spaces; none by default.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets the password of the Sentinels, without spaces; none by default.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Adds an option of each server, as on the command line: `option("--maxmemory", "1mb")`.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Adds options of each server, as on the command line: `&["--maxmemory", "1mb"]`.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// Adds environment variables of each server and Sentinel, to preload a library for example.
    pub fn environment(mut self, variables: &[(String, String)]) -> Self {
        self.environment.extend_from_slice(variables);
        self
    }

    /// Adds a line to the configuration of each Sentinel: `sentinel resolve-hostnames yes`.
    pub fn sentinel_line(mut self, line: impl Into<String>) -> Self {
        self.sentinel_lines.push(line.into());
        self
    }

    /// Starts the group, and returns when every Sentinel knows the whole group.
    ///
    /// # Panics
    /// If there is no redis-server, or the group is not complete within a minute. The message says
    /// what is missing.
    pub async fn start(self) -> RedisSentinel {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the group, and returns when every Sentinel knows the whole group.
    ///
    /// # Errors
    /// [`StartError`], with what is missing.
    pub async fn try_start(self) -> Result<RedisSentinel, StartError> {
        let mut group = RedisSentinel { servers: Vec::new(), sentinels: Vec::new() };
        for _ in 0..=self.replicas {
            let primary_port = group.servers.first().map(RedisServer::port);
            group.servers.push(self.start_server(primary_port)?);
        }
        let configuration = self.sentinel_configuration(group.servers[0].port());
        for _ in 0..self.sentinels {
            group.sentinels.push(self.start_sentinel(&configuration)?);
        }
        let patience = Patience::new();
        group.hurry(&patience).await?;
        while let Err(missing) = group.complete(self.replicas).await {
            patience.wait(missing).await?;
        }
        let down_after = self.down_after.as_millis().to_string();
        let command = ["SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", &down_after];
        group.tell_sentinels(&command, &patience).await?;
        Ok(group)
    }

    fn start_server(&self, primary_port: Option<u16>) -> Result<RedisServer, StartError> {
        let mut options = SYNC_AT_ONCE.to_vec();
        if let Some(password) = &self.password {
            options.extend(["--requirepass", password, "--masterauth", password]);
        }
        let port = primary_port.map(|port| port.to_string());
        if let Some(port) = &port {
            options.extend(["--replicaof", "127.0.0.1", port]);
        }
        options.extend(self.options.iter().map(String::as_str));
        RedisServer::try_start_with_environment(&options, &self.environment)
    }

    fn sentinel_configuration(&self, primary_port: u16) -> String {
        let quorum = self.sentinels / 2 + 1;
        let mut lines = vec![
            format!("sentinel monitor {MASTER_NAME} 127.0.0.1 {primary_port} {quorum}"),
            format!("sentinel down-after-milliseconds {MASTER_NAME} {}", PATIENT.as_millis()),
            format!(
                "sentinel failover-timeout {MASTER_NAME} {}",
                self.failover_timeout.as_millis()
            ),
            format!("sentinel parallel-syncs {MASTER_NAME} 5"),
        ];
        if let Some(password) = &self.password {
            lines.push(format!("sentinel auth-pass {MASTER_NAME} {password}"));
        }
        lines.extend_from_slice(&self.sentinel_lines);
        lines.join("\n") + "\n"
    }

    fn start_sentinel(&self, configuration: &str) -> Result<RedisServer, StartError> {
        let mut options = vec!["--sentinel".to_owned()];
        if let Some(password) = &self.sentinel_password {
            options.extend(["--requirepass".to_owned(), password.clone()]);
        }
        let configuration = Some(configuration.to_owned());
        let environment = self.environment.clone();
        RedisServer::launch(Launch { configuration, options, environment }, free_port)
    }
}

impl RedisSentinel {
    /// Starts a primary with two replicas, and three Sentinels.
    ///
    /// # Panics
    /// As [`RedisSentinelBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Options for a non-default group.
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder {
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(3),
            password: None,
            sentinel_password: None,
            options: Vec::new(),
            environment: Vec::new(),
            sentinel_lines: Vec::new(),
        }
    }

    /// The name under which the Sentinels know the primary.
    #[must_use]
    pub fn master_name(&self) -> &str {
        MASTER_NAME
    }

    /// The addresses of the Sentinels, such as `127.0.0.1:26379`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// The number of servers, without the Sentinels.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// A server of any role.
    ///
    /// # Panics
    /// If there is no server with this index.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// A server, to kill, stop or restart it.
    ///
    /// # Panics
    /// If there is no server with this index.
    #[must_use]
    pub fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// A Sentinel.
    ///
    /// # Panics
    /// If there is no Sentinel with this index.
    #[must_use]
    pub fn sentinel(&self, index: usize) -> &RedisServer {
        &self.sentinels[index]
    }

    /// A Sentinel, to kill, stop or restart it.
    ///
    /// # Panics
    /// If there is no Sentinel with this index.
    #[must_use]
    pub fn sentinel_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.sentinels[index]
    }

    /// Returns the server that all running Sentinels name as the primary and that has this role.
    /// Waits while a failover is under way, or is still to come because the primary was killed,
    /// stopped or frozen.
    ///
    /// # Panics
    /// If there is none within a minute. The message says what is missing.
    pub async fn primary(&self) -> usize {
        let patience = Patience::new();
        loop {
            match self.agreed_primary().await {
                Ok(primary) => return primary,
                Err(missing) => or_panic(patience.wait(missing).await),
            }
        }
    }

    /// Returns the servers that replicate the primary. Waits until all running servers do.
    ///
    /// # Panics
    /// If that takes longer than a minute. The message says what is missing.
    pub async fn replicas(&self) -> Vec<usize> {
        let patience = Patience::new();
        loop {
            match self.linked_replicas().await {
                Ok(replicas) => return replicas,
                Err(missing) => or_panic(patience.wait(missing).await),
            }
        }
    }

    /// Makes the Sentinels promote a replica while the primary runs, and returns the new primary
    /// once all running Sentinels name it. The old primary becomes a replica later, which
    /// [`replicas`](Self::replicas) waits for.
    ///
    /// # Panics
    /// If there is no new primary within a minute. The message says what is missing.
    pub async fn failover(&self) -> usize {
        let old = self.primary().await;
        let patience = Patience::new();
        let mut ordered: Option<Instant> = None;
        loop {
            let missing = match self.agreed_primary().await {
                Ok(primary) if primary != old => return primary,
                // A Sentinel gives up if it has not heard from the replicas for a moment.
                Ok(_) if ordered.is_none_or(|ordered| ordered.elapsed() > FAILOVER_LIMIT) => {
                    match self.order_failover().await {
                        Ok(()) => {
                            ordered = Some(Instant::now());
                            continue;
                        }
                        Err(refusal) => refusal,
                    }
                }
                Ok(_) => format!("server {old} is still primary"),
                Err(missing) => missing,
            };
            or_panic(patience.wait(missing).await);
        }
    }

    async fn order_failover(&self) -> Result<(), String> {
        let sentinel = self.running_sentinels().next().ok_or("no Sentinel is running")?;
        ask(sentinel, &["SENTINEL", "FAILOVER", MASTER_NAME]).await
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &RedisServer> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_up())
    }

    /// Shortens periods of the Sentinels that cannot be configured, if the version supports that.
    async fn hurry(&self, patience: &Patience) -> Result<(), StartError> {
        let command = "SENTINEL DEBUG info-period 500 ping-period 400 ask-period 200 \
                       publish-period 200 tilt-period 2000";
        let command: Vec<&str> = command.split_whitespace().collect();
        if Version::of_server()? >= Version::new(7, 0, 0) {
            self.tell_sentinels(&command, patience).await?;
        }
        Ok(())
    }

    async fn tell_sentinels(
        &self,
        command: &[&str],
        patience: &Patience,
    ) -> Result<(), StartError> {
        for sentinel in &self.sentinels {
            while let Err(refusal) = ask::<()>(sentinel, command).await {
                patience.wait(refusal).await?;
            }
        }
        Ok(())
    }

    /// Fails unless every Sentinel knows all others and all replicas, and the replicas are linked.
    async fn complete(&self, replicas: usize) -> Result<(), String> {
        self.linked_replicas().await?;
        let usable = format!("OK {} usable Sentinels", self.sentinels.len());
        for sentinel in &self.sentinels {
            let command = ["SENTINEL", "MASTER", MASTER_NAME];
            let master: HashMap<String, String> = ask(sentinel, &command).await?;
            let known = master.get("num-slaves").and_then(|count| count.parse().ok());
            if known != Some(replicas) {
                return Err(format!("{} knows {known:?} replicas", sentinel.address()));
            }
            let quorum: String = ask(sentinel, &["SENTINEL", "CKQUORUM", MASTER_NAME]).await?;
            if !quorum.starts_with(&usable) {
                return Err(format!("{} says {quorum}", sentinel.address()));
            }
        }
        Ok(())
    }

    async fn agreed_primary(&self) -> Result<usize, String> {
        let mut agreed = None;
        for sentinel in self.running_sentinels() {
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
            let (_, port): (String, u16) = ask(sentinel, &command).await?;
            if agreed.is_some_and(|agreed| agreed != port) {
                return Err("the Sentinels do not agree on the primary".to_owned());
            }
            agreed = Some(port);
        }
        let port = agreed.ok_or("no Sentinel is running")?;
        let primary = self.servers.iter().position(|server| server.port() == port);
        let primary = primary.ok_or_else(|| format!("port {port} is of no server"))?;
        let server = &self.servers[primary];
        if !server.is_up() {
            return Err(format!("the Sentinels still name server {primary}, which is down"));
        }
        assert_says(server, "role:master").await?;
        Ok(primary)
    }

    async fn linked_replicas(&self) -> Result<Vec<usize>, String> {
        let primary = self.agreed_primary().await?;
        let mut replicas = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            if index != primary && server.is_up() {
                assert_linked(server, &self.servers[primary]).await?;
                replicas.push(index);
            }
        }
        Ok(replicas)
    }
}
