//! Failovers, with waiters and renewed holds.

use std::time::{Duration, Instant};

use lockcore::{LockError, LockGuard, LossReason, Owner};
use lockcore_testkit::{RedisSentinel, RedisServer};
use tokio::task::JoinHandle;

use super::{Worker, backend, builder, locks};
use crate::{
    support::{listened_to, soon, until},
    timing::Lateness,
};

/// The time limit for work to continue once all Sentinels name the new primary.
const AFTER_A_CRASH: Duration = Duration::from_secs(2);
const AFTER_AN_ORDER: Duration = Duration::from_millis(200);
/// Longer than a failover takes.
const LONG_LEASE: Duration = Duration::from_secs(30);

/// Holds are renewed three times a lease.
const RENEWAL: Duration = Duration::from_secs(5);

async fn has(server: &RedisServer, name: &str) -> bool {
    server.query(&["EXISTS", name]).await
}

/// Waits until all replicas have what the primary has.
async fn replicated(group: &RedisSentinel, name: &str) {
    for replica in group.replicas().await {
        until("the copy", || has(group.server(replica), name)).await;
    }
}

/// Releases a lock that somebody waits for on the same server.
async fn hand_over(held: LockGuard, waiting: JoinHandle<Result<LockGuard, LockError>>) {
    let token = held.token();
    let released = Instant::now();
    held.release().await.unwrap();
    let woken = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(released.elapsed() < Duration::from_secs(1), "{:?}", released.elapsed());
    assert!(woken.token() > token, "{:?} after {token:?}", woken.token());
    woken.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_at_once_after_a_failover_by_hand() {
    let group = RedisSentinel::start().await;
    let (one, other) = (locks(&group).await, locks(&group).await);
    let short = builder(&group).await.lease(Duration::from_secs(2)).build().unwrap();
    let renewed = short.lock("renewed").acquire().await.unwrap();
    let held = one.lock("waited-for").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = other.lock("waited-for");
        async move { lock.acquire().await }
    });
    listened_to(group.server(0), "waited-for").await;
    let worker = Worker::start(&group).await;
    replicated(&group, "waited-for").await;
    replicated(&group, "renewed").await;

    let new = group.server(group.failover().await);
    let (moment, lateness) = (Instant::now(), Lateness::measure());
    listened_to(new, "waited-for").await;
    let (listening, late) = (moment.elapsed(), lateness.so_far());
    assert!(listening < AFTER_AN_ORDER + late, "{listening:?}, late by {late:?}");
    let pause = worker.stop_after(moment, new).await;
    let late = lateness.so_far();
    assert!(pause < AFTER_AN_ORDER + late, "{pause:?}, late by {late:?}");
    println!("by hand: waiters listen after {listening:?}, work goes on after {pause:?}");

    hand_over(held, waiting).await;
    // Longer than the lease.
    let lost = tokio::time::timeout(Duration::from_millis(2500), renewed.lost()).await;
    assert!(lost.is_err() && has(new, "renewed").await, "renewed on the new primary");
    renewed.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lock_goes_on_after_a_failover_by_hand() {
    let group = RedisSentinel::start().await;
    let client = builder(&group).await.lease(LONG_LEASE).build().unwrap();
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        // The old primary answers the last releases, and the new one does not know them.
        while let Ok(guard) = client.lock("busy").acquire().await {
            let _ = guard.release().await;
            if granted.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    group.failover().await;
    let moment = Instant::now();
    let mut after = 0;
    while after < 100 {
        let granted = soon("a grant", grants.recv()).await.unwrap();
        after += u32::from(granted > moment);
    }
    assert!(moment.elapsed() < AFTER_A_CRASH, "{:?}", moment.elapsed());
}

/// Makes the primary of a group fail, with a worker and a hold, and tests the new one.
async fn primary_fails(group: &mut RedisSentinel, fail: impl Fn(&mut RedisServer)) {
    let client = builder(group).await.lease(LONG_LEASE).build().unwrap();
    let held = client.lock("held").acquire().await.unwrap();
    let other = locks(group).await;
    let waiting = tokio::spawn({
        let lock = other.lock("held");
        async move { lock.acquire().await }
    });
    listened_to(group.server(0), "held").await;
    let worker = Worker::start(group).await;
    replicated(group, "held").await;

    let failed = Instant::now();
    fail(group.server_mut(0));
    let new = group.server(group.primary().await);
    let moment = Instant::now();
    listened_to(new, "held").await;
    let listening = moment.elapsed();
    assert!(listening < AFTER_A_CRASH, "{listening:?}");
    let pause = worker.stop_after(moment, new).await;
    assert!(pause < AFTER_A_CRASH, "{pause:?}");
    let failover = moment - failed;
    println!(
        "failed: a new primary after {failover:?}, then waiters listen after {listening:?}, and \
         work goes on after {pause:?}"
    );

    assert!(held.is_held(), "it was copied");
    hand_over(held, waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_after_the_primary_was_killed() {
    let mut group = RedisSentinel::start().await;
    primary_fails(&mut group, RedisServer::kill).await;
    group.server_mut(0).restart();
    assert!(group.replicas().await.contains(&0), "the old primary is a replica");
    locks(&group).await.lock("after").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_after_the_primary_froze_and_when_it_is_back() {
    let mut group = RedisSentinel::start().await;
    primary_fails(&mut group, |primary| primary.freeze()).await;
    let new = group.primary().await;
    let worker = Worker::start(&group).await;
    group.server(0).thaw();
    let (back, lateness) = (Instant::now(), Lateness::measure());
    assert!(group.replicas().await.contains(&0), "the old primary is a replica");
    let pause = worker.stop_after(back, group.server(new)).await;
    let late = lateness.so_far();
    assert!(pause < AFTER_AN_ORDER + late, "{pause:?}, late by {late:?}");
    let guard = locks(&group).await.lock("after").acquire().await.unwrap();
    assert!(has(group.server(new), "after").await);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_of_a_lock_that_no_replica_had_is_told() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    let client = builder(&group).await.lease(3 * RENEWAL).build().unwrap();
    let copied = client.lock("copied").acquire().await.unwrap();
    replicated(&group, "copied").await;
    // Data that was sent would be read otherwise.
    group.server(1).freeze();
    let _: u32 = group.server(0).query(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let lost = client.lock("lost").acquire().await.unwrap();
    group.server_mut(0).kill();
    group.server(1).thaw();
    assert_eq!(group.primary().await, 1);
    let moment = Instant::now();

    // Another client may have it before the holder is told: its token is greater.
    let other = locks(&group).await;
    let newer = soon("the lost lock", other.lock("lost").acquire()).await.unwrap();
    assert!(newer.token() > lost.token());
    assert_eq!(soon("the loss", lost.lost()).await, LossReason::Gone);
    assert!(moment.elapsed() < RENEWAL + AFTER_A_CRASH, "{:?}", moment.elapsed());
    assert!(copied.is_held());
    copied.release().await.unwrap();
    newer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_release_no_replica_had_is_free_after_the_failover() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    let client = builder(&group).await.lease(LONG_LEASE).build().unwrap();
    let fair = client.fair_lock("fair").acquire().await.unwrap();
    let owner = Owner::named("me");
    let named = client.lock("named").owned_by(&owner).acquire().await.unwrap();
    let nested = client.lock("named").owned_by(&owner).acquire().await.unwrap();
    let shared = client.rw_lock("shared").read().acquire().await.unwrap();
    let permit = client.semaphore("permits", 1).acquire().await.unwrap();
    let kept = client.lock("kept").acquire().await.unwrap();
    replicated(&group, "kept").await;
    // Data that was sent would be read otherwise.
    group.server(1).freeze();
    let _: u32 = group.server(0).query(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    fair.release().await.unwrap();
    nested.release().await.unwrap();
    named.release().await.unwrap();
    shared.release().await.unwrap();
    permit.release().await.unwrap();
    group.server_mut(0).kill();
    group.server(1).thaw();
    assert_eq!(group.primary().await, 1);
    let moment = Instant::now();

    let other = locks(&group).await;
    let (lock, named) = (other.fair_lock("fair"), other.lock("named"));
    let (rw, semaphore) = (other.rw_lock("shared"), other.semaphore("permits", 1));
    let all = async {
        drop(lock.acquire().await.unwrap());
        drop(named.acquire().await.unwrap());
        drop(rw.write().acquire().await.unwrap());
        drop(semaphore.acquire().await.unwrap());
    };
    soon("the released locks", all).await;
    assert!(moment.elapsed() < AFTER_A_CRASH, "{:?}", moment.elapsed());
    assert!(kept.is_held() && has(group.server(1), "kept").await);
    kept.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_while_there_is_no_primary_is_told_and_may_try_again() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    group.server_mut(0).kill();
    let backend = || backend(&group).connect_timeout(Duration::from_millis(500));
    let error = backend().connect().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    until("a connection", || async { backend().connect().await.is_ok() }).await;
}
