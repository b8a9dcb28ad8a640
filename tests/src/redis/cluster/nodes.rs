//! [`RedisCluster`]: primaries that share the slots, with replicas.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use super::{
    super::{
        RedisServer, StartError,
        launch::{Launch, free_cluster_port},
        settle::{Patience, ask, assert_linked, or_panic},
    },
    RedisClusterBuilder,
    view::View,
};

/// The time limit of a manual failover.
const FAILOVER_LIMIT: Duration = Duration::from_secs(6);

/// A Redis Cluster: real processes on free ports, each stopped when the cluster is dropped, even if
/// the test panics.
///
/// Nodes have indices, which do not change with their roles. At the start, the primaries come
/// first, with the slots in equal parts in this order, then the replicas of the first primary, and
/// so on. A replica takes over when its primary does not answer for a second.
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisCluster;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut cluster = RedisCluster::start().await;
/// let slot = cluster.slot_of("invoice").await;
/// let primary = cluster.primary_of(slot).await;
/// cluster.node_mut(primary).kill();
/// assert_ne!(cluster.primary_of(slot).await, primary);
/// # }
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    pub(super) nodes: Vec<Node>,
    pub(super) launch: Launch,
    /// When each slot that has moved got to its primary, in milliseconds since the Unix epoch.
    pub(super) moves: Mutex<BTreeMap<u16, u64>>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) server: RedisServer,
    pub(super) id: String,
}

impl RedisCluster {
    /// Starts three primaries with a replica each.
    ///
    /// # Panics
    /// As [`RedisClusterBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Options for a non-default cluster.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder::new()
    }

    /// The addresses of all nodes by index, such as `127.0.0.1:6379`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.address()).collect()
    }

    /// A node of any role.
    ///
    /// # Panics
    /// If there is no node with this index.
    #[must_use]
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index].server
    }

    /// A node, to kill, stop or restart it.
    ///
    /// # Panics
    /// If there is no node with this index.
    #[must_use]
    pub fn node_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index].server
    }

    /// The slot of a key, which takes its hash tag into account.
    ///
    /// # Panics
    /// If no node answers within a minute.
    pub async fn slot_of(&self, key: &str) -> u16 {
        let patience = Patience::new();
        loop {
            for node in self.running() {
                match ask(&node.server, &["CLUSTER", "KEYSLOT", key]).await {
                    Ok(slot) => return slot,
                    Err(missing) => or_panic(patience.wait(missing).await),
                }
            }
            or_panic(patience.wait("no node is running".to_owned()).await);
        }
    }

    /// Returns the running node that claims a slot. Waits for one if the primary of the slot was
    /// killed, stopped or frozen.
    ///
    /// # Panics
    /// If there is none within a minute.
    pub async fn primary_of(&self, slot: u16) -> usize {
        let patience = Patience::new();
        loop {
            let mut primary = None;
            for (index, node) in self.nodes.iter().enumerate() {
                if !node.server.is_up() {
                    continue;
                }
                let Ok(view) = view(node).await else { continue };
                let Some(state) = view.nodes.get(&view.myself) else { continue };
                // After a failover the old primary may not know of it yet.
                if state.has(slot) {
                    primary = primary.max(Some((state.epoch, index)));
                }
            }
            match primary {
                Some((_, index)) => return index,
                None => or_panic(patience.wait(format!("no node has slot {slot}")).await),
            }
        }
    }

    /// Returns the replicas of a primary. Waits until the running nodes agree on all roles.
    ///
    /// # Panics
    /// If they do not agree within a minute.
    pub async fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let view = self.settled().await;
        let id = &self.nodes[primary].id;
        let is_replica = |node: &Node| {
            view.nodes.get(&node.id).is_some_and(|state| state.primary.as_ref() == Some(id))
        };
        (0..self.nodes.len()).filter(|&index| is_replica(&self.nodes[index])).collect()
    }

    /// Waits until all running nodes serve, agree on the slots and roles of all nodes, and running
    /// replicas receive the writes of running primaries.
    ///
    /// # Panics
    /// If that takes longer than a minute. The message says what is missing.
    pub async fn settle(&self) {
        self.settled().await;
    }

    /// Makes a replica take the place of its primary, which continues as its replica, and waits
    /// until all running nodes agree.
    ///
    /// # Panics
    /// If that takes longer than a minute. The message says what is missing.
    pub async fn failover(&self, replica: usize) {
        self.settle().await;
        let patience = Patience::new();
        let mut ordered: Option<Instant> = None;
        loop {
            let view = self.settled().await;
            let state = view.nodes.get(&self.nodes[replica].id);
            if state.is_some_and(|state| state.primary.is_none()) {
                return;
            }
            // The server gives up after 5 s, for example if the others do not vote for the replica.
            if ordered.is_none_or(|ordered| ordered.elapsed() > FAILOVER_LIMIT) {
                or_panic(self.tell(replica, &["CLUSTER", "FAILOVER"], &patience).await);
                ordered = Some(Instant::now());
            }
            or_panic(patience.wait(format!("node {replica} is still a replica")).await);
        }
    }

    /// Starts another node, a primary without slots, and returns its index once all running nodes
    /// know it.
    ///
    /// # Panics
    /// If it does not start, or the nodes do not know it within a minute.
    pub async fn add_node(&mut self) -> usize {
        let patience = Patience::new();
        or_panic(self.start_node(&patience).await);
        let index = self.nodes.len() - 1;
        or_panic(self.meet(index, &patience).await);
        while let Err(missing) = self.all_met().await {
            or_panic(patience.wait(missing).await);
        }
        self.settle().await;
        index
    }

    /// Makes a node without slots the replica of a primary, and waits until it is linked.
    ///
    /// # Panics
    /// If a node refuses, or the link takes longer than a minute.
    pub async fn replicate(&self, node: usize, primary: usize) {
        let patience = Patience::new();
        let command = ["CLUSTER", "REPLICATE", &self.nodes[primary].id];
        or_panic(self.tell(node, &command, &patience).await);
        while !self.replicas_of(primary).await.contains(&node) {
            or_panic(patience.wait(format!("node {node} is no replica yet")).await);
        }
    }

    /// Stops a node and makes all running ones forget it. Its index stays, but the node can no
    /// longer be used.
    ///
    /// # Panics
    /// If it has slots or replicas; or if the nodes do not forget it within a minute.
    pub async fn remove_node(&mut self, index: usize) {
        let view = self.settled().await;
        let id = self.nodes[index].id.clone();
        let has_slots = view.nodes.get(&id).is_some_and(|state| !state.slots.is_empty());
        let has_replicas = view.nodes.values().any(|state| state.primary.as_ref() == Some(&id));
        assert!(!has_slots && !has_replicas, "node {index} still has slots or replicas");
        self.nodes[index].server.kill();
        let patience = Patience::new();
        for other in (0..self.nodes.len()).filter(|&other| self.node(other).is_up()) {
            or_panic(self.tell(other, &["CLUSTER", "FORGET", &id], &patience).await);
        }
        self.settle().await;
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.server.is_up())
    }

    /// Repeats a command to a node until it is accepted.
    pub(super) async fn tell(
        &self,
        index: usize,
        command: &[&str],
        patience: &Patience,
    ) -> Result<(), StartError> {
        while let Err(refusal) = ask::<()>(&self.nodes[index].server, command).await {
            patience.wait(refusal).await?;
        }
        Ok(())
    }

    pub(super) async fn start_node(&mut self, patience: &Patience) -> Result<(), StartError> {
        let server = RedisServer::launch(self.launch.clone(), free_cluster_port)?;
        let id = loop {
            match ask(&server, &["CLUSTER", "MYID"]).await {
                Ok(id) => break id,
                Err(missing) => patience.wait(missing).await?,
            }
        };
        self.nodes.push(Node { server, id });
        Ok(())
    }

    /// Introduces a node to all earlier ones, which is faster than gossip.
    pub(super) async fn meet(&self, joined: usize, patience: &Patience) -> Result<(), StartError> {
        let port = self.nodes[joined].server.port().to_string();
        for other in (0..joined).filter(|&other| self.node(other).is_up()) {
            self.tell(other, &["CLUSTER", "MEET", "127.0.0.1", &port], patience).await?;
        }
        Ok(())
    }

    /// Fails unless each running node knows all running nodes, and no node that it has not met.
    pub(super) async fn all_met(&self) -> Result<(), String> {
        for node in self.running() {
            let view = view(node).await?;
            let knows = |other: &Node| view.nodes.get(&other.id).is_some_and(|it| it.is_met);
            let is_stranger_there = view.nodes.values().any(|it| !it.is_met);
            if is_stranger_there || !self.running().all(knows) {
                return Err(format!("{} does not know all nodes", node.server.address()));
            }
        }
        Ok(())
    }

    async fn settled(&self) -> View {
        let patience = Patience::new();
        loop {
            match self.agreed().await {
                Ok(view) => return view,
                Err(missing) => or_panic(patience.wait(missing).await),
            }
        }
    }

    /// The view of a running node, if all of them serve and agree, and replicas are linked.
    pub(super) async fn agreed(&self) -> Result<View, String> {
        let mut agreed: Option<View> = None;
        for node in self.running() {
            let info: String = ask(&node.server, &["CLUSTER", "INFO"]).await?;
            if !info.lines().any(|line| line == "cluster_state:ok") {
                return Err(format!("{} does not serve", node.server.address()));
            }
            let view = view(node).await?;
            match &agreed {
                Some(agreed) if agreed.topology() != view.topology() => {
                    return Err(agreed.difference(&view));
                }
                Some(_) => {}
                None => agreed = Some(view),
            }
        }
        let view = agreed.ok_or("no node is running")?;
        let running: BTreeMap<&str, &Node> =
            self.running().map(|node| (node.id.as_str(), node)).collect();
        for (id, node) in &running {
            let primary = view.nodes.get(*id).and_then(|state| state.primary.as_deref());
            if let Some(primary) = primary.and_then(|primary| running.get(primary)) {
                assert_linked(&node.server, &primary.server).await?;
            }
        }
        Ok(view)
    }
}

/// The view of one node.
pub(super) async fn view(node: &Node) -> Result<View, String> {
    let answer: String = ask(&node.server, &["CLUSTER", "NODES"]).await?;
    View::parse(&answer).ok_or_else(|| format!("{} says {answer}", node.server.address()))
}
