//! Replicas that take over, and nodes that come and go.

use std::time::{Duration, Instant};

use lockcore_testkit::RedisCluster;

use super::{builder, locks, name_at, places};
use crate::support::soon;

#[tokio::test]
async fn holds_and_waiters_follow_a_replica_that_takes_over_by_hand() {
    let cluster = RedisCluster::start().await;
    let locks = builder(&cluster).await.lease(Duration::from_secs(3)).build().unwrap();
    let other = super::locks(&cluster).await;
    let (_, primary, _) = places(&cluster, "held").await;
    let guard = locks.lock("held").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = other.lock("held");
        async move { lock.acquire().await }
    });
    let replica = cluster.replicas_of(primary).await[0];
    cluster.failover(replica).await;
    // Longer than the lease.
    let lost = tokio::time::timeout(Duration::from_secs(4), guard.lost()).await;
    assert!(lost.is_err(), "renewed on the new primary");
    assert!(!waiting.is_finished());
    let start = Instant::now();
    guard.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    next.release().await.unwrap();
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
    // Replication is asynchronous: what the replicas have not got is lost with the primary.
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

#[tokio::test]
async fn a_frozen_node_does_not_delay_the_renewals_on_others() {
    let cluster = RedisCluster::builder()
        .replicas_each(0)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await;
    let locks = builder(&cluster).await.lease(Duration::from_millis(1500)).build().unwrap();
    let mut guards = Vec::new();
    for number in 0..12 {
        let name = format!("held:{number}");
        let (_, primary, _) = places(&cluster, &name).await;
        guards.push((primary, locks.lock(name).acquire().await.unwrap()));
    }
    cluster.node(0).freeze();
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (primary, guard) in &guards {
        assert_eq!(guard.is_held(), *primary != 0, "{} at node {primary}", guard.name());
    }
    cluster.node(0).thaw();
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
    guard.release().await.unwrap();
    let guard = soon("a lock on the old node", locks.lock("held").acquire()).await.unwrap();
    guard.release().await.unwrap();
}
