//! Wake-ups through sharded channels, common ones, and both.

use std::time::{Duration, Instant};

use lockcore::{
    LockName, Locks,
    backend::{Backend, HoldId, SubscribeRequest},
};
use lockcore_redis::{ClusterMessages, RedisBackend};
use lockcore_testkit::{Feature, RedisCluster, server_has, server_lacks};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
};

use super::{backend, listeners, name_at, places};
use crate::support::{connections_received, soon, until};

const PROMPT: Duration = Duration::from_secs(2);
/// The minimum that reveals a missed wake-up.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The kinds of messages with which the server wakes waiters.
pub(super) fn ways() -> Vec<ClusterMessages> {
    let mut ways = vec![ClusterMessages::Auto, ClusterMessages::Plain];
    if server_has(Feature::ShardedChannels) {
        ways.extend([ClusterMessages::Sharded, ClusterMessages::Both]);
    }
    ways
}

async fn locks(cluster: &RedisCluster, messages: ClusterMessages) -> Locks {
    Locks::new(backend(cluster).cluster_messages(messages).connect().await.unwrap())
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

/// The waiters listen at the source of the slot until it has arrived at the target.
#[tokio::test]
async fn waiters_of_all_kinds_hear_of_what_happens_at_the_target_of_a_migration() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    for messages in ways() {
        let tag = format!("{{{messages:?}}}");
        let (slot, from, to) = places(&cluster, &tag).await;
        let [holder, waiter] = [locks(&cluster, messages).await, locks(&cluster, messages).await];
        let [plain, fair, write, permit] =
            ["plain", "fair", "write", "permit"].map(|kind| format!("{tag}:{kind}"));
        let guards = [
            holder.lock(&plain).acquire().await.unwrap(),
            holder.fair_lock(&fair).acquire().await.unwrap(),
            holder.rw_lock(&write).write().acquire().await.unwrap(),
            holder.semaphore(&permit, 1).acquire().await.unwrap(),
        ];
        let mut waiting = JoinSet::new();
        let contenders = [
            waiter.lock(&plain),
            waiter.fair_lock(&fair),
            waiter.rw_lock(&write).read(),
            waiter.semaphore(&permit, 1).permits(1),
        ];
        for contender in contenders {
            waiting.spawn(async move { contender.acquire().await.unwrap().release().await });
        }
        for name in [&plain, &fair, &write, &permit] {
            until("a subscription", || async { listeners(&cluster, from, name).await > 0 }).await;
        }
        let migration = cluster.begin_migration(slot, to).await;
        cluster.move_keys(&migration).await;
        let start = Instant::now();
        for guard in guards {
            guard.release().await.unwrap();
        }
        for released in soon("all waiters", waiting.join_all()).await {
            released.unwrap();
        }
        assert!(start.elapsed() < AT_ONCE, "{messages:?}: {:?}", start.elapsed());
        cluster.move_keys(&migration).await;
        cluster.finish_migration(migration).await;
    }
}

/// When a slot moves, the server ends the subscriptions to its channels unsolicited. The client
/// library takes that for a reply, so the connection is useless from then on.
#[tokio::test]
async fn every_listener_at_a_node_is_woken_when_one_of_its_slots_has_moved() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let (slot, from, to) = places(&cluster, "moves").await;
    let stays = name_at(&cluster, from, "moves").await;
    let backend = backend(&cluster).connect().await.unwrap();
    let [mut moved, mut stayed] = [listen(&backend, "moves").await, listen(&backend, &stays).await];
    let connections = message_connections(&cluster, from).await;
    assert_eq!(connections.len(), 1);

    cluster.migrate_slot(slot, to).await;
    soon("a look at the lock that has moved", moved.recv()).await.unwrap();
    soon("a look at the lock that has stayed", stayed.recv()).await.unwrap();
    until("another connection", || async {
        let now = message_connections(&cluster, from).await;
        now.len() == 1 && now != connections
    })
    .await;
    until("both subscriptions", || async {
        listeners(&cluster, to, "moves").await == 1 && listeners(&cluster, from, &stays).await == 1
    })
    .await;
}

/// Subscribes to the releases of a lock, as a waiter does.
async fn listen(backend: &RedisBackend, name: &str) -> UnboundedReceiver<()> {
    let request = SubscribeRequest::new(LockName::new(name).unwrap(), HoldId::unique("waiter"));
    let mut subscription = backend.subscribe(&request).await.unwrap();
    let (sender, woken) = unbounded_channel();
    tokio::spawn(async move {
        loop {
            subscription.woken().await;
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    woken
}

/// The ids of the connections to a node that have subscriptions to sharded channels.
async fn message_connections(cluster: &RedisCluster, node: usize) -> Vec<String> {
    let clients: String = cluster.node(node).query(&["CLIENT", "LIST"]).await;
    let subscribed = clients.lines().filter(|client| !client.contains(" ssub=0 "));
    subscribed.filter_map(|client| client.split(' ').next().map(str::to_owned)).collect()
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
    // Without persistence, the lock is lost with the node, and nobody publishes that.
    cluster.node_mut(primary).kill();
    cluster.node_mut(primary).restart();
    let start = Instant::now();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(guard);
}

/// The node refuses its channel, and serves the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_whose_slot_nobody_serves_does_not_silence_the_others() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let options = ["--cluster-require-full-coverage", "no"];
    let cluster = RedisCluster::builder().replicas_each(0).options(&options).start().await;
    let (slot, node, _) = places(&cluster, "unserved").await;
    let served = name_at(&cluster, node, "served").await;
    let backend = backend(&cluster).connect().await.unwrap();
    let (_unserved, mut woken) =
        (listen(&backend, "unserved").await, listen(&backend, &served).await);
    let node = cluster.node(node);
    node.query::<()>(&["CLUSTER", "DELSLOTS", &slot.to_string()]).await;
    soon("it may have missed something", woken.recv()).await.unwrap();
    until("the served channel is back", || async {
        let channels: Vec<String> = node.query(&["PUBSUB", "SHARDCHANNELS"]).await;
        channels.iter().any(|channel| channel.contains(&served))
    })
    .await;
    let connected =
        || async { connections_received(&node.query::<String>(&["INFO", "stats"]).await) };
    let before = connected().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let new = connected().await - before;
    // One of them may be of this test.
    assert!(new <= 4, "{new} connections in a second");
}
