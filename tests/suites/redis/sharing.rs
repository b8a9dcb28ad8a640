//! Read-write locks and semaphores on Redis: many inside together, across clients, and promptly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, LockError, Owner};
use lockcore_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::{
    support::{assert_nothing_left, builder, locks, soon, until},
    timing::mostly_within,
};

/// Lets twenty readers of three clients wait behind a writer, frees them as `downgrade` says, and
/// returns how long the last one took to enter.
async fn readers_behind_a_writer(downgrade: bool) -> Duration {
    let server = RedisServer::start();
    let clients = [locks(&server).await, locks(&server).await, locks(&server).await];
    let owner = Owner::new();
    let lock = clients[0].rw_lock("a");
    let writer = lock.write().owned_by(&owner).acquire().await.unwrap();
    let mut readers = JoinSet::new();
    for number in 0..20 {
        let read = clients[number % clients.len()].rw_lock("a").read();
        readers.spawn(async move { (read.acquire().await.unwrap(), Instant::now()) });
    }
    until("the readers' subscriptions", || async {
        let subscribers: (String, usize) =
            server.query(&["PUBSUB", "NUMSUB", "redisson_rwlock:{a}"]).await;
        subscribers.1 == clients.len()
    })
    .await;
    let reader =
        if downgrade { Some(lock.read().owned_by(&owner).acquire().await.unwrap()) } else { None };
    let start = Instant::now();
    writer.release().await.unwrap();
    let inside = soon("the readers", readers.join_all()).await;
    assert_eq!(inside.len(), 20);
    let last = inside.iter().map(|(_, at)| at.duration_since(start)).max();
    drop((inside, reader));
    assert_nothing_left(&server).await;
    last.unwrap()
}

#[tokio::test]
async fn twenty_readers_enter_within_50_ms_of_a_writers_release_and_of_its_downgrade() {
    for downgrade in [false, true] {
        let last = async || readers_behind_a_writer(downgrade).await;
        let what = format!("the last of twenty, downgrade: {downgrade}");
        mostly_within(Duration::from_millis(50), &what, last).await;
    }
}

/// A writer waits for a reader that has died. Returns how much longer than its lease.
async fn behind_a_dead_reader() -> Duration {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let lease = Duration::from_millis(400);
    let living = one.rw_lock("a").read().acquire().await.unwrap();
    let start = Instant::now();
    std::mem::forget(one.rw_lock("a").read().lease(lease).acquire().await.unwrap());
    let writing = tokio::spawn(other.rw_lock("a").write().acquire());
    tokio::time::sleep(lease / 4).await;
    living.release().await.unwrap();
    let writer = soon("the writer", writing).await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= lease, "{waited:?}");
    writer.release().await.unwrap();
    // The lease of the hash may have been that of the live reader: a later reader goes by the
    // leases of the readers.
    assert!(one.rw_lock("a").read().try_acquire().await.unwrap().is_some());
    waited - lease
}

#[tokio::test]
async fn a_dead_readers_hold_is_gone_at_the_end_of_its_lease() {
    let what = "a writer after the lease of a dead reader";
    mostly_within(Duration::from_millis(100), what, behind_a_dead_reader).await;
}

#[tokio::test]
async fn a_writer_enters_under_a_steady_stream_of_readers_of_several_clients() {
    let server = RedisServer::start();
    let mut streams = JoinSet::new();
    let writers = Arc::new(AtomicU32::new(0));
    let readers = Arc::new(AtomicU32::new(0));
    let done = Arc::new(AtomicBool::new(false));
    for _ in 0..3 {
        let client = locks(&server).await;
        for _ in 0..3 {
            let (lock, writers, readers, done) =
                (client.rw_lock("a"), writers.clone(), readers.clone(), done.clone());
            streams.spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    let guard = lock.read().acquire().await.unwrap();
                    readers.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(writers.load(Ordering::SeqCst), 0);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    assert_eq!(writers.load(Ordering::SeqCst), 0);
                    readers.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    let writing = locks(&server).await.rw_lock("a").write();
    for _ in 0..20 {
        // Without a way past the readers it would wait forever.
        let guard = soon("the writer", writing.acquire()).await.unwrap();
        writers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(readers.load(Ordering::SeqCst), 0);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(readers.load(Ordering::SeqCst), 0);
        writers.fetch_sub(1, Ordering::SeqCst);
        guard.release().await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    while let Some(stream) = soon("the readers", streams.join_next()).await {
        stream.unwrap();
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_writer_that_dies_while_it_waits_keeps_readers_out_no_longer_than_its_time() {
    let server = RedisServer::start();
    let queue_timeout = Duration::from_secs(3);
    let one = builder(&server).await.queue_timeout(queue_timeout).build().unwrap();
    let other = locks(&server).await;
    let reader = one.rw_lock("a").read().acquire().await.unwrap();
    // Its runtime stops in the middle of the wait, as if the process had stopped.
    let waiting = one.rw_lock("a").write();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let crash = {
        let server_url = server.url().to_owned();
        runtime.spawn(async move {
            let backend = lockcore_redis::RedisBackend::connect(server_url).await.unwrap();
            let locks =
                lockcore::Locks::builder(backend).queue_timeout(queue_timeout).build().unwrap();
            std::mem::forget(locks.clone());
            locks.rw_lock("a").write().acquire().await.map(|guard| guard.token())
        })
    };
    until("the writer's flag", || async {
        server.query::<i64>(&["EXISTS", "lockcore_writer:{a}"]).await == 1
    })
    .await;
    assert!(
        other.rw_lock("a").read().try_acquire().await.unwrap().is_none(),
        "a writer comes first"
    );
    runtime.shutdown_background();
    let start = Instant::now();
    let late = soon("a reader", other.rw_lock("a").read().acquire()).await.unwrap();
    assert!(start.elapsed() < queue_timeout + Duration::from_secs(2), "{:?}", start.elapsed());
    drop((late, reader, waiting, crash));
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn of_ten_permits_never_more_are_taken_by_a_hundred_tasks_of_four_clients() {
    let server = RedisServer::start();
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let client = locks(&server).await;
        for number in 0..25_u32 {
            let (semaphore, inside, most) =
                (client.semaphore("s", 10), inside.clone(), most.clone());
            tasks.spawn(async move {
                for round in 0..8 {
                    let wanted = 1 + (number + round) % 3;
                    let guard = semaphore.permits(wanted).acquire().await.unwrap();
                    most.fetch_max(
                        inside.fetch_add(wanted, Ordering::SeqCst) + wanted,
                        Ordering::SeqCst,
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    inside.fetch_sub(wanted, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    while let Some(task) = soon("the tasks", tasks.join_next()).await {
        task.unwrap();
    }
    let most = most.load(Ordering::SeqCst);
    assert!((8..=10).contains(&most), "{most}");
    let semaphore = locks(&server).await.semaphore("s", 10);
    assert_eq!(semaphore.available().await.unwrap(), 10);
    assert!(!semaphore.state().await.unwrap().is_held());
    until("the last unsubscription", || async { server.channels().await.is_empty() }).await;
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_expired_permit_wakes_a_waiter_within_100_ms_of_its_leases_end() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let mut round = 0;
    let expires = async || {
        round += 1;
        let name = format!("s{round}");
        let lease = Duration::from_millis(200 + 37 * round);
        let kept = one.semaphore(&name, 3).permits(2).acquire().await.unwrap();
        let start = Instant::now();
        std::mem::forget(one.semaphore(&name, 3).lease(lease).acquire().await.unwrap());
        let taken = Instant::now();
        let guard = soon("the waiter", other.semaphore(&name, 3).acquire()).await.unwrap();
        assert!(start.elapsed() >= lease, "{:?}", start.elapsed());
        let late = taken.elapsed().saturating_sub(lease);
        assert!(kept.is_held());
        guard.release().await.unwrap();
        assert_eq!(other.semaphore(&name, 3).available().await.unwrap(), 1);
        kept.release().await.unwrap();
        late
    };
    mostly_within(Duration::from_millis(100), "a waiter for a permit that expires", expires).await;
}

#[tokio::test]
async fn bad_input_is_a_clear_error_and_changes_nothing() {
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let held = one.semaphore("s", 3).acquire().await.unwrap();
    let too_many = other.semaphore("s", 3).permits(4).acquire().await.unwrap_err();
    assert!(matches!(too_many, LockError::TooManyPermits { asked: 4, limit: 3, .. }), "{too_many}");
    let wrong_type = |error: LockError| match error {
        LockError::Backend(error) => {
            assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}")
        }
        error => panic!("{error}"),
    };
    wrong_type(other.lock("s").acquire().await.unwrap_err());
    wrong_type(other.rw_lock("s").read().acquire().await.unwrap_err());
    wrong_type(other.latch("s").set_count(3).await.unwrap_err());
    wrong_type(other.latch("s").count_down().await.unwrap_err());
    wrong_type(other.plain_semaphore("s", 3).acquire().await.unwrap_err());
    assert_eq!(other.semaphore("s", 3).available().await.unwrap(), 2);
    held.release().await.unwrap();

    one.latch("l").set_count(2).await.unwrap();
    assert!(matches!(other.latch("l").set_count(5).await, Err(LockError::AlreadySet { .. })));
    wrong_type(other.semaphore("l", 3).acquire().await.unwrap_err());
    wrong_type(other.semaphore("l", 3).resize(4).await.unwrap_err());
    wrong_type(other.lock("l").acquire().await.unwrap_err());
    assert_eq!(other.latch("l").count().await.unwrap(), 2);

    let reader = one.rw_lock("r").read().acquire().await.unwrap();
    wrong_type(other.lock("r").acquire().await.unwrap_err());
    wrong_type(other.fair_lock("r").acquire().await.unwrap_err());
    wrong_type(other.latch("r").count_down().await.unwrap_err());
    assert!(reader.is_held());
    reader.release().await.unwrap();
}
