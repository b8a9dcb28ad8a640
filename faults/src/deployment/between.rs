//! [`Between`]: the network between the first primary and the other servers.

use lockcore_testkit::{Proxy, RedisServer};

use super::{
    Servers, cut,
    routes::{EVERYBODY, Routes},
};
use crate::protocol::Result;

/// The difference between the port of the cluster bus and that of the clients.
const BUS_OFFSET: u16 = 10_000;

/// The routes between the first primary and the other servers, and to it from the Sentinels.
#[derive(Debug)]
pub(crate) struct Between {
    _routes: Routes,
    /// From replicas, and from nodes that send keys.
    replication: Proxy,
    /// From Sentinels.
    watching: Option<Proxy>,
    /// From and to the nodes of a cluster.
    bus: Vec<Proxy>,
}

impl Between {
    /// Routes the traffic between the first primary and the other servers through proxies.
    pub(super) async fn start(routes: Routes, servers: &Servers) -> Result<Self> {
        let first = servers.server(0)?;
        let replication = Proxy::start_opaque(first.port()).await?;
        let mut lines = vec![(EVERYBODY, first.port(), replication.port())];
        let mut watching = None;
        for sentinel in servers.sentinels() {
            let proxy = match watching.take() {
                Some(proxy) => proxy,
                None => Proxy::start(first.port()).await?,
            };
            lines.push((sentinel.pid(), first.port(), proxy.port()));
            watching = Some(proxy);
        }
        let mut bus = Vec::new();
        if servers.cluster().is_ok() {
            for server in servers.all() {
                let port = server.port() + BUS_OFFSET;
                let proxy = Proxy::start_opaque(port).await?;
                let process = if server.port() == first.port() { EVERYBODY } else { first.pid() };
                lines.push((process, port, proxy.port()));
                bus.push(proxy);
            }
        }
        routes.lead(lines)?;
        let between = Self { _routes: routes, replication, watching, bus };
        between.reconnect(servers).await?;
        Ok(between)
    }

    /// Closes the connections that were made before the routes.
    async fn reconnect(&self, servers: &Servers) -> Result<()> {
        let first = servers.server(0)?;
        for kind in ["replica", "pubsub", "normal"] {
            let () = first.try_query(&["CLIENT", "KILL", "TYPE", kind]).await?;
        }
        if servers.cluster().is_ok() {
            for server in servers.all() {
                kill_bus(server).await?;
            }
        }
        Ok(())
    }

    /// Holds back what the first primary sends to its replicas.
    pub(crate) fn hold_replication(&self) {
        self.replication.set(cut());
    }

    /// Blocks everything between the first primary and other servers or Sentinels.
    pub(crate) fn cut(&self) {
        self.all().for_each(|proxy| proxy.set(cut()));
    }

    pub(crate) fn heal(&self) {
        self.all().for_each(Proxy::heal);
    }

    /// Returns `true` if replicas are connected through this network.
    pub(crate) fn is_in_use(&self) -> bool {
        self.replication.connections() > 0
    }

    fn all(&self) -> impl Iterator<Item = &Proxy> {
        self.watching.iter().chain(&self.bus).chain([&self.replication])
    }
}

/// Closes the bus connections that a node has made to the others. It makes new ones at once.
async fn kill_bus(server: &RedisServer) -> Result<()> {
    let nodes: String = server.try_query(&["CLUSTER", "NODES"]).await?;
    for line in nodes.lines().filter(|line| !line.contains("myself")) {
        let id = line.split(' ').next().unwrap_or_default();
        let () = server.try_query(&["DEBUG", "CLUSTERLINK", "KILL", "TO", id]).await?;
    }
    Ok(())
}
