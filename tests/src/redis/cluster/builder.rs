//! [`RedisClusterBuilder`]: how a cluster is started.

use std::{fmt, sync::Mutex, time::Duration};

use super::{
    super::{
        StartError, Version,
        launch::{Launch, SYNC_AT_ONCE},
        settle::Patience,
    },
    RedisCluster,
};

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;

/// Options of a [`RedisCluster`].
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisCluster;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let cluster = RedisCluster::builder().replicas_each(0).password("secret").start().await;
/// assert_eq!(cluster.addresses().len(), 3);
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it starts the nodes"]
pub struct RedisClusterBuilder {
    primaries: usize,
    replicas_each: usize,
    node_timeout: Duration,
    password: Option<String>,
    options: Vec<String>,
    environment: Vec<(String, String)>,
}

impl fmt::Debug for RedisClusterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { primaries, replicas_each, node_timeout, .. } = self;
        f.debug_struct("RedisClusterBuilder")
            .field("primaries", primaries)
            .field("replicas_each", replicas_each)
            .field("node_timeout", node_timeout)
            .finish_non_exhaustive()
    }
}

impl RedisClusterBuilder {
    pub(super) fn new() -> Self {
        Self {
            primaries: 3,
            replicas_each: 1,
            node_timeout: Duration::from_secs(1),
            password: None,
            options: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets the number of primaries; 3 by default, the minimum for a replica to take over.
    pub fn primaries(mut self, count: usize) -> Self {
        self.primaries = count;
        self
    }

    /// Sets the number of replicas of each primary; 1 by default.
    pub fn replicas_each(mut self, count: usize) -> Self {
        self.replicas_each = count;
        self
    }

    /// Sets how long a node must be silent before the others consider it down; 1 s by default.
    pub fn node_timeout(mut self, silence: Duration) -> Self {
        self.node_timeout = silence;
        self
    }

    /// Sets the password of the nodes, for clients and replicas, without spaces; none by default.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds an option of each node, as on the command line: `option("--maxmemory", "1mb")`.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Adds options of each node, as on the command line: `&["--maxmemory", "1mb"]`.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// Adds environment variables of each node, to preload a library for example.
    pub fn environment(mut self, variables: &[(String, String)]) -> Self {
        self.environment.extend_from_slice(variables);
        self
    }

    /// Starts the cluster, and returns when every node serves and knows all others.
    ///
    /// # Panics
    /// If there is no redis-server, or the cluster is not complete within a minute. The message
    /// says what is missing.
    pub async fn start(self) -> RedisCluster {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the cluster, and returns when every node serves and knows all others.
    ///
    /// # Errors
    /// [`StartError`], with what is missing.
    pub async fn try_start(self) -> Result<RedisCluster, StartError> {
        let options = self.node_options(Version::of_server()?);
        let environment = self.environment.clone();
        let launch = Launch { options, environment, ..Launch::default() };
        let mut cluster = RedisCluster { nodes: Vec::new(), launch, moves: Mutex::default() };
        let patience = Patience::new();
        for _ in 0..self.primaries * (1 + self.replicas_each) {
            cluster.start_node(&patience).await?;
        }
        cluster.assign_slots(self.primaries, &patience).await?;
        for joined in 1..cluster.nodes.len() {
            cluster.meet(joined, &patience).await?;
        }
        while let Err(missing) = cluster.all_met().await {
            patience.wait(missing).await?;
        }
        for replica in self.primaries..cluster.nodes.len() {
            let primary = (replica - self.primaries) / self.replicas_each;
            let command = ["CLUSTER", "REPLICATE", &cluster.nodes[primary].id];
            cluster.tell(replica, &command, &patience).await?;
        }
        while let Err(missing) = cluster.complete(self.primaries).await {
            patience.wait(missing).await?;
        }
        Ok(cluster)
    }

    fn node_options(&self, version: Version) -> Vec<String> {
        let timeout = self.node_timeout.as_millis().to_string();
        let mut options = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        // Redis 6.0 cannot fail over by hand before anything was replicated, for which a ping is
        // enough.
        options.extend(["--repl-ping-replica-period", "1"]);
        // Replicas with old data may take over as well, and none moves to another primary by
        // itself.
        options.extend(["--cluster-replica-validity-factor", "0"]);
        options.extend(["--cluster-migration-barrier", "100"]);
        if version >= Version::new(7, 0, 0) {
            options.extend(["--cluster-allow-replica-migration", "no"]);
        }
        options.extend(SYNC_AT_ONCE);
        if let Some(password) = &self.password {
            options.extend(["--requirepass", password, "--masterauth", password]);
        }
        options.extend(self.options.iter().map(String::as_str));
        options.into_iter().map(str::to_owned).collect()
    }
}

impl RedisCluster {
    /// Gives the first nodes equal parts of the slots, and each its own epoch: nodes that begin
    /// with the same one need several rounds to agree.
    async fn assign_slots(&self, primaries: usize, patience: &Patience) -> Result<(), StartError> {
        for primary in 0..primaries {
            let epoch = (primary + 1).to_string();
            self.tell(primary, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch], patience).await?;
            let first = SLOTS * primary / primaries;
            let last = SLOTS * (primary + 1) / primaries;
            let slots: Vec<String> = (first..last).map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            self.tell(primary, &command, patience).await?;
        }
        Ok(())
    }

    /// Fails unless all nodes are up and linked, and each has its initial role.
    async fn complete(&self, primaries: usize) -> Result<(), String> {
        let view = self.agreed().await?;
        let count = view.nodes.values().filter(|state| state.primary.is_none()).count();
        if count != primaries || view.nodes.len() != self.nodes.len() {
            return Err(format!("{count} primaries among {} nodes", view.nodes.len()));
        }
        match view.nodes.iter().find(|(_, state)| !state.is_connected) {
            Some((id, _)) => Err(format!("{} is not connected with node {id}", view.myself)),
            None => Ok(()),
        }
    }
}
