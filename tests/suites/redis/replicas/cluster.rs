//! On a cluster, the replicas are those of the node that has the lock.

use std::time::Instant;

use lockcore::{
    BackendError, BackendErrorKind, LockError, Locks,
    backend::{AcquireOutcome, Backend},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{RedisCluster, SlotMigration};
use tokio::task::JoinHandle;

use super::{ENOUGH, MS};
use crate::{
    batches::exclusive,
    steps::pttl,
    support::{soon, until},
};

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

/// A granted acquisition that waits for a replica, which does not answer yet. The slot of the lock
/// is migrating to another node.
struct Granted {
    acquiring: JoinHandle<Result<AcquireOutcome, BackendError>>,
    since: Instant,
    migration: SlotMigration,
    replica: usize,
}

impl Granted {
    /// Some servers mark a slot only once all replicas have heard of it. So the lock is held before
    /// the replica falls silent, and the same hold is acquired once more for a longer lease.
    async fn start(cluster: &RedisCluster) -> Self {
        let backend = RedisBackend::builder().cluster(cluster.addresses()).replicas(1, ENOUGH);
        let backend = backend.connect().await.unwrap();
        let mut request = exclusive("a", 1);
        let held = backend.acquire(&request).await.unwrap();
        assert!(matches!(held, AcquireOutcome::Acknowledged { replicas: 1, .. }), "{held:?}");
        let slot = cluster.slot_of("a").await;
        let source = cluster.primary_of(slot).await;
        let replica = cluster.replicas_of(source).await[0];
        let migration = cluster.begin_migration(slot, (source + 1) % 3).await;
        cluster.node(replica).freeze();
        let since = Instant::now();
        let lease = i64::try_from(request.lease.as_millis()).unwrap();
        request.lease *= 2;
        let acquiring = tokio::spawn(async move { backend.acquire(&request).await });
        until("the grant", || async { pttl(cluster.node(source), "a").await > lease }).await;
        Self { acquiring, since, migration, replica }
    }

    /// The replica acknowledges the hold, which no longer exists.
    async fn ends_unacknowledged(self, cluster: &RedisCluster) {
        cluster.node(self.replica).thaw();
        let error = soon("the error", self.acquiring).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable(), "{error}");
        let is_late = self.since.elapsed() >= ENOUGH;
        assert!(is_late || error.to_string().contains("its slot has moved"), "{error}");
        for node in [self.migration.from(), self.migration.to()] {
            let slot = self.migration.slot().to_string();
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
    cluster.move_keys(&granted.migration).await;
    granted.ends_unacknowledged(&cluster).await;
}

#[tokio::test]
async fn a_hold_whose_slot_has_moved_is_not_acknowledged_by_the_old_replicas() {
    let cluster = RedisCluster::start().await;
    let granted = Granted::start(&cluster).await;
    cluster.move_keys(&granted.migration).await;
    // The target alone: not all nodes will agree, since one does not answer.
    let (slot, target) = (granted.migration.slot(), cluster.node(granted.migration.to()));
    let id: String = target.query(&["CLUSTER", "MYID"]).await;
    let command = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id];
    let _: String = target.query(&command).await;
    granted.ends_unacknowledged(&cluster).await;
}
