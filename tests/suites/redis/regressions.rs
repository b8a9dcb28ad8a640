//! Findings of a review, and suspicions that it refuted.

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore::{Lock, LockError, Locks, LossReason, Owner};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, poll_times, server_lacks};
use tokio::{runtime::Runtime, sync::Mutex, task::JoinSet};

use crate::support::{
    LONG, assert_nothing_left, builder, connect, counted, impatient, listened_to, locks, soon,
    until,
};

const MS: Duration = Duration::from_millis(1);

// ---- names and owners

/// `x` and `{x}` shared a key for the id of a named owner's hold, so one lost the hold that the
/// other took.
#[tokio::test]
async fn a_name_and_the_same_name_in_braces_are_two_locks() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let plain = locks.lock("x").owned_by(&Owner::named("job-1")).acquire().await.unwrap();
    let braced = locks.lock("{x}").owned_by(&Owner::named("job-2")).acquire().await.unwrap();
    plain.release().await.unwrap();
    assert!(!locks.lock("x").state().await.unwrap().is_held(), "released in name only");
    braced.release().await.unwrap();
    assert_nothing_left(&server).await;
}

/// A proxy between a client and the server. Data of the first connection passes only while nobody
/// holds the gate.
struct Proxy {
    port: u16,
    gate: Arc<Mutex<()>>,
}

impl Proxy {
    fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), gate: Arc::default() };
        let (port, mut first) = (server.port(), Some(proxy.gate.clone()));
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
                let gate = first.take().unwrap_or_default();
                let (requests, replies) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || Self::pass(&requests, &server, &gate));
                thread::spawn(move || Self::pass(&replies, &client, &Mutex::default()));
            }
        });
        proxy
    }

    fn pass(mut from: &TcpStream, mut to: &TcpStream, gate: &Mutex<()>) {
        let mut bytes = vec![0; 65536];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let _open = gate.blocking_lock();
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _open = gate.blocking_lock();
        let _ = to.shutdown(Shutdown::Write);
    }
}

/// A long-delayed acquire of a named owner was taken for a nested one of the owner's newer hold,
/// and its undo freed that hold: two were inside.
#[tokio::test]
async fn an_acquire_of_a_named_owner_that_arrives_late_leaves_his_newer_hold_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let through = impatient(&server).url(format!("redis://127.0.0.1:{}", proxy.port));
    // Without records: the calls are counted.
    let delayed = Locks::builder(through.connect().await.unwrap());
    let delayed = delayed.description(None).build().unwrap();
    let other = counted(&server).await;
    delayed.lock("warm").acquire().await.unwrap().release().await.unwrap();

    let shut = proxy.gate.lock().await;
    let lock = delayed.lock("a").owned_by(&Owner::named("job-17"));
    let guard = soon("the second attempt", lock.acquire()).await.unwrap();
    assert!(other.lock("a").state().await.unwrap().is_held(), "granted on another connection");
    let calls = server.calls_of("evalsha").await;
    drop(shut);
    until("the late request", || async { server.calls_of("evalsha").await > calls }).await;
    // The data behind it arrived at the same time.
    tokio::time::sleep(100 * MS).await;
    let second = other.lock("a").try_acquire().await.unwrap();
    assert!(!(guard.is_held() && second.is_some()), "two are inside");
    assert!(guard.is_held() && second.is_none(), "the newer hold is gone: {second:?}");
    guard.release().await.unwrap();
    assert_nothing_left(&server).await;
}

/// When somebody else corrupted the guard key of one hold, the renewals of all holds in its batch
/// failed.
#[tokio::test]
async fn a_spoilt_key_costs_only_the_hold_that_it_belongs_to() {
    let server = RedisServer::start();
    let locks = builder(&server).await.lease(3000 * MS).build().unwrap();
    let sound = locks.lock("sound").acquire().await.unwrap();
    let spoilt = locks.lock("spoilt").owned_by(&Owner::named("job")).acquire().await.unwrap();
    let _: i64 = server.query(&["DEL", "lockcore_hold:{spoilt}"]).await;
    let _: i64 = server.query(&["LPUSH", "lockcore_hold:{spoilt}", "1"]).await;
    assert_eq!(soon("the end of its lease", spoilt.lost()).await, LossReason::LeaseEnded);
    assert!(sound.is_held(), "the other hold in the batch is lost as well");
    assert!(sound.remaining() > 300 * MS, "it was renewed: {:?} are left", sound.remaining());
    sound.release().await.unwrap();
}

// ---- wake-ups

/// One forbidden channel failed all subscriptions in the same command.
#[tokio::test]
async fn a_channel_that_is_not_permitted_spoils_no_other() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let allowed = "&redisson_lock__channel:{good*";
    let _: String = server
        .query(&["ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all", "resetchannels", allowed])
        .await;
    let url = server.url().replace("redis://", "redis://u:pw@");
    let plain = locks(&server).await;
    let _bad = plain.lock("bad").acquire().await.unwrap();
    for round in 0..3 {
        // A new connection: subscriptions made while it is being opened are sent in one command.
        let waiters = Locks::new(RedisBackend::connect(&url).await.unwrap());
        let (mut held, mut entering) = (Vec::new(), JoinSet::new());
        for name in ["good1", "good2", "good3"] {
            held.push(plain.lock(name).acquire().await.unwrap());
            let (lock, refused) = (waiters.lock(name), waiters.lock("bad"));
            entering.spawn(async move { lock.acquire().await.map(drop) });
            entering.spawn(async move {
                let error = refused.acquire().await.unwrap_err();
                assert!(matches!(error, LockError::Backend(_)), "{error}");
                Ok(())
            });
        }
        for name in ["good1", "good2", "good3"] {
            listened_to(&server, name).await;
        }
        for guard in held {
            guard.release().await.unwrap();
        }
        while let Some(entered) = soon("every waiter", entering.join_next()).await {
            let entered = entered.unwrap();
            assert!(entered.is_ok(), "round {round}: {entered:?}");
        }
        waiters.close().await.unwrap();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The connection of a client ends with the runtime that opened it: the first call on the next
/// runtime failed.
#[test]
fn a_client_is_used_on_one_runtime_after_another() {
    let server = RedisServer::start();
    let first = runtime();
    let locks = first.block_on(async {
        let locks = locks(&server).await;
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        locks
    });
    drop(first);
    runtime().block_on(async {
        let guard = locks.lock("a").try_acquire().await;
        guard
            .expect("the first call on another runtime")
            .expect("it is free")
            .release()
            .await
            .unwrap();
        assert_nothing_left(&server).await;
    });
}

/// The ids of the connections that listen.
async fn listeners(server: &RedisServer) -> HashSet<String> {
    let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    clients.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// All subscriptions ended with the runtime whose task had made them; waiters on another runtime
/// received no more wake-ups.
#[test]
fn a_waiter_is_woken_although_the_runtime_with_the_listener_has_ended() {
    let server = RedisServer::start();
    let (first, second, third) = (runtime(), runtime(), runtime());
    let other = third.block_on(locks(&server));
    let held = third.block_on(other.lock("a").acquire()).unwrap();
    let locks = first.block_on(async {
        let locks = locks(&server).await;
        let waits = locks.lock("a");
        let gives_up = tokio::spawn(async move { waits.acquire().await.map(drop) });
        listened_to(&server, "a").await;
        gives_up.abort();
        until("its unsubscription", || async { server.channels().await.is_empty() }).await;
        locks
    });
    let waiting = second.spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await.map(drop) }
    });
    third.block_on(async {
        listened_to(&server, "a").await;
        let before = listeners(&server).await;
        assert_eq!(before.len(), 1, "one connection for wake-ups");
        first.shutdown_background();
        until("the end of the connection", || async {
            listeners(&server).await.is_disjoint(&before)
        })
        .await;
        let released = Instant::now();
        held.release().await.unwrap();
        let entered = soon("the wake-up", waiting).await.unwrap();
        assert!(entered.is_ok(), "{entered:?}");
        assert!(released.elapsed() < 8000 * MS, "woken after {:?}", released.elapsed());
    });
}

/// Every cancelled waiter makes the next one the head. If each subscribed, and unsubscribed when
/// cancelled in turn, that would be a storm. Never failed: a suspicion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_that_are_cancelled_cost_no_commands() {
    let server = RedisServer::start();
    let (holder, waiters) = (counted(&server).await, counted(&server).await);
    let held = holder.lock("a").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..10_000 {
        let lock = waiters.lock("a");
        let mut acquire = Box::pin(async move { lock.acquire().await });
        // Polled once, it is in the queue.
        assert!(poll_times(1, acquire.as_mut()).await.is_none());
        tasks.push(tokio::spawn(acquire));
    }
    listened_to(&server, "a").await;
    let before = server.client_commands().await;
    tasks.iter().for_each(|task| task.abort());
    for task in tasks {
        let ended = soon("the cancellation", task).await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "a waiter came to an end of its own"
        );
    }
    until("the last unsubscription", || async { server.channels().await.is_empty() }).await;
    let spent = server.client_commands().await - before;
    assert!(spent <= 4, "{spent} commands");
    held.release().await.unwrap();
    soon("the next", waiters.lock("a").acquire()).await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

// ---- everything at once

const NAMES: usize = 3;
const TASKS: u64 = 8;

/// The tasks that use `NAMES` locks while connections are killed.
#[derive(Default)]
struct Stress {
    stopped: AtomicBool,
    inside: [AtomicUsize; NAMES],
    grants: AtomicU64,
    longest_wait_ms: AtomicU64,
}

impl Stress {
    /// Enters and leaves in ways that follow from `seed`, so that a task does the same in every
    /// run.
    async fn visit_again_and_again(self: Arc<Self>, locks: Locks, owner: String, mut seed: u64) {
        while !self.stopped.load(Ordering::SeqCst) {
            seed = (seed * 1_103_515_245 + 12345) & 0x7fff_ffff;
            let name = (seed >> 8) as usize % NAMES;
            let lock = locks.lock(format!("n{name}"));
            let lock = if seed & 64 == 0 { lock } else { lock.owned_by(&Owner::named(&owner)) };
            self.visit(&lock, name, seed).await;
        }
    }

    async fn visit(&self, lock: &Lock, name: usize, way: u64) {
        let start = Instant::now();
        let acquired = match way & 3 {
            0 => lock.acquire_timeout(MS * (way >> 12 & 15) as u32).await.map(Some),
            1 => lock.try_acquire().await,
            _ => lock.acquire().await.map(Some),
        };
        self.longest_wait_ms.fetch_max(start.elapsed().as_millis() as u64, Ordering::SeqCst);
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) | Err(LockError::Timeout { .. } | LockError::Backend(_)) => return,
            Err(error) => panic!("{error}"),
        };
        self.grants.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.inside[name].fetch_add(1, Ordering::SeqCst), 0, "two inside of n{name}");
        tokio::time::sleep(MS * (way >> 16 & 3) as u32).await;
        self.inside[name].fetch_sub(1, Ordering::SeqCst);
        if way & 16 != 0 {
            return drop(guard);
        }
        match guard.release().await {
            // Three attempts were cut off: the background task continues.
            Ok(()) | Err(LockError::Backend(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// All of the above at once: a lost wake-up or undo shows as a waiter that waits for the end of a
/// lease. Never failed: a suspicion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_lease_while_connections_are_killed_all_the_time() {
    let server = RedisServer::start();
    let stress = Arc::new(Stress::default());
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for client in 0..3 {
        let locks = Locks::new(connect(&server).await);
        for task in 0..TASKS {
            let (owner, seed) = (format!("o{client}-{task}"), client * 31 + task * 7);
            tasks.spawn(stress.clone().visit_again_and_again(locks.clone(), owner, seed));
        }
        clients.push(locks);
    }
    let start = Instant::now();
    for kind in ["normal", "pubsub", "pubsub"].into_iter().cycle() {
        tokio::time::sleep(70 * MS).await;
        // This may hit the connection that sends it.
        let _ = server.try_query::<i64>(&["CLIENT", "KILL", "TYPE", kind]).await;
        if start.elapsed() > 3000 * MS {
            break;
        }
    }
    stress.stopped.store(true, Ordering::SeqCst);
    while let Some(ended) =
        tokio::time::timeout(2 * LONG, tasks.join_next()).await.expect("the last visit")
    {
        ended.unwrap();
    }
    let longest = MS * stress.longest_wait_ms.load(Ordering::SeqCst) as u32;
    assert!(longest < 8000 * MS, "somebody waited for {longest:?}");
    let grants = stress.grants.load(Ordering::SeqCst);
    assert!(grants > 50, "hardly anybody came in: {grants}");
    for locks in clients {
        locks.close().await.unwrap();
    }
    assert_nothing_left(&server).await;
}
