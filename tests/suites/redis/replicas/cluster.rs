//! On a cluster, the replicas are those of the node that has the lock.

use std::time::Instant;

use lockcore::{BackendErrorKind, LockError, LockGuard, Locks};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisCluster;
use tokio::task::JoinHandle;

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

/// An acquisition that has been granted and waits for a replica, which does not answer until then.
struct Granted {
    acquiring: JoinHandle<Result<Option<LockGuard>, LockError>>,
    since: Instant,
    source: usize,
    target: usize,
    replica: usize,
}

impl Granted {
    async fn start(cluster: &RedisCluster) -> Self {
        let locks = locks(cluster).await;
        let source = cluster.primary_of(cluster.slot_of("a").await).await;
        let replica = cluster.replicas_of(source).await[0];
        cluster.node(replica).freeze();
        let since = Instant::now();
        let acquiring = tokio::spawn(locks.lock("a").replicas(1, ENOUGH).try_acquire());
        let exists = || cluster.node(source).query::<bool>(&["EXISTS", "a"]);
        until("the grant", exists).await;
        Self { acquiring, since, source, target: (source + 1) % 3, replica }
    }

    /// The replica acknowledges the hold, which is not there any more.
    async fn ends_unacknowledged(self, cluster: &RedisCluster) {
        cluster.node(self.replica).thaw();
        let error = soon("the error", self.acquiring).await.unwrap().unwrap_err();
        let LockError::Backend(failed) = &error else { panic!("{error}") };
        assert_eq!(failed.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(failed.is_retryable(), "{error}");
        let is_late = self.since.elapsed() >= ENOUGH;
        assert!(is_late || error.to_string().contains("its slot has moved"), "{error}");
        for node in [self.source, self.target] {
            let slot = cluster.slot_of("a").await.to_string();
            let command = ["CLUSTER", "GETKEYSINSLOT", &slot, "10"];
            let keys: Vec<String> = cluster.node(node).query(&command).await;
            assert!(!keys.contains(&"a".to_owned()), "it was released: {keys:?} at {node}");
        }
    }
}

#[tokio::test]
async fn a_hold_that_is_on_its_way_to_another_node_is_not_acknowledged_by_the_old_replicas() {
    let cluster = RedisCluster::start().await;
    let granted = Granted::start(&cluster).await;
    let slot = cluster.slot_of("a").await;
    let migration = cluster.begin_migration(slot, granted.target).await;
    cluster.move_keys(&migration).await;
    granted.ends_unacknowledged(&cluster).await;
}

#[tokio::test]
async fn a_hold_whose_slot_has_moved_is_not_acknowledged_by_the_old_replicas() {
    let cluster = RedisCluster::start().await;
    let granted = Granted::start(&cluster).await;
    let slot = cluster.slot_of("a").await;
    let migration = cluster.begin_migration(slot, granted.target).await;
    cluster.move_keys(&migration).await;
    // Not all nodes will agree: one does not answer.
    let (slot, target) = (slot.to_string(), cluster.node(granted.target));
    let id: String = target.query(&["CLUSTER", "MYID"]).await;
    for node in [target, cluster.node(granted.source)] {
        let _: String = node.query(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
    }
    granted.ends_unacknowledged(&cluster).await;
}
