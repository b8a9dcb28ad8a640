//! Replicas that take over, and nodes that come and go.

use std::time::{Duration, Instant};

use lockcore::{LockGuard, Locks, Mode, backend::Backend};
use lockcore_testkit::RedisCluster;
use tokio::task::JoinHandle;

use super::{backend, builder, listeners, locks, name_at, places};
use crate::{
    steps::{enters, hold, releases, request},
    support::{LONG, soon, until},
    timing::Lateness,
};

/// A lease that ends without renewals while a replica takes over.
const LEASE: Duration = Duration::from_secs(4);

/// A lock with a holder and a waiter, and a lock that is used again and again, all in one slot.
struct Scene {
    replica: usize,
    holder: Locks,
    guard: LockGuard,
    waiting: JoinHandle<LockGuard>,
}

impl Scene {
    async fn of(cluster: &RedisCluster) -> Self {
        let holder = builder(cluster).await.lease(LEASE).retry_for(LONG).build().unwrap();
        let waiter = builder(cluster).await.lease(LEASE).retry_for(LONG).build().unwrap();
        let guard = holder.lock("{slot}:held").acquire().await.unwrap();
        let (_, primary, _) = places(cluster, "{slot}").await;
        let waiting = tokio::spawn({
            let lock = waiter.lock("{slot}:held");
            async move { lock.acquire().await.unwrap() }
        });
        until("a subscription", || async { listeners(cluster, primary, "{slot}:held").await > 0 })
            .await;
        // Replication is asynchronous: writes that have not reached the replica are lost with the
        // primary.
        cluster.settle().await;
        Self { replica: cluster.replicas_of(primary).await[0], holder, guard, waiting }
    }

    /// Waits until the replica serves. Then shows that a new lock is acquired, and that the waiter
    /// gets its lock, within `limit`.
    async fn goes_on_within(self, limit: Duration, cluster: &RedisCluster) {
        let Self { replica, holder, guard, waiting } = self;
        let write = ["SET", "{slot}:written", "1"];
        let serves = || async { cluster.node(replica).try_query::<()>(&write).await.is_ok() };
        until("the replica as a primary", serves).await;
        let (start, lateness) = (Instant::now(), Lateness::measure());
        let fresh = tokio::spawn({
            let lock = holder.lock("{slot}:fresh");
            async move {
                let guard = lock.acquire().await.unwrap();
                let waited = start.elapsed();
                guard.release().await.unwrap();
                waited
            }
        });
        let fresh = soon("a new lock", fresh).await.unwrap();
        assert!(guard.is_held(), "renewed in time");
        drop(guard);
        let next = soon("the waiter", waiting).await.unwrap();
        let waited = start.elapsed();
        let late = lateness.so_far();
        println!("a new lock after {fresh:?}, and the waiter's after {waited:?}, late by {late:?}");
        assert!(fresh.max(waited) < limit + late, "{fresh:?}, {waited:?}, late by {late:?}");
        // Longer than the lease: the renewals continue as well.
        let lost = tokio::time::timeout(LEASE + LEASE / 4, next.lost()).await;
        assert!(lost.is_err(), "renewed on the new primary");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_replica_that_takes_over_by_hand_is_followed_at_once() {
    let cluster = RedisCluster::start().await;
    let scene = Scene::of(&cluster).await;
    cluster.node(scene.replica).query::<()>(&["CLUSTER", "FAILOVER"]).await;
    scene.goes_on_within(Duration::from_millis(200), &cluster).await;
}

#[tokio::test]
async fn a_replica_that_replaces_a_killed_primary_is_followed_soon() {
    let mut cluster = RedisCluster::start().await;
    let scene = Scene::of(&cluster).await;
    let (_, primary, _) = places(&cluster, "{slot}").await;
    cluster.node_mut(primary).kill();
    scene.goes_on_within(Duration::from_secs(2), &cluster).await;
}

#[tokio::test]
async fn a_replica_that_replaces_a_silent_primary_is_followed_soon() {
    let cluster = RedisCluster::start().await;
    let scene = Scene::of(&cluster).await;
    let (_, primary, _) = places(&cluster, "{slot}").await;
    cluster.node(primary).freeze();
    scene.goes_on_within(Duration::from_secs(2), &cluster).await;
    cluster.node(primary).thaw();
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_the_others_serve_meanwhile() {
    let mut cluster = RedisCluster::start().await;
    let locks = builder(&cluster).await.lease(Duration::from_secs(8)).build().unwrap();
    let mut guards = Vec::new();
    for number in 0..12 {
        let name = format!("held:{number}");
        let (_, primary, _) = places(&cluster, &name).await;
        guards.push((primary, locks.lock(name).acquire().await.unwrap()));
    }
    assert!((0..3).all(|node| guards.iter().any(|(primary, _)| *primary == node)));
    // Replication is asynchronous: writes that have not reached the replicas are lost with the
    // primary.
    cluster.settle().await;
    let name = name_at(&cluster, 0, "new").await;
    cluster.node_mut(0).kill();
    let start = Instant::now();
    let fresh = soon("a lock of the dead primary", locks.lock(name).acquire()).await.unwrap();
    println!("a lock of the killed primary was acquired after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    fresh.release().await.unwrap();
    // Longer than the lease.
    tokio::time::sleep_until((start + Duration::from_secs(9)).into()).await;
    for (_, guard) in guards {
        assert!(guard.is_held(), "{} was renewed", guard.name());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_hold_whose_primary_is_gone_for_good_is_told_as_lost() {
    let mut cluster = RedisCluster::builder().replicas_each(0).start().await;
    let locks = builder(&cluster).await.lease(Duration::from_secs(2)).build().unwrap();
    let (_, primary, _) = places(&cluster, "held").await;
    let guard = locks.lock("held").acquire().await.unwrap();
    cluster.node_mut(primary).kill();
    let start = Instant::now();
    soon("the loss", guard.lost()).await;
    assert!(start.elapsed() <= Duration::from_secs(3), "{:?}", start.elapsed());
}

/// A lease that ends within a test unless it is renewed, however busy the machine is.
const SHORT: Duration = Duration::from_secs(4);

/// A cluster that leaves a silent node in place, and a client with a short lease.
async fn patient_cluster() -> (RedisCluster, Locks) {
    let patience = Duration::from_secs(30);
    let cluster = RedisCluster::builder().replicas_each(0).node_timeout(patience).start().await;
    let locks = builder(&cluster).await.lease(SHORT).build().unwrap();
    (cluster, locks)
}

#[tokio::test]
async fn a_frozen_node_does_not_delay_the_renewals_on_others() {
    let (cluster, locks) = patient_cluster().await;
    let mut guards = Vec::new();
    for number in 0..12 {
        let name = format!("held:{number}");
        let (_, primary, _) = places(&cluster, &name).await;
        guards.push((primary, locks.lock(name).acquire().await.unwrap()));
    }
    cluster.node(0).freeze();
    tokio::time::sleep(2 * SHORT).await;
    for (primary, guard) in &guards {
        assert_eq!(guard.is_held(), *primary != 0, "{} at node {primary}", guard.name());
    }
    cluster.node(0).thaw();
}

#[tokio::test]
async fn a_slot_on_its_way_to_a_silent_node_loses_no_hold_of_another_slot() {
    let (cluster, locks) = patient_cluster().await;
    let mut guards = Vec::new();
    for (node, stem) in [(0, "moving"), (0, "still"), (2, "other")] {
        let name = name_at(&cluster, node, stem).await;
        guards.push(locks.lock(name).acquire().await.unwrap());
    }
    let slot = cluster.slot_of(guards[0].name()).await;
    let migration = cluster.begin_migration(slot, 1).await;
    cluster.move_keys(&migration).await;
    cluster.node(1).freeze();
    tokio::time::sleep(2 * SHORT).await;
    for guard in &guards[1..] {
        assert!(guard.is_held(), "{} was renewed", guard.name());
    }
    cluster.node(1).thaw();
}

#[tokio::test]
async fn a_node_is_added_and_removed_under_a_held_lock() {
    let mut cluster = RedisCluster::builder().replicas_each(0).start().await;
    let locks = locks(&cluster).await;
    let (slot, primary, _) = places(&cluster, "held").await;
    let guard = locks.lock("held").acquire().await.unwrap();
    let added = cluster.add_node().await;
    cluster.migrate_slot(slot, added).await;
    guard.release().await.unwrap();
    let guard = soon("a lock on the new node", locks.lock("held").acquire()).await.unwrap();
    assert!(cluster.node(added).query::<bool>(&["EXISTS", "held"]).await);
    cluster.migrate_slot(slot, primary).await;
    cluster.remove_node(added).await;
    let lock = locks.lock("held");
    until("the new map", || async { lock.state().await.is_ok() }).await;
    guard.release().await.unwrap();
    let guard = soon("a lock on the old node", locks.lock("held").acquire()).await.unwrap();
    guard.release().await.unwrap();
}

/// The release follows on the same connection, so it cannot overtake the acquisition.
#[tokio::test]
async fn an_acquisition_that_is_answered_too_late_is_undone() {
    const RESPONSE: Duration = Duration::from_secs(2);
    let cluster = RedisCluster::builder()
        .replicas_each(0)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await;
    let quick = backend(&cluster).response_timeout(RESPONSE);
    let backend = quick.connect().await.unwrap();
    let (_, primary, _) = places(&cluster, "lock").await;
    let node = cluster.node(primary);
    let request = request("lock", &hold("owner"), Mode::Exclusive);
    for is_dropped in [false, true] {
        // From here on the connection exists, and the node has the scripts.
        enters(&backend, &request).await;
        releases(&backend, &request).await;
        let calls = async || {
            // The acquisition may do without a script.
            node.calls_of("evalsha").await + node.calls_of("restore").await
        };
        let before = calls().await;
        node.freeze();
        let limit = if is_dropped { RESPONSE / 4 } else { LONG };
        match tokio::time::timeout(limit, backend.acquire(&request)).await {
            Ok(acquired) => assert!(acquired.unwrap_err().is_outcome_unknown()),
            Err(_) => assert!(is_dropped),
        }
        node.thaw();
        until("both requests", || async { calls().await == before + 2 }).await;
        assert!(!node.query::<bool>(&["EXISTS", "lock"]).await);
    }
}
