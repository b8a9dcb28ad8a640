//! Locks on a Redis Cluster.

mod batches;
mod conformance;
mod connecting;
mod demand;
mod directory;
mod failover;
mod migration;
mod recent;
mod silence;
mod succeeded;
mod wakeups;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockcore::{Locks, LocksBuilder};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::{Feature, RedisCluster, server_has};
use tokio::sync::Mutex;

/// A cluster of three primaries and three replicas for all tests that do not change it. It is
/// stopped when no test uses it.
pub(crate) async fn shared() -> Arc<RedisCluster> {
    static SHARED: Mutex<Weak<RedisCluster>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    match shared.upgrade() {
        Some(cluster) => cluster,
        None => {
            let cluster = Arc::new(RedisCluster::start().await);
            *shared = Arc::downgrade(&cluster);
            cluster
        }
    }
}

fn backend(cluster: &RedisCluster) -> RedisBackendBuilder {
    RedisBackend::builder()
        .cluster(cluster.addresses())
        .response_timeout(Duration::from_secs(1))
        .connect_timeout(Duration::from_secs(1))
}

/// A separate client, as if in another process.
async fn builder(cluster: &RedisCluster) -> LocksBuilder {
    Locks::builder(backend(cluster).connect().await.unwrap())
}

async fn locks(cluster: &RedisCluster) -> Locks {
    builder(cluster).await.build().unwrap()
}

/// The slot and the primary of a name, and another primary.
async fn places(cluster: &RedisCluster, name: &str) -> (u16, usize, usize) {
    let slot = cluster.slot_of(name).await;
    let primary = cluster.primary_of(slot).await;
    (slot, primary, (primary + 1) % 3)
}

/// A name whose slot is at the node.
async fn name_at(cluster: &RedisCluster, node: usize, stem: &str) -> String {
    for number in 0.. {
        let name = format!("{stem}:{number}");
        if cluster.primary_of(cluster.slot_of(&name).await).await == node {
            return name;
        }
    }
    unreachable!("every node has slots")
}

/// The number of subscriptions to channels of the name at a node.
async fn listeners(cluster: &RedisCluster, node: usize, name: &str) -> usize {
    let node = cluster.node(node);
    let mut channels = node.channels().await;
    if server_has(Feature::ShardedChannels) {
        channels.extend(node.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await);
    }
    channels.iter().filter(|channel| channel.contains(name)).count()
}
