//! Waiting without polling.

use std::time::{Duration, Instant};

use lockcore::{LockError, Locks};
use lockcore_testkit::RedisServer;

use crate::{
    support::{
        assert_nothing_left, connect, counted, listened_to, load_scripts, locks, soon, until,
    },
    timing::mostly_within,
};

/// The writes of a foreign process when it takes the lock.
async fn hold_as_foreigner(server: &RedisServer, name: &str, lease_ms: &str) {
    let script =
        "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
    let owner = "0cf6ba45-1c7f-4d2d-8bd6-5a4f4f2b9b4a:71";
    let set: i64 = server.query(&["EVAL", script, "1", name, owner, lease_ms]).await;
    assert_eq!(set, 1);
}

#[tokio::test]
async fn a_waiter_enters_at_once_when_a_lease_ends_that_nobody_released() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let lease = Duration::from_millis(400);
    let ends = async || {
        let begun = Instant::now();
        hold_as_foreigner(&server, "abandoned", "400").await;
        let start = Instant::now();
        let guard = soon("the end of the lease", locks.lock("abandoned").acquire()).await.unwrap();
        // Redis ends a lease up to a millisecond early.
        let waited = begun.elapsed() + Duration::from_millis(1);
        assert!(waited >= lease, "not before its end: {waited:?}");
        let late = start.elapsed().saturating_sub(lease);
        guard.release().await.unwrap();
        late
    };
    mostly_within(Duration::from_millis(100), "the waiter after the end of the lease", ends).await;
}

#[tokio::test]
async fn a_release_wakes_the_waiter_of_another_client_with_one_message() {
    let server = RedisServer::start();
    let (holder, waiter) = (counted(&server).await, counted(&server).await);
    load_scripts(&holder).await;
    let guard = holder.lock("handed").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("handed");
        async move { lock.acquire().await }
    });
    listened_to(&server, "handed").await;
    let before = server.client_commands().await;
    guard.release().await.unwrap();
    let guard = soon("the wake-up", waiting).await.unwrap().unwrap();
    let spent = server.client_commands().await - before;
    assert!(
        spent <= 3,
        "a release, an acquire and the end of the subscription, not {spent} commands"
    );
    guard.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn fifty_waiters_of_four_seconds_cost_eight_commands_at_most() {
    let server = RedisServer::start();
    let (holder, waiters) = (counted(&server).await, counted(&server).await);
    let guard = holder.lock("popular").acquire().await.unwrap();
    let before = server.client_commands().await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let lock = waiters.lock("popular");
            tokio::spawn(async move { lock.acquire_timeout(Duration::from_secs(4)).await })
        })
        .collect();
    for task in tasks {
        let error = soon("the time-out", task).await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    }
    until("the last unsubscription", || async { server.channels().await.is_empty() }).await;
    let spent = server.client_commands().await - before;
    assert!(spent <= 8, "{spent} commands");
    guard.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn waiters_of_one_client_enter_in_the_order_in_which_they_came() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("queue").acquire().await.unwrap();
    let (entered, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..10 {
        let (lock, entered) = (locks.lock("queue"), entered.clone());
        let mut acquire = Box::pin(async move {
            let guard = lock.acquire().await.unwrap();
            entered.send(number).unwrap();
            guard.release().await.unwrap();
        });
        // Polled once, it is in the queue.
        assert!(lockcore_testkit::poll_times(1, acquire.as_mut()).await.is_none());
        tokio::spawn(acquire);
    }
    guard.release().await.unwrap();
    for number in 0..10 {
        assert_eq!(soon("the next in the queue", order.recv()).await, Some(number));
    }
}

#[tokio::test]
async fn a_waiter_whose_connection_for_wake_ups_was_killed_enters_after_the_release() {
    let server = RedisServer::start();
    let (holder, waiter) = (locks(&server).await, locks(&server).await);
    for round in 0..5 {
        let guard = holder.lock("cut").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = waiter.lock("cut");
            async move { lock.acquire().await }
        });
        listened_to(&server, "cut").await;
        let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 1, "round {round}: one connection for wake-ups");
        // Released while nobody can hear it.
        let released = Instant::now();
        guard.release().await.unwrap();
        let guard = soon("the waiter", waiting).await.unwrap().unwrap();
        let gap = released.elapsed();
        assert!(gap < Duration::from_millis(1500), "round {round}: {gap:?}");
        guard.release().await.unwrap();
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn latches_and_conditions_are_heard_of_after_the_connection_for_wake_ups_was_killed() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let (latch, lock) = (one.latch("latch"), one.lock("lock"));
    for round in 0..5 {
        latch.set_count(1).await.unwrap();
        let opened = tokio::spawn({
            let latch = other.latch("latch");
            async move { latch.wait().await.map(|()| Instant::now()) }
        });
        let notified = tokio::spawn({
            let lock = other.lock("lock");
            let guard = lock.acquire().await.unwrap();
            async move {
                drop(lock.condition("condition").wait(guard).await?);
                Ok(Instant::now())
            }
        });
        let guard = lock.acquire().await.unwrap();
        until("two subscriptions", || async { server.channels().await.len() == 2 }).await;
        let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert!(killed >= 1, "round {round}: a connection for wake-ups");
        // At this time nobody can hear it.
        let sent = Instant::now();
        latch.count_down().await.unwrap();
        assert!(lock.condition("condition").notify_one(&guard).await.unwrap());
        guard.release().await.unwrap();
        for waiter in [opened, notified] {
            let gap = soon("the waiter", waiter).await.unwrap().unwrap() - sent;
            assert!(gap < Duration::from_millis(1500), "round {round}: {gap:?}");
        }
    }
}

#[tokio::test]
async fn clones_of_one_backend_share_one_subscription_and_one_connection() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let holder = locks(&server).await;
    let guard = holder.lock("shared").acquire().await.unwrap();
    let clients: Vec<Locks> = (0..4).map(|_| Locks::new(backend.clone())).collect();
    let tasks: Vec<_> = clients
        .iter()
        .map(|locks| {
            let lock = locks.lock("shared");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    listened_to(&server, "shared").await;
    let subscribers: Vec<(String, i64)> =
        server.query(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{shared}"]).await;
    assert_eq!(subscribers[0].1, 1);
    guard.release().await.unwrap();
    for task in tasks {
        soon("each client's turn", task).await.unwrap();
    }
    assert_nothing_left(&server).await;
}
