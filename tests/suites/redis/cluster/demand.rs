//! A holder on a cluster learns that others want its lock, whichever channels are used.

use lockcore::backend::{AcquireOutcome, Backend, SubscribeRequest, Wakeups};
use lockcore_redis::{ClusterMessages, RedisBackend};
use lockcore_testkit::{RedisCluster, poll_times};

use super::{backend, listeners, places, wakeups::ways};
use crate::{
    batches::{begin, exclusive, outcome},
    demand::{assert_unwanted, await_demand},
    steps::{enters, name, refused_for, releases},
    support::{soon, until},
};

async fn client(cluster: &RedisCluster, messages: ClusterMessages) -> RedisBackend {
    backend(cluster).cluster_messages(messages).connect().await.unwrap()
}

/// Drops pending wake-ups, of which there may be too many.
async fn forget(demand: &mut Box<dyn Wakeups>) {
    while poll_times(1, demand.woken()).await.is_some() {}
}

#[tokio::test]
async fn a_refusal_is_heard_of_before_and_after_the_slot_has_moved() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    for (number, messages) in ways().into_iter().enumerate() {
        let lock = format!("lock:{number}");
        let (slot, from, to) = places(&cluster, &lock).await;
        let [holder, other] = [client(&cluster, messages).await, client(&cluster, messages).await];
        let held = exclusive(&lock, 1);
        enters(&holder, &held).await;
        let mut demand = await_demand(&holder, &lock).await;
        assert_unwanted(&mut demand).await;
        assert!(refused_for(&other, &exclusive(&lock, 2)).await.is_some());
        soon("the demand", demand.woken()).await;

        let migration = cluster.begin_migration(slot, to).await;
        cluster.move_keys(&migration).await;
        forget(&mut demand).await;
        assert!(refused_for(&other, &exclusive(&lock, 2)).await.is_some(), "at the target");
        soon("the demand at the target", demand.woken()).await;
        cluster.finish_migration(migration).await;

        soon("the move", async {
            while listeners(&cluster, to, &lock).await == 0 {
                demand.woken().await;
            }
        })
        .await;
        until("the end of the subscription", || async {
            listeners(&cluster, from, &lock).await == 0
        })
        .await;
        forget(&mut demand).await;
        assert!(refused_for(&other, &exclusive(&lock, 2)).await.is_some());
        soon("the demand after the move", demand.woken()).await;
        releases(&holder, &held).await;
    }
}

#[tokio::test]
async fn every_refusal_in_a_batch_for_a_node_is_heard_of() {
    let cluster = super::shared().await;
    for messages in ways() {
        let [holder, other] = [client(&cluster, messages).await, client(&cluster, messages).await];
        let stem = format!("demand:{messages:?}");
        let locks: Vec<String> = (0..60).map(|number| format!("{stem}:{number}")).collect();
        let mut demands = Vec::new();
        for lock in &locks {
            enters(&holder, &exclusive(lock, 1)).await;
            demands.push(await_demand(&holder, lock).await);
        }
        let requests: Vec<_> = locks.iter().map(|lock| exclusive(lock, 2)).collect();
        for _ in 0..2 {
            let tasks: Vec<_> = requests.iter().map(|request| begin(&other, request)).collect();
            for task in tasks {
                let refusal = outcome(task).await.unwrap();
                assert!(matches!(refusal, AcquireOutcome::Held { .. }), "{refusal:?}");
            }
            for demand in &mut demands {
                soon("the demand", demand.woken()).await;
                forget(demand).await;
            }
        }
        for lock in &locks {
            releases(&holder, &exclusive(lock, 1)).await;
        }
    }
}

#[tokio::test]
async fn one_who_waits_already_is_heard_of_at_once() {
    let cluster = super::shared().await;
    for messages in ways() {
        let [holder, other] = [client(&cluster, messages).await, client(&cluster, messages).await];
        let lock = format!("demand:waiter:{messages:?}");
        let held = exclusive(&lock, 1);
        enters(&holder, &held).await;
        let waiter = SubscribeRequest::new(name(&lock), held.hold.clone());
        let waits = other.subscribe(&waiter).await.unwrap();
        let mut demand = await_demand(&holder, &lock).await;
        assert!(poll_times(1, demand.woken()).await.is_some(), "{messages:?}");
        drop(waits);
        releases(&holder, &held).await;
    }
}
