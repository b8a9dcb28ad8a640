//! [`Nodes`]: the servers of a cluster, by their addresses.

use std::{
    fmt,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use lockcore::{BackendError, backend::async_trait};
use redis::ConnectionInfo;
use rustc_hash::FxHashMap;

use super::{
    Cluster,
    slots::{NodeAddress, SlotMap},
};
use crate::{
    server::{
        CommandConnection, Server,
        address::{Locate, Place},
        opener::{ConnectOptions, Opener},
    },
    url::relocated,
};

/// The servers that were needed so far and have not left the cluster. Each has connections of its
/// own.
pub(super) struct Nodes {
    /// Its credentials and TLS settings are those for all nodes.
    info: ConnectionInfo,
    options: ConnectOptions,
    cluster: Weak<Cluster>,
    /// Critical sections are short and do not await.
    servers: Mutex<FxHashMap<NodeAddress, Arc<Server>>>,
}

impl Nodes {
    pub(super) fn new(
        info: ConnectionInfo,
        options: ConnectOptions,
        cluster: Weak<Cluster>,
    ) -> Self {
        Self { info, options, cluster, servers: Mutex::default() }
    }

    fn servers(&self) -> MutexGuard<'_, FxHashMap<NodeAddress, Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info_and_options(&self) -> (ConnectionInfo, ConnectOptions) {
        (self.info.clone(), self.options.clone())
    }

    /// How long a node may take to connect and answer.
    pub(super) fn longest_answer(&self) -> Duration {
        self.options.connect_timeout.saturating_add(self.options.response_timeout)
    }

    /// Returns the server at `node`. It connects when it is used.
    pub(super) fn server(&self, node: &NodeAddress) -> Arc<Server> {
        let mut servers = self.servers();
        if let Some(server) = servers.get(node) {
            return server.clone();
        }
        let endpoint = (node.host.to_string(), node.port);
        let (info, cluster) = (relocated(&self.info, endpoint), self.cluster.clone());
        let address = Arc::new(NodeLocation { node: node.clone(), info, cluster });
        let opener = Opener::new(address, self.options.clone(), Some(true));
        let server = Arc::new(Server::new(opener));
        servers.insert(node.clone(), server.clone());
        server
    }

    /// The connection for commands to `node`, if it is open.
    pub(super) fn current(&self, node: &NodeAddress) -> Option<Arc<CommandConnection>> {
        self.servers().get(node)?.current()
    }

    /// Drops the servers that are not primaries of the cluster any more.
    pub(super) fn retain(&self, map: &SlotMap) {
        let mut servers = self.servers();
        let left = servers.extract_if(|node, _| !map.primaries().contains(node));
        let left: Vec<_> = left.collect();
        drop(servers);
        // Closes connections that no request uses.
        drop(left);
    }

    /// The nodes that have a connection.
    pub(super) fn connected(&self) -> Vec<NodeAddress> {
        let servers = self.servers();
        let connected = servers.iter().filter(|(_, server)| server.current().is_some());
        connected.map(|(node, _)| node.clone()).collect()
    }
}

/// Omits the credentials.
impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// The location of one node. Tells the cluster when the node cannot be reached there.
struct NodeLocation {
    node: NodeAddress,
    info: ConnectionInfo,
    cluster: Weak<Cluster>,
}

#[async_trait]
impl Locate for NodeLocation {
    async fn locate(&self) -> Result<Place, BackendError> {
        Ok(Place { info: self.info.clone(), named_by: None, epoch: None, sentinels: 0 })
    }

    /// A primary of the cluster has moved once it is no longer a primary: a replica has taken over,
    /// or its slots have moved.
    async fn moved(&self, _: &Place) {
        let topology = self.cluster.upgrade().map(|cluster| cluster.topology.subscribe());
        let Some(mut topology) = topology else { return pending().await };
        let is_primary = |map: &Arc<SlotMap>| map.primaries().contains(&self.node);
        // A node that is only asked for the map may never be a primary. One to which slots are
        // moving is not yet.
        let became_primary = topology.wait_for(is_primary).await.is_ok();
        if !became_primary || topology.wait_for(|map| !is_primary(map)).await.is_err() {
            // The cluster is gone.
            pending::<()>().await;
        }
    }

    fn reject(&self, _: &Place) {
        self.lost();
    }

    fn lost(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_soon();
        }
    }

    fn in_use(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_if_old();
        }
    }

    /// Another node may be taking over.
    fn fell_silent(&self) {
        self.lost();
    }
}

/// Omits the credentials.
impl fmt::Debug for NodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeLocation").field(&self.node.to_string()).finish()
    }
}
