//! An address that has moved to another server, and servers that are down.

use std::time::{Duration, Instant};

use lockcore::{LockError, Locks};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::{Conditions, Feature, On, Proxy, RedisServer, server_lacks};
use tokio::task::JoinSet;

use crate::{
    errors::set_user,
    support::{connect, listened_to, locks, soon, until},
};

/// Existing connections stay where they are when the address moves, as behind a virtual address.
fn through(proxy: &Proxy) -> RedisBackendBuilder {
    RedisBackend::builder().url(proxy.url()).response_timeout(Duration::from_millis(300))
}

/// Makes `replica` a copy of `primary`.
async fn replicate(primary: &RedisServer, replica: &RedisServer) {
    let _: String = replica.query(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    until("the copy", || async {
        replica.query::<String>(&["INFO", "replication"]).await.contains("master_link_status:up")
    })
    .await;
}

#[tokio::test]
async fn a_demoted_server_is_left_for_its_successor() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.port()).await.unwrap();
    let backend = through(&proxy).connect().await.unwrap();
    let locks = Locks::builder(backend).lease(Duration::from_secs(6)).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    replicate(&old, &new).await;
    let mut waiting = tokio::spawn({
        let lock = locks.lock("waited-for");
        let other = connect(&old).await;
        let before = Locks::new(other).lock("waited-for").acquire().await.unwrap();
        std::mem::forget(before);
        async move { lock.acquire_timeout(Duration::from_secs(15)).await }
    });
    listened_to(&old, "waited-for").await;
    until("a copy", || async { new.query::<bool>(&["EXISTS", "waited-for"]).await }).await;

    let _: String = new.query(&["REPLICAOF", "NO", "ONE"]).await;
    let _: String = old.query(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    let start = Instant::now();
    proxy.redirect(new.port());
    let other = soon("a new lock", locks.lock("new").acquire()).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(new.query::<bool>(&["EXISTS", "new"]).await);
    // Longer than the lease.
    let lost = tokio::time::timeout(Duration::from_secs(7), guard.lost()).await;
    assert!(lost.is_err(), "renewed on the new primary");
    tokio::select! {
        ended = &mut waiting => panic!("the waiter ended: {ended:?}"),
        () = listened_to(&new, "waited-for") => {}
    }
    waiting.abort();
    guard.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_primary_that_is_demoted_for_a_moment_is_waited_for() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("held").acquire().await.unwrap();
    // No server listens there, so nothing is copied.
    let _: String = server.query(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let acquiring = tokio::spawn({
        let lock = locks.lock("new");
        async move { lock.acquire().await }
    });
    let error = locks.lock("other").try_acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_retryable()), "{error}");
    let _: String = server.query(&["REPLICAOF", "NO", "ONE"]).await;
    let start = Instant::now();
    soon("the new lock", acquiring).await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn wake_ups_follow_the_commands_to_another_server() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    for right in ["+info", "-info"] {
        let (old, new) = (RedisServer::start(), RedisServer::start());
        for server in [&old, &new] {
            set_user(server, "worker", &format!("~* &* +@all {right}")).await;
        }
        let proxy = Proxy::start(old.port()).await.unwrap();
        let url = proxy.url().replace("redis://", "redis://worker:pw@");
        let waiter = Locks::new(through(&proxy).url(url).connect().await.unwrap());
        let _before = locks(&old).await.lock("moved").acquire().await.unwrap();
        let locks_there = locks(&new).await;
        let there = locks_there.lock("moved").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = waiter.lock("moved");
            async move { lock.acquire().await }
        });
        listened_to(&old, "moved").await;

        // The connection for messages stays open.
        proxy.redirect(new.port());
        proxy.freeze(On::Commands);
        let error = waiter.lock("other").try_acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Backend(_)), "{error}");
        waiter.lock("other").acquire().await.unwrap().release().await.unwrap();
        let moved = Instant::now();
        listened_to(&new, "moved").await;
        assert!(moved.elapsed() < Duration::from_secs(2), "{right}: {:?}", moved.elapsed());
        let released = Instant::now();
        there.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
        assert!(released.elapsed() < Duration::from_secs(1), "{right}: {:?}", released.elapsed());
    }
}

#[tokio::test]
async fn commands_follow_the_wake_ups_to_another_server() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.port()).await.unwrap();
    let waiter = Locks::new(through(&proxy).connect().await.unwrap());
    let _before = locks(&old).await.lock("moved").acquire().await.unwrap();
    let locks_there = locks(&new).await;
    let there = locks_there.lock("moved").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("moved");
        async move { lock.acquire().await }
    });
    listened_to(&old, "moved").await;

    // The connection for commands stays open.
    proxy.redirect(new.port());
    let _: i64 = old.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    listened_to(&new, "moved").await;
    let _held = waiter.lock("other").acquire().await.unwrap();
    assert!(new.query::<bool>(&["EXISTS", "other"]).await, "commands go there, too");
    let released = Instant::now();
    there.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(1), "{:?}", released.elapsed());
}

#[tokio::test]
async fn two_thousand_waiters_make_few_attempts_to_connect() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = through(&proxy).connect().await.unwrap();
    let locks = Locks::builder(backend).retry_for(Duration::from_secs(60)).build().unwrap();
    let _held = connect_and_hold(&server).await;
    let mut waiters = JoinSet::new();
    for number in 0..2_000 {
        let lock = locks.lock(format!("waited-for:{}", number % 400));
        waiters.spawn(async move { lock.acquire().await });
    }
    until("the subscriptions", || async { server.channels().await.len() == 400 }).await;

    proxy.set(Conditions { refuse: true, ..Conditions::default() });
    proxy.reset();
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let refused = proxy.refused();
    let most = 20 * start.elapsed().as_secs() + 20;
    assert!((4..=most).contains(&refused), "{refused} attempts in {:?}", start.elapsed());

    let accepted = proxy.accepted();
    proxy.heal();
    let start = Instant::now();
    until("the subscriptions", || async { server.channels().await.len() == 400 }).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(proxy.accepted() <= accepted + 2, "one connection for commands, one for messages");
    assert!(waiters.try_join_next().is_none(), "nobody has failed");
}

/// Acquires the locks that the others wait for.
async fn connect_and_hold(server: &RedisServer) -> Vec<lockcore::LockGuard> {
    let locks = locks(server).await;
    let mut held = Vec::new();
    for number in 0..400 {
        held.push(locks.lock(format!("waited-for:{number}")).acquire().await.unwrap());
    }
    held
}
