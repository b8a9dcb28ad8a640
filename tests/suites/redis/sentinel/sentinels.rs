//! Sentinels that are down, silent, or not named by the user.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::{Credentials, RedisBackend};
use lockcore_testkit::{Feature, RedisSentinel, server_lacks};

use super::{backend, locks};
use crate::support::{soon, until};

async fn works(locks: &Locks) {
    soon("a lock", locks.lock("any").acquire()).await.unwrap().release().await.unwrap();
}

/// Completes when there is a subscriber to the events of a Sentinel.
async fn followed(group: &RedisSentinel, sentinel: usize) {
    until("a follower", || async {
        let clients: String = group.sentinel(sentinel).query(&["CLIENT", "LIST"]).await;
        clients.contains(" sub=3 ")
    })
    .await;
}

#[tokio::test]
async fn one_sentinel_is_enough_and_none_is_needed_while_the_primary_stays() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    let before = locks(&group).await;
    for gone in 0..2 {
        group.sentinel_mut(gone).kill();
        let start = Instant::now();
        works(&locks(&group).await).await;
        works(&before).await;
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    group.sentinel_mut(2).kill();
    works(&before).await;
    let error = backend(&group).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && !error.is_outcome_unknown());
    for address in group.addresses() {
        assert!(error.to_string().contains(&address), "{error}");
    }
}

#[tokio::test]
async fn a_silent_sentinel_does_not_hold_up_a_connection() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    group.sentinel(0).freeze();
    let start = Instant::now();
    works(&locks(&group).await).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_after_the_sentinel_that_told_is_lost() {
    for freeze in [false, true] {
        let mut group = RedisSentinel::builder().replicas(1).start().await;
        let locks = locks(&group).await;
        works(&locks).await;
        followed(&group, 0).await;
        if freeze {
            group.sentinel(0).freeze();
        } else {
            group.sentinel_mut(0).kill();
        }
        followed(&group, 1).await;
        let new = group.failover().await;
        let moment = Instant::now();
        let guard = locks.lock("after").acquire().await.unwrap();
        assert!(moment.elapsed() < Duration::from_secs(1), "{:?}", moment.elapsed());
        assert!(group.server(new).query::<bool>(&["EXISTS", "after"]).await);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_others_name_are_asked_too() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    let backend = RedisBackend::sentinel([group.sentinel(0).address()], group.master_name());
    let locks = Locks::new(backend.connect().await.unwrap());
    followed(&group, 0).await;
    group.sentinel_mut(0).kill();
    group.server_mut(0).kill();
    assert_eq!(group.primary().await, 1);
    works(&locks).await;
}

#[tokio::test]
async fn a_dropped_backend_leaves_no_connection_to_a_sentinel() {
    let group = RedisSentinel::builder().replicas(1).sentinels(1).start().await;
    let locks = locks(&group).await;
    works(&locks).await;
    followed(&group, 0).await;
    drop(locks);
    until("the end", || async {
        let clients: String = group.sentinel(0).query(&["CLIENT", "LIST"]).await;
        !clients.contains(" sub=3 ")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_at_a_sentinel_are_enough_for_a_failover() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).sentinels(1).start().await;
    let rights = "on >pw &* -@all +hello +subscribe +unsubscribe +sentinel|get-master-addr-by-name";
    let mut command = vec!["ACL", "SETUSER", "follower"];
    command.extend(rights.split(' '));
    let _: String = group.sentinel(0).query(&command).await;
    let follower = backend(&group).sentinel_credentials(Credentials::new("follower", "pw"));
    let locks = Locks::new(follower.connect().await.unwrap());
    works(&locks).await;
    followed(&group, 0).await;
    let new = group.failover().await;
    let moment = Instant::now();
    until("the new primary", || async {
        let guard = locks.lock("after").acquire().await.unwrap();
        let is_there: bool = group.server(new).query(&["EXISTS", "after"]).await;
        guard.release().await.unwrap();
        is_there
    })
    .await;
    assert!(moment.elapsed() < Duration::from_secs(1), "{:?}", moment.elapsed());
}
