//! On a cluster, the replicas are those of the node that has the lock.

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisCluster;

use super::{ENOUGH, MS};
use crate::support::{soon, until};

async fn locks(cluster: &RedisCluster) -> Locks {
    let backend = RedisBackend::builder().cluster(cluster.addresses()).replicas(1, 200 * MS);
    Locks::new(backend.connect().await.unwrap())
}

#[tokio::test]
async fn each_node_waits_for_replicas_of_its_own() {
    let cluster = RedisCluster::start().await;
    let locks = locks(&cluster).await;
    let mut guards = Vec::new();
    for number in 0..10 {
        let acquiring = locks.lock(format!("lock:{number}")).acquire();
        guards.push(soon("a lock", acquiring).await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.replicas() == Some(1)));

    let primary = cluster.primary_of(cluster.slot_of("a").await).await;
    let replica = cluster.replicas_of(primary).await[0];
    cluster.node(replica).freeze();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert_eq!(failed.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
    assert!(!cluster.node(primary).query::<bool>(&["EXISTS", "a"]).await, "it was released");
    for number in 10..40 {
        let name = format!("lock:{number}");
        if cluster.primary_of(cluster.slot_of(&name).await).await != primary {
            let guard = locks.lock(&*name).try_acquire().await.unwrap();
            assert_eq!(guard.expect("the lock is free").replicas(), Some(1), "{name}");
        }
    }
}

#[tokio::test]
async fn dropped_in_the_middle_of_a_wait_it_leaves_nothing_at_the_node() {
    let cluster = RedisCluster::start().await;
    let locks = locks(&cluster).await;
    let primary = cluster.primary_of(cluster.slot_of("a").await).await;
    let replica = cluster.replicas_of(primary).await[0];
    cluster.node(replica).freeze();
    let acquiring = tokio::spawn(locks.lock("a").replicas(1, ENOUGH).acquire());
    let exists = || cluster.node(primary).query::<bool>(&["EXISTS", "a"]);
    until("the grant", exists).await;
    acquiring.abort();
    until("the release", || async { !exists().await }).await;
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_acquisitions_along() {
    let cluster = RedisCluster::start().await;
    let locks = locks(&cluster).await;
    let slot = cluster.slot_of("a").await;
    let lock = locks.lock("a").replicas(1, ENOUGH);
    let target = (cluster.primary_of(slot).await + 1) % 3;
    let migration = cluster.begin_migration(slot, target).await;
    let during = soon("the lock", lock.acquire()).await.unwrap();
    assert_eq!(during.replicas(), Some(1));
    during.release().await.unwrap();
    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
    let after = soon("the lock", lock.acquire()).await.unwrap();
    assert_eq!(after.replicas(), Some(1));
    assert!(cluster.node(target).query::<bool>(&["EXISTS", "a"]).await);
}
