//! [`Servers`]: the servers of a deployment, and which of them the battery acts on.

use std::time::{Duration, Instant};

use lockcore_testkit::{RedisCluster, RedisSentinel, RedisServer};

use super::{Deployment, Network, between::Between, routes::Routes};
use crate::protocol::{Result, failure};

/// Longer than any fault: the servers are not to take a server to be down that is to come back.
const PATIENT: Duration = Duration::from_secs(60);

/// After how long without an answer a server is to be down.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// A slot that the first primary has at the start.
const HOME_SLOT: u16 = 0;

/// The replicas of a group with Sentinels.
const REPLICAS: usize = 2;

/// What is asked of the servers at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSetup {
    /// Options of each server.
    pub(crate) options: Vec<String>,
    /// Variables of each server.
    pub(crate) environment: Vec<(String, String)>,
    /// Whether a server that does not answer is to be replaced.
    pub(crate) fails_over: bool,
    /// Whether there is a network between the servers that can be made bad.
    pub(crate) between: bool,
}

#[derive(Debug)]
enum Group {
    Single(Box<RedisServer>),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
}

/// The servers of a deployment. Faults of one server act on the [current](Self::current) one.
#[derive(Debug)]
pub(crate) struct Servers {
    group: Group,
    current: usize,
    /// What is between the first primary and everybody else, if that was asked for.
    pub(crate) between: Option<Between>,
}

impl Servers {
    pub(crate) async fn start(on: Deployment, setup: &ServerSetup) -> Result<Self> {
        let routes = if setup.between { Some(Routes::make()?) } else { None };
        let mut environment = setup.environment.clone();
        environment.extend(routes.iter().flat_map(Routes::environment));
        let options: Vec<&str> = setup.options.iter().map(String::as_str).collect();
        let down_after = if setup.fails_over { DOWN_AFTER } else { PATIENT };
        let group = match on {
            Deployment::Single => Group::Single(Box::new(RedisServer::try_start_with_environment(
                &options,
                &environment,
            )?)),
            Deployment::Sentinel => {
                let builder = RedisSentinel::builder().replicas(REPLICAS).down_after(down_after);
                Group::Sentinel(
                    builder.options(&options).environment(&environment).try_start().await?,
                )
            }
            Deployment::Cluster => {
                let builder = RedisCluster::builder().options(&options).environment(&environment);
                let cluster = builder.node_timeout(DOWN_AFTER).try_start().await?;
                Group::Cluster(cluster)
            }
        };
        let mut servers = Self { group, current: 0, between: None };
        if let (Group::Cluster(_), false) = (&servers.group, setup.fails_over) {
            let patience = PATIENT.as_millis().to_string();
            for server in servers.all() {
                let set = ["CONFIG", "SET", "cluster-node-timeout", &patience];
                let () = server.try_query(&set).await?;
            }
        }
        if let Some(routes) = routes {
            servers.between = Some(Between::start(routes, &servers).await?);
        }
        Ok(servers)
    }

    /// The server that is there alone, or is the primary of the locks that faults are about.
    pub(crate) fn current(&self) -> &RedisServer {
        self.server(self.current)
    }

    pub(crate) fn current_mut(&mut self) -> &mut RedisServer {
        self.server_mut(self.current)
    }

    /// The index of the current server.
    pub(crate) fn current_index(&self) -> usize {
        self.current
    }

    pub(crate) fn server(&self, index: usize) -> &RedisServer {
        match &self.group {
            Group::Single(server) => server,
            Group::Sentinel(group) => group.server(index),
            Group::Cluster(cluster) => cluster.node(index),
        }
    }

    pub(crate) fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        match &mut self.group {
            Group::Single(server) => server,
            Group::Sentinel(group) => group.server_mut(index),
            Group::Cluster(cluster) => cluster.node_mut(index),
        }
    }

    fn count(&self) -> usize {
        match &self.group {
            Group::Single(_) => 1,
            Group::Sentinel(group) => group.server_count(),
            Group::Cluster(cluster) => cluster.addresses().len(),
        }
    }

    /// All servers, without the Sentinels.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RedisServer> {
        (0..self.count()).map(|index| self.server(index))
    }

    /// The Sentinels, if there are some.
    pub(crate) fn sentinels(&self) -> Vec<&RedisServer> {
        match &self.group {
            Group::Sentinel(group) => {
                (0..group.addresses().len()).map(|index| group.sentinel(index)).collect()
            }
            Group::Single(_) | Group::Cluster(_) => Vec::new(),
        }
    }

    pub(crate) fn sentinel_mut(&mut self, index: usize) -> Result<&mut RedisServer> {
        match &mut self.group {
            Group::Sentinel(group) => Ok(group.sentinel_mut(index)),
            Group::Single(_) | Group::Cluster(_) => Err(failure("there are no Sentinels")),
        }
    }

    /// The cluster, if it is one.
    pub(crate) fn cluster(&self) -> Result<&RedisCluster> {
        match &self.group {
            Group::Cluster(cluster) => Ok(cluster),
            Group::Single(_) | Group::Sentinel(_) => Err(failure("this is no cluster")),
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> Result<&mut RedisCluster> {
        match &mut self.group {
            Group::Cluster(cluster) => Ok(cluster),
            Group::Single(_) | Group::Sentinel(_) => Err(failure("this is no cluster")),
        }
    }

    /// The servers that take writes: running, and no replicas.
    pub(crate) async fn primaries(&self) -> Vec<&RedisServer> {
        let mut primaries = Vec::new();
        for server in self.all().filter(|server| server.is_up()) {
            let role: redis::RedisResult<Vec<redis::Value>> = server.try_query(&["ROLE"]).await;
            let is_primary = role.is_ok_and(|role| {
                role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
            });
            if is_primary {
                primaries.push(server);
            }
        }
        primaries
    }

    /// What a client connects to, with `user:password@` or nothing.
    pub(crate) fn url(&self, user: &str) -> String {
        match &self.group {
            Group::Single(server) => format!("redis://{user}{}", server.address()),
            Group::Sentinel(group) => {
                let sentinels = group.addresses().join(",");
                format!("redis+sentinel://{user}{sentinels}/{}", group.master_name())
            }
            Group::Cluster(cluster) => {
                format!("redis+cluster://{user}{}", cluster.addresses().join(","))
            }
        }
    }

    /// A network of a client's own, and what the client connects to then.
    pub(crate) async fn network(&self, user: &str) -> Result<(Network, String)> {
        if let Group::Single(server) = &self.group {
            let network = Network::to_one(server.port()).await?;
            let url = format!("redis://{user}127.0.0.1:{}", network.port());
            return Ok((network, url));
        }
        let servers: Vec<u16> = self.all().map(RedisServer::port).collect();
        let sentinels: Vec<u16> = self.sentinels().iter().map(|server| server.port()).collect();
        Ok((Network::to_all(&servers, &sentinels).await?, self.url(user)))
    }

    /// Waits until a server other than `old` takes writes of the current one's locks, and acts on
    /// that one from now on.
    pub(crate) async fn follow(&mut self, old: usize) -> Result<usize> {
        let start = Instant::now();
        while start.elapsed() < PATIENT {
            for index in (0..self.count()).filter(|index| *index != old) {
                if self.server(index).is_up() && self.takes_writes(index).await {
                    self.current = index;
                    return Ok(index);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(failure("no replica has taken over"))
    }

    /// Whether a server takes writes of the locks that faults are about.
    async fn takes_writes(&self, index: usize) -> bool {
        // A name in the first slots of a cluster.
        let probe = super::name_at_home("battery:probe");
        let write = ["SET", probe.as_str(), "1", "PX", "100"];
        self.server(index).try_query::<()>(&write).await.is_ok()
    }

    /// Waits until all Sentinels name the new primary; nodes of a cluster need not agree.
    pub(crate) async fn agree(&self) {
        if let Group::Sentinel(group) = &self.group {
            group.primary().await;
        }
    }

    /// Waits until all running servers agree on who has which role.
    pub(crate) async fn settle(&mut self) {
        match &self.group {
            Group::Single(_) => {}
            Group::Sentinel(group) => {
                group.replicas().await;
                self.current = group.primary().await;
            }
            Group::Cluster(cluster) => {
                cluster.settle().await;
                self.current = cluster.primary_of(HOME_SLOT).await;
            }
        }
    }

    /// Has a replica take over while the primary runs, and waits until the servers, or the
    /// Sentinels, agree on that.
    pub(crate) async fn fail_over(&mut self) -> Result<()> {
        match &self.group {
            Group::Single(_) => return Err(failure("there are no replicas")),
            Group::Sentinel(group) => self.current = group.failover().await,
            Group::Cluster(cluster) => {
                let replicas = cluster.replicas_of(self.current).await;
                let replica = *replicas.first().ok_or_else(|| failure("there are no replicas"))?;
                let () = cluster.node(replica).try_query(&["CLUSTER", "FAILOVER"]).await?;
                self.follow(self.current).await?;
            }
        }
        Ok(())
    }

    /// Waits until the current server serves again after a restart: a node of a cluster refuses
    /// requests for its first two seconds.
    pub(crate) async fn rejoin(&self) -> Result<()> {
        let start = Instant::now();
        while !self.takes_writes(self.current).await {
            if start.elapsed() > PATIENT {
                return Err(failure("the server does not serve again"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}
