//! Valid and invalid ways to connect to a cluster.

use std::time::{Duration, Instant};

use lockcore::{
    BackendError, BackendErrorKind, LockError, LockName, Locks,
    backend::{Backend, HoldId, SubscribeRequest},
};
use lockcore_redis::{ClusterMessages, RedisBackend};
use lockcore_testkit::{Feature, RedisCluster, RedisServer, server_lacks};

use super::{backend, builder, locks, name_at, places, shared};
use crate::{
    errors::{LEAST_RIGHTS, set_user},
    everything::call_everything,
    support::{soon, until},
};

async fn assert_works(backend: RedisBackend, name: &str) {
    let locks = Locks::new(backend);
    // In several slots.
    for number in 0..10 {
        let guard = locks.lock(format!("{name}:{number}")).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn any_node_leads_to_the_cluster_be_it_a_replica() {
    let cluster = shared().await;
    for index in 0..6 {
        let node = cluster.node(index);
        let one = RedisBackend::cluster([node.address()]).connect().await.unwrap();
        assert_works(one, "of-one-node").await;
        assert_works(RedisBackend::connect(node.url()).await.unwrap(), "of-a-plain-url").await;
    }
    let mut nodes = cluster.addresses();
    nodes.insert(0, "127.0.0.1:1".into());
    let url = format!("redis+cluster://{}", nodes.join(","));
    assert_works(RedisBackend::connect(url).await.unwrap(), "of-a-url").await;
}

#[tokio::test]
async fn all_nodes_have_the_password_of_the_url() {
    let cluster = RedisCluster::builder().replicas_each(0).password("c4n4ry").start().await;
    let nodes = cluster.addresses().join(",");
    let right = RedisBackend::connect(format!("redis+cluster://:c4n4ry@{nodes}")).await.unwrap();
    assert!(!format!("{right:?}").contains("c4n4ry"));
    assert_works(right, "with-a-password").await;
    for url in [format!("redis+cluster://:wr0ng@{nodes}"), format!("redis+cluster://{nodes}")] {
        let error = RedisBackend::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("wr0ng") && !shown.contains("c4n4ry"), "{shown}");
    }
}

#[tokio::test]
async fn wrong_ways_to_a_cluster_are_refused_with_the_right_one() {
    let cluster = shared().await;
    let single = RedisServer::start();
    let address = cluster.node(0).address();
    for (url, says) in [
        (format!("redis+cluster://{address}/1"), "database 0"),
        (format!("redis://{address}/1"), "database 0"),
        (format!("redis+cluster://{}", single.address()), "redis://"),
    ] {
        let error = RedisBackend::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    let error = RedisBackend::cluster(["127.0.0.1:1"]).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_cluster_that_evicts_keys_is_refused() {
    let evicting = RedisCluster::builder()
        .replicas_each(0)
        .option("--maxmemory", "50mb")
        .option("--maxmemory-policy", "allkeys-lru");
    let cluster = evicting.start().await;
    let error = backend(&cluster).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    backend(&cluster).allow_eviction().connect().await.unwrap();
}

#[tokio::test]
async fn a_latch_whose_channel_is_in_another_slot_is_refused() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = shared().await;
    let sharded = backend(&cluster).cluster_messages(ClusterMessages::Sharded).connect().await;
    let latch = Locks::new(sharded.unwrap()).latch("{tag}:latch");
    let LockError::Backend(error) = latch.set_count(1).await.unwrap_err() else { panic!() };
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("without braces"), "{error}");

    let plain = backend(&cluster).cluster_messages(ClusterMessages::Plain).connect().await;
    let latch = Locks::new(plain.unwrap()).latch("{tag}:latch");
    latch.set_count(1).await.unwrap();
    latch.count_down().await.unwrap();
    soon("the open latch", latch.wait()).await.unwrap();
}

#[tokio::test]
async fn half_a_cluster_serves_nothing_and_says_where_and_why() {
    let mut cluster = RedisCluster::builder().replicas_each(0).start().await;
    let mut names = Vec::new();
    for node in 0..3 {
        names.push((name_at(&cluster, node, "name").await, cluster.addresses()[node].clone()));
    }
    let before = locks(&cluster).await;
    for node in [1, 2] {
        cluster.node_mut(node).kill();
    }
    // A client that connects now is no worse off.
    let after = locks(&cluster).await;
    for locks in [before, after] {
        for (name, address) in &names {
            let refusal = soon("a refusal", refusal(&locks, name)).await;
            assert!(refusal.contains(address), "{refusal}");
            let is_up = *address == cluster.node(0).address();
            assert!(!is_up || refusal.contains("CLUSTER INFO"), "{refusal}");
        }
    }
}

/// Tries a lock until the cluster refuses it: its nodes may not know yet that some are down.
async fn refusal(locks: &Locks, name: &str) -> String {
    loop {
        match locks.lock(name).try_acquire().await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(LockError::Backend(error)) if error.is_retryable() => return error.to_string(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// On all nodes: while a cluster is upgraded, one may lack them, and it need not be the first to be
/// asked.
#[tokio::test]
async fn sharded_messages_need_nodes_that_have_them() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let nodes = cluster.addresses();
    for lacking in [&[0, 1, 2][..], &[0], &[1], &[2]] {
        for node in 0..3 {
            let user = ["ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all"];
            let lacks = ["-pubsub|shardnumsub", "-ssubscribe", "-spublish"];
            let lacks = if lacking.contains(&node) { &lacks[..] } else { &[] };
            cluster.node(node).query::<()>(&[&user[..], lacks].concat()).await;
        }
        let url = format!("redis+cluster://worker:secret@{}", nodes.join(","));
        let builder = || RedisBackend::builder().url(&url);
        for messages in [ClusterMessages::Sharded, ClusterMessages::Both] {
            let error = builder().cluster_messages(messages).connect().await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
            let shown = error.to_string();
            assert!(lacking.iter().any(|node| shown.contains(&nodes[*node])), "{shown}");
            assert!(shown.contains("+pubsub|shardnumsub") && !shown.contains("secret"), "{shown}");
        }
        let backend = builder().connect().await.unwrap();
        for number in 0..10 {
            listens(&backend, &format!("plain-by-itself:{number}")).await.unwrap();
        }
        assert_works(backend, "plain-by-itself").await;
    }
}

async fn listens(backend: &RedisBackend, name: &str) -> Result<(), BackendError> {
    let request = SubscribeRequest::new(LockName::new(name).unwrap(), HoldId::unique("a:1"));
    backend.subscribe(&request).await.map(drop)
}

/// The nodes tell clients to use hostnames, and have none.
#[tokio::test]
async fn nodes_without_hostnames_are_found_by_their_ip_addresses() {
    // Both came with Redis 7.0.
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let (slot, _, other) = places(&cluster, "lock").await;
    let before = backend(&cluster).connect().await.unwrap();
    prefer_hostnames(&cluster).await;
    cluster.migrate_slot(slot, other).await;
    let locks = Locks::new(before);
    let guard = soon("it is found again", locks.lock("lock").acquire()).await.unwrap();
    guard.release().await.unwrap();
    assert_works(backend(&cluster).connect().await.unwrap(), "without-hostnames").await;
}

async fn prefer_hostnames(cluster: &RedisCluster) {
    for node in 0..3 {
        let preferred = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"];
        cluster.node(node).query::<()>(&preferred).await;
    }
}

/// Where a slot is migrating to, only the redirection says.
#[tokio::test]
async fn a_migration_to_a_node_without_a_hostname_is_an_error_that_says_so() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let (slot, owner, other) = places(&cluster, "lock").await;
    let locks = builder(&cluster).await.retry_for(Duration::ZERO).build().unwrap();
    prefer_hostnames(&cluster).await;
    let id: String = cluster.node(other).query(&["CLUSTER", "MYID"]).await;
    let set = ["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &id];
    cluster.node(owner).query::<()>(&set).await;
    let LockError::Backend(error) = locks.lock("lock").acquire().await.unwrap_err() else {
        panic!()
    };
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    for said in [&slot.to_string(), &cluster.addresses()[owner], "cluster-announce-hostname"] {
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// A request that is redirected back and forth is given up, and retried for as long as the user
/// wants.
#[tokio::test]
async fn nodes_that_do_not_agree_are_asked_a_few_times_only() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let (slot, owner, other) = places(&cluster, "lock").await;
    let ids = [
        cluster.node(owner).query::<String>(&["CLUSTER", "MYID"]).await,
        cluster.node(other).query::<String>(&["CLUSTER", "MYID"]).await,
    ];
    // Only the test tells the owner of this change, and nobody tells the other node.
    let slot = slot.to_string();
    cluster.node(owner).query::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]).await;
    let lock = builder(&cluster).await.retry_for(Duration::ZERO).build().unwrap().lock("lock");
    let start = Instant::now();
    let LockError::Backend(error) = lock.acquire().await.unwrap_err() else { panic!() };
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains(&slot), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // Plain messages reach all nodes.
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let backend = backend(&cluster).connect().await.unwrap();
    let error = listens(&backend, "lock").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn the_least_rights_are_enough_for_everything() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let nodes = cluster.addresses().join(",");
    for (messages, rights) in [
        (ClusterMessages::Plain, ""),
        (ClusterMessages::Sharded, " +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe"),
    ] {
        let user = format!("{messages:?}");
        let rights = format!("{LEAST_RIGHTS} +asking +cluster|slots +cluster|info{rights}");
        for node in 0..3 {
            set_user(cluster.node(node), &user, &rights).await;
        }
        let url = format!("redis+cluster://{user}:pw@{nodes}");
        let builder = RedisBackend::builder().url(url).cluster_messages(messages);
        let locks = Locks::builder(builder.connect().await.unwrap()).namespace("locks:");
        let errors = call_everything(&locks.build().unwrap()).await;
        let refused = errors.iter().find(|error| matches!(error, LockError::Backend(_)));
        assert!(refused.is_none(), "{messages:?}: {refused:?}");
    }
}

#[tokio::test]
async fn a_backend_that_is_dropped_leaves_no_connection() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let locks = locks(&cluster).await;
    let mut guards = Vec::new();
    for node in 0..3 {
        let name = name_at(&cluster, node, "name").await;
        guards.push(locks.lock(&name).acquire().await.unwrap());
        let refused = locks.lock(&name).acquire_timeout(Duration::from_millis(100)).await;
        assert!(matches!(refused, Err(LockError::Timeout { .. })), "{refused:?}");
    }
    let connections = async |node: usize| {
        let clients: String = cluster.node(node).query(&["CLIENT", "LIST"]).await;
        clients.lines().filter(|client| !client.contains("cmd=client")).count()
    };
    let before = connections(0).await;
    drop(guards);
    locks.close().await.unwrap();
    drop(locks);
    for node in 0..3 {
        until("the end of all connections", || async { connections(node).await == 0 }).await;
    }
    assert_eq!(before, 2, "one for commands, one for messages");
}
