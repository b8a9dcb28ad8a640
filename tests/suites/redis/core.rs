//! The core over Redis, in the corners of `suites/core` that need a real server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{Lock, LockError, Locks, Owner};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Feature, Op, RedisServer, server_lacks};
use tokio::{sync::Barrier, task::JoinSet};

use crate::support::{assert_nothing_left, connect, locks, soon};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The rounds of a test whose defect shows only now and then.
const ROUNDS: usize = 100;

/// Counts how often `next` is refused right after `refusal`, which holds nothing once it returns.
async fn refused_after(refusal: impl AsyncFn(), next: &Lock) -> usize {
    let mut refused = 0;
    for _ in 0..ROUNDS {
        refusal().await;
        match next.try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.unwrap(),
            None => refused += 1,
        }
    }
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_at_a_multi_lock_that_is_refused_holds_none_when_it_answers() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let held = other.lock("b").acquire().await.unwrap();
    let multi = one.multi_lock(["a", "b", "c"]);
    let refusal = async || assert!(multi.try_acquire().await.unwrap().is_none());
    let refused = soon("all rounds", refused_after(refusal, &other.lock("a"))).await;
    assert_eq!(refused, 0, "of {ROUNDS} attempts at one of the names that were not held");
    let refused = soon("all rounds", refused_after(refusal, &other.lock("c"))).await;
    assert_eq!(refused, 0, "of {ROUNDS} attempts at one of the names that were not held");
    held.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_whose_time_is_up_holds_none_when_it_answers() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let held = other.lock("b").acquire().await.unwrap();
    let multi = one.multi_lock(["a", "b", "c"]);
    let refusal = async || {
        let late = multi.acquire_timeout(3 * MS).await;
        assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
    };
    let refused = soon("all rounds", refused_after(refusal, &other.lock("a"))).await;
    assert_eq!(refused, 0, "of {ROUNDS} attempts at one of the names that were not held");
    held.release().await.unwrap();
    assert_nothing_left(&server).await;
}

/// A fair waiter has a place in the queue, and a waiting writer blocks new readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_time_is_up_has_left_when_it_is_told() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let reading = other.rw_lock("rw").read().acquire().await.unwrap();
    let writer = one.rw_lock("rw").write();
    let refusal = async || {
        let late = writer.acquire_timeout(3 * MS).await;
        assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
    };
    let next = other.rw_lock("rw").read();
    let refused = soon("all rounds", refused_after(refusal, &next)).await;
    assert_eq!(refused, 0, "of {ROUNDS} readers, by a writer that has left");
    reading.release().await.unwrap();

    let (held, next) = (other.lock("fair"), other.fair_lock("fair"));
    let refusal = async || {
        let held = held.acquire().await.unwrap();
        let late = one.fair_lock("fair").acquire_timeout(3 * MS).await;
        assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
        held.release().await.unwrap();
    };
    let refused = soon("all rounds", refused_after(refusal, &next)).await;
    assert_eq!(refused, 0, "of {ROUNDS} attempts, by a waiter that has left");
    assert_nothing_left(&server).await;
}

/// Ten simultaneous attempts, repeatedly, in one client or in two.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_ten_attempts_at_a_free_multi_lock_one_wins() {
    let server = RedisServer::start();
    let clients = [locks(&server).await, locks(&server).await];
    for used in [1, 2] {
        for round in 0..ROUNDS {
            let (start, mut attempts) = (Arc::new(Barrier::new(10)), JoinSet::new());
            for number in 0..10 {
                let multi = clients[number % used].multi_lock(["a", "b", "c", "d"]);
                let start = start.clone();
                attempts.spawn(async move {
                    start.wait().await;
                    multi.try_acquire().await.unwrap()
                });
            }
            let tried = soon("ten attempts", attempts.join_all()).await;
            let mut winners: Vec<_> = tried.into_iter().flatten().collect();
            let count = winners.len();
            assert_eq!(count, 1, "winners in round {round}, of {used} clients: all was free");
            winners.remove(0).release().await.unwrap();
        }
    }
    assert_nothing_left(&server).await;
}

/// The server takes no writes for longer than the lease, so its grant comes too late.
#[tokio::test]
async fn an_acquisition_whose_grant_came_too_late_asks_again() {
    if server_lacks(Feature::PauseModes) {
        return;
    }
    const LEASE: Duration = Duration::from_secs(3);
    let server = RedisServer::start();
    let backend = RedisBackend::builder().url(server.url()).response_timeout(10 * SECOND);
    let locks = Locks::new(backend.connect().await.unwrap());
    let named = locks.lock("named").owned_by(&Owner::named("job-17"));
    for lock in [locks.lock("plain"), locks.fair_lock("fair"), named] {
        lock.acquire().await.unwrap().release().await.unwrap();
        let _: String = server.query(&["CLIENT", "PAUSE", "4000", "WRITE"]).await;
        let guard = soon("the lock", lock.lease(LEASE).acquire()).await;
        let guard = guard.expect("nothing was lost: it was never held");
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
    assert_nothing_left(&server).await;
}

/// A client with faults. One of its waiters has subscribed once it has asked twice.
async fn faulty(server: &RedisServer) -> (Locks, Faults) {
    let backend = Faulty::new(connect(server).await);
    let faults = backend.faults();
    (Locks::new(backend), faults)
}

/// The tolerance for a waiter behind a hold whose lease ends: timers, and a busy machine.
const TOO_LONG: Duration = Duration::from_secs(2);

const SHORT: Duration = Duration::from_millis(300);

/// A reader that asks while a writer waits is told how long the writer's place is kept. Then the
/// writer is granted a shorter lease, and dies.
#[tokio::test]
async fn a_reader_behind_a_writer_that_dies_enters_at_the_end_of_its_short_lease() {
    let server = RedisServer::start();
    let one = locks(&server).await;
    let ((late, faults), (other, others)) = (faulty(&server).await, faulty(&server).await);
    let reading = one.rw_lock("a").read().acquire().await.unwrap();
    let writer = tokio::spawn(late.rw_lock("a").write().lease(SHORT).acquire());
    soon("the writer's second request", faults.reached(Op::Acquire, 2)).await;
    let reader = tokio::spawn(other.rw_lock("a").read().acquire());
    soon("the reader's second request", others.reached(Op::Acquire, 2)).await;
    // The reader asks before the writer does.
    faults.next(Op::Acquire, Fault::Delay(100 * MS));
    reading.release().await.unwrap();
    let writing = soon("the writer", writer).await.unwrap().unwrap();
    let granted = Instant::now();
    let reading = soon("the reader", reader).await.unwrap().unwrap();
    let waited = granted.elapsed();
    assert!(waited < SHORT + TOO_LONG, "it entered after {waited:?}");
    reading.release().await.unwrap();
    drop(writing);
    assert_nothing_left(&server).await;
}

/// The waiters know the long lease of a named owner. The owner takes over its own hold with a short
/// lease, and dies.
#[tokio::test]
async fn waiters_behind_a_named_owner_enter_at_the_end_of_the_short_lease_that_it_took_last() {
    let server = RedisServer::start();
    let (owner, long) = (Owner::named("job-17"), 30 * SECOND);
    let mut late = Vec::new();
    for kind in ["lock", "fair", "writer before writer", "writer before reader"] {
        let of = |locks: &Locks| match kind {
            "lock" => locks.lock(kind),
            "fair" => locks.fair_lock(kind),
            _ => locks.rw_lock(kind).write(),
        };
        let behind = |locks: &Locks| match kind {
            "writer before reader" => locks.rw_lock(kind).read(),
            _ => of(locks),
        };
        let (first, again) = (locks(&server).await, locks(&server).await);
        let (other, faults) = faulty(&server).await;
        let crashed = of(&first).owned_by(&owner).lease(long).acquire().await.unwrap();
        let waiter = tokio::spawn(behind(&other).acquire());
        soon("the waiter's second request", faults.reached(Op::Acquire, 2)).await;
        let taken_over = of(&again).owned_by(&owner).lease(SHORT).acquire().await.unwrap();
        assert!(taken_over.token() > crashed.token());
        let granted = Instant::now();
        let next = soon("the waiter", waiter).await.unwrap().unwrap();
        let waited = granted.elapsed();
        if waited > SHORT + TOO_LONG {
            late.push((kind, waited));
        }
        next.release().await.unwrap();
        drop((crashed, taken_over));
    }
    assert!(late.is_empty(), "these entered too late: {late:?}");
    assert_nothing_left(&server).await;
}
