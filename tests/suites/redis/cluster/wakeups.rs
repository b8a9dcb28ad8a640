//! Wake-ups through sharded channels, common ones, and both.

use std::time::{Duration, Instant};

use lockcore::Locks;
use lockcore_redis::ClusterMessages;
use lockcore_testkit::{Feature, RedisCluster, server_lacks};

use super::{backend, places};
use crate::support::{soon, until};

const PROMPT: Duration = Duration::from_secs(2);

/// The ways of the server to wake somebody up.
fn ways() -> Vec<ClusterMessages> {
    let mut ways = vec![ClusterMessages::Auto, ClusterMessages::Plain];
    if !server_lacks(Feature::ShardedChannels) {
        ways.extend([ClusterMessages::Sharded, ClusterMessages::Both]);
    }
    ways
}

async fn locks(cluster: &RedisCluster, messages: ClusterMessages) -> Locks {
    Locks::new(backend(cluster).cluster_messages(messages).connect().await.unwrap())
}

/// The number of subscriptions to channels of the name at a node.
async fn listeners(cluster: &RedisCluster, node: usize, name: &str) -> usize {
    let node = cluster.node(node);
    let mut channels = node.channels().await;
    if !server_lacks(Feature::ShardedChannels) {
        channels.extend(node.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await);
    }
    channels.iter().filter(|channel| channel.contains(name)).count()
}

#[tokio::test]
async fn a_waiter_is_woken_before_and_after_the_slot_has_moved() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    for (number, messages) in ways().into_iter().enumerate() {
        let name = format!("lock:{number}");
        let (slot, from, to) = places(&cluster, &name).await;
        let [holder, waiter] = [locks(&cluster, messages).await, locks(&cluster, messages).await];
        for (listening_at, moves_to) in [(from, None), (from, Some(to)), (to, None)] {
            let guard = holder.lock(&name).acquire().await.unwrap();
            let waiting = tokio::spawn({
                let lock = waiter.lock(&name);
                async move { lock.acquire().await }
            });
            until("a subscription", || async {
                listeners(&cluster, listening_at, &name).await > 0
            })
            .await;
            if let Some(to) = moves_to {
                cluster.migrate_slot(slot, to).await;
                until("a subscription at the new node", || async {
                    listeners(&cluster, to, &name).await > 0
                })
                .await;
            }
            let start = Instant::now();
            guard.release().await.unwrap();
            let next = soon("the waiter", waiting).await.unwrap().unwrap();
            let waited = start.elapsed();
            assert!(waited < PROMPT, "{messages:?}, {moves_to:?}: {waited:?}");
            next.release().await.unwrap();
            until("the end of the subscription", || async {
                listeners(&cluster, from, &name).await + listeners(&cluster, to, &name).await == 0
            })
            .await;
        }
    }
}

#[tokio::test]
async fn both_hears_whoever_publishes_either_way() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = super::shared().await;
    let both = locks(&cluster, ClusterMessages::Both).await;
    for messages in [ClusterMessages::Plain, ClusterMessages::Sharded] {
        let name = format!("heard:{messages:?}");
        let (_, primary, _) = places(&cluster, &name).await;
        let guard = locks(&cluster, messages).await.lock(&name).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = both.lock(&name);
            async move { lock.acquire().await }
        });
        until("both subscriptions", || async { listeners(&cluster, primary, &name).await == 2 })
            .await;
        let start = Instant::now();
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
        assert!(start.elapsed() < PROMPT, "{messages:?}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn waiters_of_all_nodes_are_woken_when_a_node_comes_back() {
    let mut cluster = RedisCluster::builder()
        .replicas_each(0)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await;
    let [holder, waiter] = [(); 2].map(|()| locks(&cluster, ClusterMessages::Auto));
    let (holder, waiter) = (holder.await, waiter.await);
    let (_, primary, _) = places(&cluster, "lock").await;
    let guard = holder.lock("lock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("lock");
        async move { lock.acquire().await }
    });
    until("a subscription", || async { listeners(&cluster, primary, "lock").await > 0 }).await;
    // Without persistence, the lock is gone with it, and nobody publishes that.
    cluster.node_mut(primary).kill();
    cluster.node_mut(primary).restart();
    let start = Instant::now();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(guard);
}
