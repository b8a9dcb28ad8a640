//! [`Servers`]: the servers of a deployment, and which of them the battery acts on.

use std::time::{Duration, Instant};

use lockcore_testkit::{On, RedisCluster, RedisSentinel, RedisServer};

use super::{Deployment, Network, Postgres, between::Between, process::Process, routes::Routes};
use crate::{
    protocol::{Result, failure},
    scene,
    store::Store,
};

/// Longer than any fault: the servers are not to take a server to be down that is to come back.
const PATIENT: Duration = Duration::from_secs(60);

/// After how long without an answer a server is to be down.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// A slot that the first primary has at the start.
const HOME_SLOT: u16 = 0;

/// The replicas of a group with Sentinels.
const REPLICAS: usize = 2;

/// The servers of a quorum.
pub(crate) const MEMBERS: usize = 5;

/// What is asked of the servers at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSetup {
    /// Options of each Redis server.
    pub(crate) options: Vec<String>,
    /// Variables of each Redis server.
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
    Quorum(Vec<RedisServer>),
    Postgres(Postgres),
}

/// The servers of a deployment. Faults of one server act on the [current](Self::current) one.
#[derive(Debug)]
pub(crate) struct Servers {
    group: Group,
    current: usize,
    /// What is between the first primary and everybody else, if that was asked for.
    between: Option<Between>,
}

impl Servers {
    pub(crate) async fn start(on: Deployment, setup: &ServerSetup) -> Result<Self> {
        let is_between = setup.between && on != Deployment::Postgres;
        let routes = if is_between { Some(Routes::make()?) } else { None };
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
            Deployment::Quorum => {
                let start = |_| RedisServer::try_start_with_environment(&options, &environment);
                Group::Quorum((0..MEMBERS).map(start).collect::<std::result::Result<_, _>>()?)
            }
            Deployment::Postgres => {
                Group::Postgres(Postgres::start(setup.fails_over || setup.between)?)
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

    /// The process of the server that is there alone, or is the primary of the locks that faults are
    /// about, or is the member of a quorum that they hit.
    pub(crate) fn current(&self) -> &dyn Process {
        self.process(self.current)
    }

    pub(crate) fn current_mut(&mut self) -> &mut dyn Process {
        self.process_mut(self.current)
    }

    /// The index of the current server.
    pub(crate) fn current_index(&self) -> usize {
        self.current
    }

    /// Has faults of one server hit this one from now on.
    pub(crate) fn turn_to(&mut self, index: usize) {
        self.current = index;
    }

    pub(crate) fn process(&self, index: usize) -> &dyn Process {
        match &self.group {
            Group::Single(server) => &**server,
            Group::Sentinel(group) => group.server(index),
            Group::Cluster(cluster) => cluster.node(index),
            Group::Quorum(members) => &members[index],
            Group::Postgres(postgres) => postgres.server(index),
        }
    }

    pub(crate) fn process_mut(&mut self, index: usize) -> &mut dyn Process {
        match &mut self.group {
            Group::Single(server) => &mut **server,
            Group::Sentinel(group) => group.server_mut(index),
            Group::Cluster(cluster) => cluster.node_mut(index),
            Group::Quorum(members) => &mut members[index],
            Group::Postgres(postgres) => postgres.server_mut(index),
        }
    }

    /// A server, if it is Redis.
    pub(crate) fn server(&self, index: usize) -> Result<&RedisServer> {
        Ok(match &self.group {
            Group::Single(server) => server,
            Group::Sentinel(group) => group.server(index),
            Group::Cluster(cluster) => cluster.node(index),
            Group::Quorum(members) => &members[index],
            Group::Postgres(_) => return Err(failure("this is no Redis")),
        })
    }

    /// PostgreSQL, if it is that.
    pub(crate) fn postgres(&self) -> Result<&Postgres> {
        match &self.group {
            Group::Postgres(postgres) => Ok(postgres),
            _ => Err(failure("this is no PostgreSQL")),
        }
    }

    /// How many Redis servers there are.
    fn count(&self) -> usize {
        match &self.group {
            Group::Single(_) => 1,
            Group::Sentinel(group) => group.server_count(),
            Group::Cluster(cluster) => cluster.addresses().len(),
            Group::Quorum(members) => members.len(),
            Group::Postgres(_) => 0,
        }
    }

    /// All Redis servers, without the Sentinels.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RedisServer> {
        (0..self.count()).filter_map(|index| self.server(index).ok())
    }

    /// The Sentinels, if there are some.
    pub(crate) fn sentinels(&self) -> Vec<&RedisServer> {
        match &self.group {
            Group::Sentinel(group) => {
                (0..group.addresses().len()).map(|index| group.sentinel(index)).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn sentinel_mut(&mut self, index: usize) -> Result<&mut RedisServer> {
        match &mut self.group {
            Group::Sentinel(group) => Ok(group.sentinel_mut(index)),
            _ => Err(failure("there are no Sentinels")),
        }
    }

    /// The cluster, if it is one.
    pub(crate) fn cluster(&self) -> Result<&RedisCluster> {
        match &self.group {
            Group::Cluster(cluster) => Ok(cluster),
            _ => Err(failure("this is no cluster")),
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> Result<&mut RedisCluster> {
        match &mut self.group {
            Group::Cluster(cluster) => Ok(cluster),
            _ => Err(failure("this is no cluster")),
        }
    }

    /// How many requests of clients the servers have seen so far.
    pub(crate) async fn commands(&self) -> u64 {
        let mut commands = 0;
        for server in self.primaries().await {
            commands += server.client_commands().await;
        }
        match &self.group {
            Group::Postgres(postgres) => postgres.transactions(self.current).await.unwrap_or(0),
            _ => commands,
        }
    }

    /// Names and owners of what is held or queued at PostgreSQL, if it is that.
    pub(crate) async fn postgres_owners(&self) -> Result<Vec<(String, String)>> {
        match &self.group {
            Group::Postgres(postgres) => postgres.owners(self.current).await,
            _ => Ok(Vec::new()),
        }
    }

    /// The connections of clients to PostgreSQL, if it is that.
    pub(crate) async fn postgres_connections(&self) -> Result<usize> {
        match &self.group {
            Group::Postgres(postgres) => postgres.connections(self.current).await,
            _ => Ok(0),
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
    pub(crate) fn store(&self, user: &str) -> Store {
        match &self.group {
            Group::Single(server) => Store::Redis(format!("redis://{user}{}", server.address())),
            Group::Sentinel(group) => {
                let (sentinels, name) = (group.addresses().join(","), group.master_name());
                Store::Redis(format!("redis+sentinel://{user}{sentinels}/{name}"))
            }
            Group::Cluster(cluster) => {
                Store::Redis(format!("redis+cluster://{user}{}", cluster.addresses().join(",")))
            }
            Group::Quorum(members) => {
                let url = |server: &RedisServer| format!("redis://{user}{}", server.address());
                Store::Quorum(members.iter().map(url).collect())
            }
            Group::Postgres(postgres) => {
                let address = |port: u16| format!("127.0.0.1:{port}");
                let addresses: Vec<_> = postgres.ports().into_iter().map(address).collect();
                let addresses = addresses.join(",");
                Store::Postgres(format!("postgresql://postgres@{addresses}/postgres"))
            }
        }
    }

    /// A network of a client's own, and what the client connects to then.
    pub(crate) async fn network(&self, user: &str) -> Result<(Network, Store)> {
        let sentinels: Vec<u16> = self.sentinels().iter().map(|server| server.port()).collect();
        let network = match &self.group {
            Group::Single(server) => {
                let network = Network::to_one(server.port()).await?;
                let url = format!("redis://{user}127.0.0.1:{}", network.port());
                return Ok((network, Store::Redis(url)));
            }
            Group::Postgres(postgres) => Network::opaque(&postgres.ports()).await?,
            _ => {
                let servers: Vec<u16> = self.all().map(RedisServer::port).collect();
                Network::to_all(&servers, &sentinels).await?
            }
        };
        Ok((network, self.store(user)))
    }

    /// Ends connections of clients: of the current server, or of all members of a quorum.
    pub(crate) async fn end_connections(&self, on: On) -> Result<()> {
        let concerned: Vec<&RedisServer> = match &self.group {
            Group::Postgres(postgres) => return postgres.end_connections(self.current, on).await,
            Group::Quorum(members) => members.iter().filter(|server| server.is_up()).collect(),
            _ => vec![self.server(self.current)?],
        };
        for server in concerned {
            if on != On::Messages {
                scene::end_command_connections(server).await?;
            }
            if on != On::Commands {
                // Those of Sentinels as well, which come back.
                let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
                let () = server.try_query(&kill).await?;
            }
        }
        Ok(())
    }

    /// Waits until a server other than `old` takes writes of the current one's locks, and acts on
    /// that one from now on. A replica of PostgreSQL is made a primary by the battery.
    pub(crate) async fn follow(&mut self, old: usize) -> Result<usize> {
        if let Group::Postgres(postgres) = &self.group {
            self.current = 1 - old;
            postgres.promote(self.current).await?;
            return Ok(self.current);
        }
        let start = Instant::now();
        while start.elapsed() < PATIENT {
            for index in (0..self.count()).filter(|index| *index != old) {
                let is_up = self.server(index).is_ok_and(RedisServer::is_up);
                if is_up && self.takes_writes(index).await {
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
        if let Group::Postgres(postgres) = &self.group {
            return postgres.takes_writes(index).await;
        }
        // A name in the first slots of a cluster.
        let probe = super::name_at_home("battery:probe");
        let write = ["SET", probe.as_str(), "1", "PX", "100"];
        match self.server(index) {
            Ok(server) => server.try_query::<()>(&write).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Holds back what the primary sends to its replicas.
    pub(crate) async fn hold_replication(&self) -> Result<()> {
        if let Group::Postgres(postgres) = &self.group {
            postgres.until_streaming(true).await?;
            postgres.hold_replication().await?;
            return postgres.until_streaming(false).await;
        }
        match &self.between {
            Some(between) if between.is_in_use() => between.hold_replication(),
            _ => return Err(failure("the replicas are not behind the network between servers")),
        }
        Ok(())
    }

    /// Lets nothing through between the first primary and the others, if there is a network.
    pub(crate) fn cut_between(&self) {
        self.between.iter().for_each(Between::cut);
    }

    /// Lets through again what is between the servers.
    pub(crate) async fn heal_between(&self) -> Result<()> {
        if let Some(between) = &self.between {
            between.heal();
        }
        match &self.group {
            Group::Postgres(postgres) => postgres.resume_replication().await,
            _ => Ok(()),
        }
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
            Group::Single(_) | Group::Quorum(_) | Group::Postgres(_) => {}
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
            Group::Sentinel(group) => self.current = group.failover().await,
            Group::Cluster(cluster) => {
                let replicas = cluster.replicas_of(self.current).await;
                let replica = *replicas.first().ok_or_else(|| failure("there are no replicas"))?;
                let () = cluster.node(replica).try_query(&["CLUSTER", "FAILOVER"]).await?;
                self.follow(self.current).await?;
            }
            _ => return Err(failure("no replica takes over by itself")),
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
