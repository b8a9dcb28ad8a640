//! Sentinels that are down, silent, or not named by the user.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::{Credentials, RedisBackend};
use lockcore_testkit::{Feature, RedisSentinel, RedisServer, server_lacks};

use super::{backend, locks};
use crate::{
    support::{connections_received, soon, until},
    timing::Lateness,
};

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

#[tokio::test]
async fn silent_sentinels_do_not_use_up_a_short_time_to_connect() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    let connect = || backend(&group).connect_timeout(Duration::from_millis(200)).connect();
    for silent in 0..2 {
        group.sentinel(silent).freeze();
        // A busy machine may use up that time itself, but not five times in a row.
        let mut connected = connect().await;
        for _ in 1..5 {
            if connected.is_err() {
                connected = connect().await;
            }
        }
        works(&Locks::new(connected.unwrap())).await;
    }
}

/// A port at which nobody listens.
const NOBODY: u16 = 1;

/// Points a Sentinel at another primary.
async fn point(group: &RedisSentinel, sentinel: usize, port: u16) {
    let (sentinel, name) = (group.sentinel(sentinel), group.master_name());
    sentinel.query::<()>(&["SENTINEL", "REMOVE", name]).await;
    let monitor = ["SENTINEL", "MONITOR", name, "127.0.0.1", &port.to_string(), "2"];
    sentinel.query::<()>(&monitor).await;
}

#[tokio::test]
async fn a_client_starts_although_the_first_sentinels_name_a_primary_that_is_gone() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    for misled in 0..2 {
        point(&group, misled, NOBODY).await;
        let connected = soon("a client", backend(&group).connect()).await.unwrap();
        works(&Locks::new(connected)).await;
    }
    point(&group, 2, NOBODY).await;
    let error = soon("an error", backend(&group).connect()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_client_starts_although_the_first_sentinel_names_a_server_that_refuses_it() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    let other = RedisServer::start_with(&["--requirepass", "another"]);
    point(&group, 0, other.port()).await;
    works(&locks(&group).await).await;
    for sentinel in 1..3 {
        point(&group, sentinel, other.port()).await;
    }
    let error = backend(&group).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
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
        let (moment, lateness) = (Instant::now(), Lateness::measure());
        let guard = locks.lock("after").acquire().await.unwrap();
        let (time, late) = (moment.elapsed(), lateness.so_far());
        assert!(time < Duration::from_secs(1) + late, "{time:?}, late by {late:?}");
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

/// `SENTINEL MONITOR` begins with the first epoch again, so that no number says which answer is newer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_pointed_at_another_primary_are_followed() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = locks(&group).await;
    works(&locks).await;
    let other = RedisServer::start();
    for sentinel in 0..3 {
        point(&group, sentinel, other.port()).await;
    }
    until_at(&locks, &other).await;
}

/// Completes when locks are at `server`.
async fn until_at(locks: &Locks, server: &RedisServer) {
    until("the old primary is left", || async {
        let guard = locks.lock("where").acquire().await.unwrap();
        let is_there: bool = server.query(&["EXISTS", "where"]).await;
        match guard.release().await {
            // The connection has changed in between, and the new primary does not know the hold.
            Err(LockError::Lost { .. }) if !is_there => {}
            released => released.unwrap(),
        }
        is_there
    })
    .await;
}

/// As operators do to replace a primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_know_no_primary_any_more_may_know_one_soon() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    let connected = backend(&group).connect().await.unwrap();
    let locks = Locks::builder(connected).retry_for(Duration::ZERO).build().unwrap();
    works(&locks).await;
    let (name, port) = (group.master_name(), group.server(0).port().to_string());
    for sentinel in 0..3 {
        group.sentinel(sentinel).query::<()>(&["SENTINEL", "REMOVE", name]).await;
    }
    let _: i64 = group.server(0).query(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until("an error of the Sentinels", || async {
        match locks.lock("any").acquire().await {
            Ok(guard) => {
                guard.release().await.unwrap();
                false
            }
            Err(error) => {
                let LockError::Backend(error) = error else { panic!("{error}") };
                assert!(error.is_retryable(), "{error}");
                error.to_string().contains(name)
            }
        }
    })
    .await;
    for sentinel in 0..3 {
        let monitor = ["SENTINEL", "MONITOR", name, "127.0.0.1", &port, "2"];
        group.sentinel(sentinel).query::<()>(&monitor).await;
    }
    works(&locks).await;
    // A name that was never known is an error of the configuration.
    let unknown = RedisBackend::sentinel(group.addresses(), "unknown");
    assert!(!unknown.connect().await.unwrap_err().is_retryable());
}

/// All Sentinels are asked when they may have been pointed at another primary. Many clients would
/// ask them for as long as one Sentinel is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_contradicts_the_others_has_them_asked_ever_more_rarely() {
    if server_lacks(Feature::SentinelDebug) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = locks(&group).await;
    works(&locks).await;
    followed(&group, 0).await;
    let other = RedisServer::start();
    point(&group, 0, other.port()).await;
    let rounds = soon("the rounds", rounds(&group, 1)).await;
    assert!(rounds[1] >= Duration::from_millis(900), "{rounds:?}");
    assert!(rounds[2] >= Duration::from_millis(1900), "{rounds:?}");
    works(&locks).await;
}

/// A Sentinel that has been set up again knows no others at first, also none that a client has
/// learned from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_is_set_up_again_is_no_majority() {
    if server_lacks(Feature::SentinelDebug) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let name = group.master_name();
    for sentinel in 0..3 {
        // They tell each other nothing any more, which otherwise takes them up to 2 s.
        let silence = ["SENTINEL", "DEBUG", "publish-period", "600000"];
        let _: redis::Value = group.sentinel(sentinel).query(&silence).await;
    }
    let first = group.sentinel(0);
    let connected = RedisBackend::sentinel([first.address()], name).connect().await.unwrap();
    let locks = Locks::new(connected);
    works(&locks).await;
    followed(&group, 0).await;
    let other = RedisServer::start();
    point(&group, 0, other.port()).await;
    // It is asked again and again whether it has left the old primary.
    soon("the rounds", rounds(&group, 0)).await;
    let guard = soon("a lock", locks.lock("here").acquire()).await.unwrap();
    assert!(group.server(0).query::<bool>(&["EXISTS", "here"]).await);
    guard.release().await.unwrap();
}

/// The pauses before the first times at which a Sentinel gets more connections. What comes shortly
/// after another is not counted.
async fn rounds(group: &RedisSentinel, sentinel: usize) -> [Duration; 3] {
    const TOGETHER: Duration = Duration::from_millis(500);
    // On one connection, because this counts connections.
    let client = redis::Client::open(format!("redis://{}", group.addresses()[sentinel])).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut count = async || {
        let mut info = redis::cmd("INFO");
        let stats: String = info.arg("stats").query_async(&mut connection).await.unwrap();
        connections_received(&stats)
    };
    let (mut last, mut before) = (Instant::now(), count().await);
    let mut pauses = [Duration::ZERO; 3];
    for pause in &mut pauses {
        // From the last time without the connections, so that no pause seems too short.
        let without = loop {
            let without = Instant::now();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = count().await;
            let is_new = now > std::mem::replace(&mut before, now);
            if is_new && last.elapsed() >= TOGETHER {
                break without;
            }
        };
        *pause = std::mem::replace(&mut last, without).elapsed();
    }
    pauses
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

/// A client that follows the first Sentinel, as a user who may only ask where the primary is.
async fn with_least_rights(group: &RedisSentinel, sentinels: usize) -> Locks {
    let rights = "on >pw &* -@all +hello +subscribe +unsubscribe +sentinel|get-master-addr-by-name";
    let mut command = vec!["ACL", "SETUSER", "follower"];
    command.extend(rights.split(' '));
    for sentinel in 0..sentinels {
        let _: String = group.sentinel(sentinel).query(&command).await;
    }
    let follower = backend(group).sentinel_credentials(Credentials::new("follower", "pw"));
    let locks = Locks::new(follower.connect().await.unwrap());
    works(&locks).await;
    followed(group, 0).await;
    locks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_at_a_sentinel_are_enough_for_a_failover() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).sentinels(1).start().await;
    let locks = with_least_rights(&group, 1).await;
    let new = group.failover().await;
    let (moment, lateness) = (Instant::now(), Lateness::measure());
    until_at(&locks, group.server(new)).await;
    let (time, late) = (moment.elapsed(), lateness.so_far());
    assert!(time < Duration::from_secs(1) + late, "{time:?}, late by {late:?}");
}

/// Its host may be down, perhaps together with the old primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_sentinel_does_not_hold_up_a_failover() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = with_least_rights(&group, 3).await;
    group.sentinel(2).freeze();
    let new = group.failover().await;
    let (moment, lateness) = (Instant::now(), Lateness::measure());
    until_at(&locks, group.server(new)).await;
    let (time, late) = (moment.elapsed(), lateness.so_far());
    assert!(time < Duration::from_millis(1500) + late, "{time:?}, late by {late:?}");
}

/// Without rights to the epochs, nothing says which of two answers is newer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_misled_sentinel_shuts_nobody_out_who_has_the_least_rights() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = with_least_rights(&group, 3).await;
    point(&group, 0, NOBODY).await;
    for _ in 0..5 {
        let _: i64 = group.server(0).query(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        works(&locks).await;
        // So long that the Sentinel that is followed has been asked.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// The old primary and one Sentinel may be cut off from the others, but not from the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_majority_counts_for_those_who_have_the_least_rights() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = with_least_rights(&group, 3).await;
    let other = RedisServer::start();
    for sentinel in 0..2 {
        point(&group, sentinel, other.port()).await;
    }
    until_at(&locks, &other).await;
}

/// The Sentinel that has named a primary is not asked first again once the others have named another
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_does_not_go_to_and_fro_between_two_primaries() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = RedisSentinel::builder().replicas(1).start().await;
    let locks = with_least_rights(&group, 3).await;
    let (primary, other) = (group.server(0), RedisServer::start());
    point(&group, 1, other.port()).await;
    // An attempt to connect fails, so that the second Sentinel is asked next.
    let set = async |maxmemory, policy| {
        let command = ["CONFIG", "SET", "maxmemory", maxmemory, "maxmemory-policy", policy];
        let _: String = primary.query(&command).await;
    };
    set("100mb", "allkeys-lru").await;
    let _: i64 = primary.query(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    // The client may have tried before, and may be at the other one already.
    if let Err(error) = soon("an answer", locks.lock("any").acquire()).await {
        assert!(error.to_string().contains("allkeys-lru"), "{error}");
    }
    set("0", "noeviction").await;

    until_at(&locks, primary).await;
    let received = async || {
        let stats: String = other.query(&["INFO", "stats"]).await;
        connections_received(&stats)
    };
    // Its connection for messages may be on its way to the other one.
    soon("a second without a connection to the other one", async {
        let (mut calm, mut before) = (0, received().await);
        while calm < 20 {
            let guard = locks.lock("any").acquire().await.unwrap();
            drop(guard.release().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
            // The count opens a connection of its own.
            let now = received().await;
            calm = if now == std::mem::replace(&mut before, now) + 1 { calm + 1 } else { 0 };
        }
    })
    .await;
}
