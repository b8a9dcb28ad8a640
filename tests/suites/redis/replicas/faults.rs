//! Faults during the wait of a hold for its replicas.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::{DeploymentKind, RedisBackend};
use lockcore_testkit::{Feature, On, Proxy, RedisSentinel, RedisServer, server_lacks};

use super::{ENOUGH, Group, MS, is_outcome_unknown, replica_of, too_few};
use crate::{
    command_proxy::{CommandProxy, Fate},
    errors::{LEAST_RIGHTS, connect_as, set_user},
    support::{LONG, assert_nothing_left, soon, until},
};

async fn has_lock(server: &RedisServer) -> bool {
    server.query(&["EXISTS", "a"]).await
}

#[tokio::test]
async fn dropped_in_the_middle_of_a_wait_it_leaves_nothing() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    group.replicas[0].freeze();
    let acquiring = tokio::spawn(locks.lock("a").acquire());
    group.someone_waits().await;
    assert!(has_lock(&group.primary).await, "granted, not acknowledged");
    acquiring.abort();
    until("the release", || async { !has_lock(&group.primary).await }).await;
    assert_nothing_left(&group.primary).await;
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_middle_of_a_wait_leaves_nothing() {
    let group = Group::start(1).await;
    let proxy = Proxy::start(group.primary.port()).await.unwrap();
    let backend = RedisBackend::builder().url(proxy.url()).replicas(1, ENOUGH);
    let locks = Locks::new(backend.connect().await.unwrap());
    group.replicas[0].freeze();
    let acquiring = tokio::spawn(locks.lock("a").try_acquire());
    group.someone_waits().await;
    proxy.reset();
    let error = soon("the error", acquiring).await.unwrap().unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert_eq!(failed.kind(), BackendErrorKind::Connection, "{error}");
    assert!(failed.is_outcome_unknown(), "{error}");
    assert_nothing_left(&group.primary).await;
    group.replicas[0].thaw();
    let guard = soon("the lock", locks.lock("a").acquire()).await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
}

/// `WAIT` on another connection would count the writes of that connection.
#[tokio::test]
async fn a_connection_that_breaks_between_the_grant_and_the_wait_leaves_nothing() {
    let group = Group::start(1).await;
    let proxy = CommandProxy::start(&group.primary, |parts| match parts[0].as_str() {
        "WAIT" if parts[1] == "1" => Fate::Cut,
        _ => Fate::Pass,
    });
    let backend = RedisBackend::builder().url(proxy.await.url()).replicas(1, ENOUGH);
    let locks = Locks::new(backend.connect().await.unwrap());
    let waits = group.waits().await;
    let error = soon("the error", locks.lock("a").try_acquire()).await.unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert_eq!(failed.kind(), BackendErrorKind::Connection, "{error}");
    assert!(failed.is_outcome_unknown() && failed.is_retryable(), "{error}");
    assert_nothing_left(&group.primary).await;
    assert_eq!(group.waits().await, waits, "no other connection was asked");
}

#[tokio::test]
async fn a_service_without_wait_grants_nothing_that_replicas_are_asked_for() {
    let group = Group::start(1).await;
    let proxy = CommandProxy::start(&group.primary, |parts| match parts[0].as_str() {
        "WAIT" => Fate::Refuse("ERR unknown command WAIT"),
        _ => Fate::Pass,
    });
    let proxy = proxy.await;
    let asking = RedisBackend::builder().url(proxy.url()).replicas(1, ENOUGH).connect();
    let error = asking.await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");

    let locks = Locks::new(RedisBackend::connect(proxy.url()).await.unwrap());
    let refused = proxy.hits();
    let acquiring = locks.lock("a").replicas(1, ENOUGH).acquire();
    let error = soon("the error", acquiring).await.unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert!(!failed.is_retryable() && !failed.is_outcome_unknown(), "{error}");
    assert_eq!(proxy.hits(), refused + 1, "it was not tried again");
    let guard = locks.lock("a").try_acquire().await.unwrap().expect("it was released");
    assert_eq!(guard.replicas(), None);
}

#[tokio::test]
async fn a_server_that_is_demoted_in_the_middle_of_a_wait_grants_nothing() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    group.replicas[0].freeze();
    let acquiring = tokio::spawn(locks.lock("a").try_acquire());
    group.someone_waits().await;
    // No server listens there, so nothing is copied.
    let _: String = group.primary.query(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = soon("the error", acquiring).await.unwrap().unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert!(failed.is_retryable(), "{error}");
    let _: String = group.primary.query(&["REPLICAOF", "NO", "ONE"]).await;
    assert_nothing_left(&group.primary).await;
}

/// New connections lead to the successor, and existing ones stay where they are.
#[tokio::test]
async fn acquisitions_do_not_wait_at_another_server_than_the_one_of_the_commands() {
    let (old, new) = (Group::start(1).await, Group::start(1).await);
    let proxy = Proxy::start(old.primary.port()).await.unwrap();
    let locks = Locks::new(RedisBackend::connect(proxy.url()).await.unwrap());
    let before = locks.lock("before").acquire().await.unwrap();
    proxy.redirect(new.primary.port());
    let asking = locks.lock("a").replicas(1, ENOUGH);
    let guard = soon("the lock", asking.acquire()).await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
    assert!(has_lock(&new.primary).await);
    let other = locks.lock("b").acquire().await.unwrap();
    assert!(new.primary.query::<bool>(&["EXISTS", "b"]).await, "all connections have moved");
    drop((before, other));
}

#[tokio::test]
async fn a_replica_that_joins_counts_once_it_has_acknowledged() {
    let mut group = Group::start(0).await;
    let locks = group.locks(1, 50 * MS).await;
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(too_few(&error).contains("0 of the 1 replicas"), "{error}");
    group.replicas.push(replica_of(&group.primary));
    let guard = soon("the lock", locks.lock("a").acquire()).await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
    assert!(has_lock(&group.replicas[0]).await);
}

#[tokio::test]
async fn a_user_without_the_right_to_wait_is_told_so() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let group = Group::start(1).await;
    let server = &group.primary;
    set_user(server, "worker", LEAST_RIGHTS).await;
    let locks = Locks::new(connect_as(server, "worker").await.unwrap());
    let error = locks.lock("locks:a").replicas(1, 50 * MS).acquire().await.unwrap_err();
    let LockError::Backend(failed) = &error else { panic!("{error}") };
    assert_eq!(failed.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("WAIT"), "{error}");
    assert!(!server.query::<bool>(&["EXISTS", "locks:a"]).await, "it was released");
    drop(locks);

    set_user(server, "worker", &format!("{LEAST_RIGHTS} +wait")).await;
    let locks = Locks::new(connect_as(server, "worker").await.unwrap());
    let acquiring = locks.lock("locks:a").replicas(1, ENOUGH).acquire();
    assert_eq!(soon("the lock", acquiring).await.unwrap().replicas(), Some(1));
}

/// All replicas have the hold, so whichever is promoted has it.
#[tokio::test]
async fn a_hold_that_all_replicas_have_survives_a_failover() {
    let mut group = RedisSentinel::start().await;
    let backend = RedisBackend::sentinel(group.addresses(), group.master_name());
    let backend = backend.replicas(2, ENOUGH).connect().await.unwrap();
    assert_eq!(backend.info().deployment, DeploymentKind::Sentinel);
    let locks = Locks::new(backend);
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(soon("a lock", locks.lock(format!("a:{number}")).acquire()).await.unwrap());
    }
    let primary = group.primary().await;
    group.server_mut(primary).kill();
    let primary = group.primary().await;
    for guard in guards {
        assert_eq!(guard.replicas(), Some(2));
        let exists: bool = group.server(primary).query(&["EXISTS", guard.name()]).await;
        assert!(exists, "{}", guard.name());
        soon("the release", guard.release()).await.unwrap();
    }
    let error = locks.lock("b").acquire_timeout(4 * ENOUGH).await.unwrap_err();
    assert!(too_few(&error).contains("1 of the 2 replicas"), "one is left: {error}");
    let lock = locks.lock("b").replicas(1, ENOUGH);
    assert_eq!(lock.acquire_timeout(LONG).await.unwrap().replicas(), Some(1));
}

/// One replica has the hold, and not its release. It is promoted.
#[tokio::test]
async fn a_hold_that_too_few_replicas_have_does_not_come_back_with_a_failover() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    let backend = RedisBackend::sentinel(group.addresses(), group.master_name());
    let locks = Locks::builder(backend.replicas(2, ENOUGH).connect().await.unwrap());
    let locks = locks.lease(60 * ENOUGH).build().unwrap();
    let acquiring = tokio::spawn(locks.lock("a").try_acquire());
    until("the hold at the replica", || has_lock(group.server(1))).await;
    // Data that was sent would be read otherwise.
    group.server(1).freeze();
    let _: u32 = group.server(0).query(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let error = soon("the error", acquiring).await.unwrap().unwrap_err();
    assert!(too_few(&error).contains("of the 2 replicas"), "{error}");
    assert!(is_outcome_unknown(&error), "a failover may bring it back: {error}");
    assert!(!has_lock(group.server(0)).await, "it was released");
    group.server_mut(0).kill();
    group.server(1).thaw();
    assert_eq!(group.primary().await, 1);
    until("the release there", || async { !has_lock(group.server(1)).await }).await;
}

#[tokio::test]
async fn a_runtime_that_ends_in_the_middle_of_a_wait_leaves_nobody_waiting() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    group.replicas[0].freeze();
    // The connection belongs to another runtime, which ends while this one waits.
    let (lock, ended) = tokio::task::spawn_blocking({
        let locks = locks.clone();
        move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let lock = runtime.block_on(async {
                let lock = locks.lock("a").replicas(1, MS);
                let _ = lock.try_acquire().await;
                lock
            });
            (lock, runtime)
        }
    })
    .await
    .unwrap();
    let waiting = tokio::spawn(lock.replicas(1, ENOUGH).try_acquire());
    group.someone_waits().await;
    ended.shutdown_background();
    let error = soon("the error", waiting).await.unwrap().unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_retryable()), "{error}");
    assert_nothing_left(&group.primary).await;
}

#[tokio::test]
async fn those_who_wait_when_the_server_goes_bear_the_outage_together() {
    let mut group = Group::start(1).await;
    let backend = group.backend().connect().await.unwrap();
    let locks = Locks::builder(backend).retry_for(Duration::from_secs(1)).build().unwrap();
    let lock = locks.lock("a").replicas(1, 100 * MS);
    lock.acquire().await.unwrap().release().await.unwrap();
    group.primary.kill();
    let start = Instant::now();
    let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(lock.acquire())).collect();
    for waiter in waiters {
        soon("the error", waiter).await.unwrap().unwrap_err();
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_connection_without_answers_is_replaced_while_an_acquisition_waits() {
    let group = Group::start(1).await;
    let proxy = Proxy::start(group.primary.port()).await.unwrap();
    let backend = RedisBackend::builder().url(proxy.url()).replicas(1, 100 * MS);
    let locks = Locks::new(backend.connect().await.unwrap());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    // Only existing connections.
    proxy.freeze(On::All);
    let start = Instant::now();
    let guard = soon("the lock", locks.lock("a").acquire()).await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}
