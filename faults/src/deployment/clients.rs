//! The clients' view of the servers: their routes to them, and what they leave there.

use lockcore_testkit::{On, RedisServer};

use super::{Network, Servers, servers::Group};
use crate::{protocol::Result, scene, store::Store};

impl Servers {
    /// The number of client requests that the servers have seen so far.
    pub(crate) async fn commands(&self) -> u64 {
        let mut commands = 0;
        for server in self.primaries().await {
            commands += server.client_commands().await;
        }
        match &self.group {
            Group::Postgres(postgres) => postgres.transactions(self.current).await.unwrap_or(0),
            Group::Etcd(etcd) => etcd.requests().await.unwrap_or(0),
            _ => commands,
        }
    }

    /// Names and owners of holds and places, on stores other than Redis.
    pub(crate) async fn owners(&self) -> Result<Vec<(String, String)>> {
        match &self.group {
            Group::Postgres(postgres) => postgres.owners(self.current).await,
            Group::Etcd(etcd) => etcd.owners().await,
            _ => Ok(Vec::new()),
        }
    }

    /// The connections of clients, on stores other than Redis. For etcd, their watch streams.
    pub(crate) async fn connections(&self) -> Result<usize> {
        match &self.group {
            Group::Postgres(postgres) => postgres.connections(self.current).await,
            Group::Etcd(etcd) => Ok(usize::try_from(etcd.streams().await?)?),
            _ => Ok(0),
        }
    }

    /// The store that a client connects to, with `user:password@` or an empty `user`.
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
            Group::Etcd(etcd) => Store::Etcd(etcd.addresses()),
        }
    }

    /// A separate network for one client, and the store that the client connects to through it.
    pub(crate) async fn network(&self, user: &str) -> Result<(Network, Store)> {
        let sentinels: Vec<u16> = self.sentinels().iter().map(|server| server.port()).collect();
        let network = match &self.group {
            Group::Single(server) => {
                let network = Network::to_one(server.port()).await?;
                let url = format!("redis://{user}127.0.0.1:{}", network.port());
                return Ok((network, Store::Redis(url)));
            }
            Group::Postgres(postgres) => Network::opaque(&postgres.ports()).await?,
            Group::Etcd(etcd) => Network::opaque(&etcd.ports()).await?,
            _ => {
                let servers: Vec<u16> = self.all().map(RedisServer::port).collect();
                Network::to_all(&servers, &sentinels).await?
            }
        };
        Ok((network, self.store(user)))
    }

    /// The number of client connections that are open for requests, if the server can tell.
    pub(crate) async fn open_for_requests(&self) -> Result<Option<usize>> {
        match &self.group {
            Group::Postgres(postgres) => postgres.open_for_requests(self.current).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Closes connections of clients: at the current server, or at all members of a quorum.
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
                // This includes those of Sentinels, which reconnect.
                let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
                let () = server.try_query(&kill).await?;
            }
        }
        Ok(())
    }
}
