//! [`Deployment`]: the servers that both sides share.

use std::{sync::Arc, time::Duration};

use lockcore::Locks;
use lockcore_interop::{Configuration, Redisson};
use lockcore_redis::{ClusterMessages, RedisBackend};
use lockcore_testkit::{RedisCluster, RedisSentinel, RedisServer};
use redis::FromRedisValue;

use crate::support::{LONG, java};

/// The kind of deployment, and the configuration of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topology {
    /// A single server.
    Server,
    /// A primary with two replicas, and three Sentinels.
    Sentinel,
    /// Three primaries with a replica each, and sharded messages: the default of both sides.
    ShardedCluster,
    /// The same cluster with plain messages, which both sides must be configured for.
    PlainCluster,
}

impl Topology {
    pub(crate) const ALL: [Self; 4] =
        [Self::Server, Self::Sentinel, Self::ShardedCluster, Self::PlainCluster];

    /// The title of its section in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Server => "A single server",
            Self::Sentinel => "On Sentinel: a primary with two replicas, and three Sentinels",
            Self::ShardedCluster => {
                "On a cluster with sharded messages: three primaries with a replica each"
            }
            Self::PlainCluster => {
                "On a cluster with plain messages: three primaries with a replica each"
            }
        }
    }
}

/// Private servers of a test. They are stopped when it is dropped.
#[derive(Debug)]
pub(crate) struct Deployment {
    topology: Topology,
    servers: Servers,
}

#[derive(Debug)]
enum Servers {
    One(RedisServer),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
}

impl Deployment {
    /// A single server.
    pub(crate) fn server() -> Arc<Self> {
        Arc::new(Self { topology: Topology::Server, servers: Servers::One(RedisServer::start()) })
    }

    pub(crate) async fn start(topology: Topology) -> Self {
        let servers = match topology {
            Topology::Server => Servers::One(RedisServer::start()),
            Topology::Sentinel => Servers::Sentinel(RedisSentinel::start().await),
            Topology::ShardedCluster | Topology::PlainCluster => {
                Servers::Cluster(RedisCluster::start().await)
            }
        };
        Self { topology, servers }
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// The number of replicas of each primary.
    pub(crate) fn replicas_each(&self) -> usize {
        match self.topology {
            Topology::Server => 0,
            Topology::Sentinel => 2,
            Topology::ShardedCluster | Topology::PlainCluster => 1,
        }
    }

    /// The URL for the clients of both sides.
    pub(crate) fn url(&self) -> String {
        match &self.servers {
            Servers::One(server) => server.url(),
            Servers::Sentinel(group) => {
                let sentinels = group.addresses().join(",");
                format!("redis+sentinel://{sentinels}/{}", group.master_name())
            }
            Servers::Cluster(cluster) => {
                format!("redis+cluster://{}", cluster.addresses().join(","))
            }
        }
    }

    /// A client of Redisson.
    pub(crate) async fn redisson(&self, lease: Duration) -> Redisson {
        java().connect(&self.configuration(lease)).await.unwrap()
    }

    /// The configuration of Redisson clients.
    pub(crate) fn configuration(&self, lease: Duration) -> Configuration {
        let configuration = Configuration::new(self.url(), lease);
        match self.topology {
            Topology::PlainCluster => configuration.plain_messages(),
            _ => configuration,
        }
    }

    /// A lockcore client.
    pub(crate) async fn locks(&self, lease: Duration) -> Locks {
        let messages = match self.topology {
            Topology::PlainCluster => ClusterMessages::Plain,
            _ => ClusterMessages::Auto,
        };
        self.locks_with(messages, lease).await
    }

    /// A lockcore client with other messages than those of the deployment.
    pub(crate) async fn locks_with(&self, messages: ClusterMessages, lease: Duration) -> Locks {
        let backend = RedisBackend::builder().url(self.url()).cluster_messages(messages);
        // A failover on a busy machine may take longer than the default.
        let builder = Locks::builder(backend.connect().await.unwrap()).retry_for(LONG);
        builder.lease(lease).build().unwrap()
    }

    /// A name for each primary.
    pub(crate) async fn names(&self, stem: &str) -> Vec<String> {
        let Servers::Cluster(cluster) = &self.servers else { return vec![stem.to_owned()] };
        let mut found = Vec::new();
        for number in 0.. {
            let name = format!("{stem}:{number}");
            let primary = cluster.primary_of(cluster.slot_of(&name).await).await;
            if found.iter().all(|(other, _)| *other != primary) {
                found.push((primary, name));
            }
            if found.len() == PRIMARIES {
                break;
            }
        }
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// The primary of a key.
    pub(crate) async fn server_of(&self, key: &str) -> &RedisServer {
        match &self.servers {
            Servers::One(server) => server,
            Servers::Sentinel(group) => group.server(group.primary().await),
            Servers::Cluster(cluster) => {
                let slot = cluster.slot_of(key).await;
                cluster.node(cluster.primary_of(slot).await)
            }
        }
    }

    /// Asks the primary of the key, which is the second word of the command.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.server_of(command[1]).await.query(command).await
    }

    /// The number of clients that have subscribed to a channel.
    pub(crate) async fn subscribers(&self, channel: &str) -> u32 {
        self.subscribers_of(self.pubsub(["NUMSUB", "SHARDNUMSUB"]), channel).await
    }

    /// The number of subscribers, according to a subcommand of `PUBSUB`.
    pub(crate) async fn subscribers_of(&self, subcommand: &str, channel: &str) -> u32 {
        let mut count = 0;
        for server in self.running() {
            let command = ["PUBSUB", subcommand, channel];
            count += server.query::<(String, u32)>(&command).await.1;
        }
        count
    }

    /// The number of channels of this pattern with a subscriber.
    pub(crate) async fn channels(&self, pattern: &str) -> usize {
        let mut count = 0;
        for server in self.running() {
            let command = ["PUBSUB", self.pubsub(["CHANNELS", "SHARDCHANNELS"]), pattern];
            count += server.query::<Vec<String>>(&command).await.len();
        }
        count
    }

    /// Kills the primary of a key, which has replicas; returns when one of them has taken over.
    pub(crate) async fn kill_primary_of(&mut self, key: &str) {
        match &mut self.servers {
            Servers::One(_) => panic!("a single server has no replica"),
            Servers::Sentinel(group) => {
                let primary = group.primary().await;
                group.server_mut(primary).kill();
            }
            Servers::Cluster(cluster) => {
                let primary = cluster.primary_of(cluster.slot_of(key).await).await;
                cluster.node_mut(primary).kill();
            }
        }
        self.server_of(key).await;
    }

    /// Removes all data.
    pub(crate) async fn clear(&self) {
        for server in self.running() {
            let role: Vec<redis::Value> = server.query(&["ROLE"]).await;
            if role.first() == Some(&redis::Value::BulkString(b"master".to_vec())) {
                let () = server.query(&["FLUSHALL"]).await;
            }
        }
    }

    fn running(&self) -> Vec<&RedisServer> {
        let servers = match &self.servers {
            Servers::One(server) => vec![server],
            Servers::Sentinel(group) => {
                (0..group.server_count()).map(|index| group.server(index)).collect()
            }
            Servers::Cluster(cluster) => {
                (0..cluster.addresses().len()).map(|index| cluster.node(index)).collect()
            }
        };
        servers.into_iter().filter(|server| server.is_up()).collect()
    }

    fn pubsub(&self, [plain, sharded]: [&'static str; 2]) -> &'static str {
        if self.topology == Topology::ShardedCluster { sharded } else { plain }
    }
}

/// The number of primaries of a cluster.
const PRIMARIES: usize = 3;
