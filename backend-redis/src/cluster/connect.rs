//! Connecting to a cluster.

use std::sync::{Arc, OnceLock};

use futures_util::future::join_all;
use lockcore::{BackendError, BackendErrorKind};
use tokio::sync::watch;

use super::{Cluster, ClusterMessages, NodeAddress, Publishing, nodes::Nodes, url::ClusterSeeds};
use crate::server::opener::ConnectOptions;

impl Cluster {
    /// Finds the nodes of the cluster of the `seeds`, and checks that they can be trusted with
    /// locks.
    pub(crate) async fn connect(
        seeds: ClusterSeeds,
        options: ConnectOptions,
        messages: ClusterMessages,
    ) -> Result<Arc<Self>, BackendError> {
        let cluster = Arc::new_cyclic(|cluster| Self {
            nodes: Nodes::new(seeds.info, options, cluster.clone()),
            seeds: seeds.nodes,
            topology: watch::Sender::default(),
            refresh: Default::default(),
            publishing: OnceLock::new(),
        });
        cluster.adopt(cluster.fetch(cluster.nodes.longest_answer()).await?);
        cluster.check_nodes().await?;
        let publishing = cluster.choose_publishing(messages).await?;
        let _ = cluster.publishing.set(publishing);
        Ok(cluster)
    }

    /// Connects to all primaries. A node that is down now is checked when it is back. A node that
    /// refuses this client is an error.
    async fn check_nodes(&self) -> Result<(), BackendError> {
        let map = self.map();
        let unserved = map.unserved();
        if unserved > 0 {
            tracing::warn!(unserved, "the cluster is incomplete: no node serves some of its slots");
        }
        let servers: Vec<_> = map.primaries().iter().map(|node| self.nodes.server(node)).collect();
        let connections = join_all(servers.iter().map(|server| server.connection())).await;
        let is_any_up = connections.iter().any(Result::is_ok);
        for (node, connection) in map.primaries().iter().zip(connections) {
            match connection {
                Err(error) if !is_any_up || !error.is_retryable() => return Err(error),
                Err(error) => tracing::warn!(%node, %error, "a node of the cluster is down"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Chooses as Redisson does, unless the user has chosen.
    async fn choose_publishing(
        &self,
        messages: ClusterMessages,
    ) -> Result<Publishing, BackendError> {
        let chosen = match messages {
            ClusterMessages::Plain => return Ok(Publishing::Plain),
            ClusterMessages::Auto | ClusterMessages::Sharded => Publishing::Sharded,
            ClusterMessages::Both => Publishing::Both,
        };
        match self.ask_for_sharded_channels().await {
            Ok(()) => Ok(chosen),
            Err(error) if messages == ClusterMessages::Auto && !error.is_retryable() => {
                Ok(Publishing::Plain)
            }
            Err(error) => Err(error),
        }
    }

    /// Fails if a node has no sharded channels, or none could be asked. While a cluster is upgraded,
    /// some nodes have them and others do not.
    async fn ask_for_sharded_channels(&self) -> Result<(), BackendError> {
        let asking = self.nodes.connected().into_iter().map(|node| async move {
            let command = redis::cmd("PUBSUB").arg("SHARDNUMSUB").take();
            let answer = self.nodes.server(&node).ask(command, "PUBSUB SHARDNUMSUB").await;
            (node, answer)
        });
        let (mut failure, mut has_answered) = (None, false);
        for (node, answer) in join_all(asking).await {
            match answer {
                Ok(_) => has_answered = true,
                Err(error) if error.is_retryable() => failure = Some(error),
                Err(error) => return Err(without_sharded_channels(&error, &node)),
            }
        }
        if has_answered {
            return Ok(());
        }
        Err(failure.unwrap_or_else(|| {
            let message = "no node of the cluster could be asked for sharded channels";
            BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
        }))
    }

    /// Refuses a latch whose wake-ups the nodes would not deliver.
    pub(crate) fn check_latch(&self, key: &str, channel: &str) -> Result<(), BackendError> {
        if self.publishing().is_sharded()
            && super::slots::slot_of(key) != super::slots::slot_of(channel)
        {
            let message = format!(
                "the latch `{key}` cannot be used on a cluster with sharded messages: Redisson \
                 puts braces around its name, which has some of its own, so that its channel is in \
                 another slot; choose a name without braces, or `ClusterMessages::Plain`"
            );
            return Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied());
        }
        Ok(())
    }
}

fn without_sharded_channels(error: &BackendError, node: &NodeAddress) -> BackendError {
    let message = if error.kind() == BackendErrorKind::Permission {
        format!("the user has no right to sharded channels at {node}; grant +pubsub|shardnumsub")
    } else {
        format!(
            "the node at {node} has no sharded channels, which exist since Redis 7.0; use \
             `ClusterMessages::Plain`, or `Auto` if all programs do"
        )
    };
    BackendError::new(BackendErrorKind::Configuration, message)
        .not_applied()
        .with_source(error.clone())
}
