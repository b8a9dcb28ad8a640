//! Ways to a cluster, and wrong ones.

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::{ClusterMessages, RedisBackend};
use lockcore_testkit::{RedisCluster, RedisServer};

use super::{backend, locks, shared};
use crate::support::soon;

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
        let one = RedisBackend::cluster([node.address()]).await.unwrap();
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
    let error = RedisBackend::cluster(["127.0.0.1:1"]).await.unwrap_err();
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
async fn half_a_cluster_serves_nothing_and_says_so() {
    let mut cluster = RedisCluster::builder().replicas_each(0).start().await;
    let locks = locks(&cluster).await;
    for node in [1, 2] {
        cluster.node_mut(node).kill();
    }
    crate::support::until("a refusal", || async {
        let mut outcomes = Vec::new();
        for number in 0..10 {
            outcomes.push(locks.lock(format!("name:{number}")).try_acquire().await);
        }
        outcomes.iter().all(|outcome| match outcome {
            Err(LockError::Backend(error)) => error.is_retryable(),
            _ => false,
        })
    })
    .await;
}
