//! Nobody else is inside.

use std::time::{Duration, Instant};

use lockcore::{Locks, Owner, ReentrantLock};
use lockcore_interop::Redisson;
use lockcore_testkit::RedisServer;
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::{
    report::{Row, record},
    support::{listened_to, locks, redisson, soon},
};

/// Of each task and each thread; there are four on each side.
const ROUNDS: u32 = 300;

const HOLDS: u64 = 8 * ROUNDS as u64;

/// Where the work is, whatever lock is taken for it.
const KEYS: &str = "work";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_and_java_exclude_each_other() {
    let seen = contend(["busy", "busy"], 4).await;
    assert_eq!((seen.overlaps, seen.lost), (0, 0), "overlaps, lost updates");
    assert!(seen.switches >= 50, "the sides take turns: {} changes", seen.switches);
    let measured = format!(
        "{HOLDS} holds in {:.1} s, half of each side; {} changes of side, 0 overlaps, 0 lost updates",
        seen.took.as_secs_f64(),
        seen.switches
    );
    record(Row::Exclusion, measured).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_without_a_common_lock_is_noticed() {
    let seen = contend(["of_rust", "of_java"], 2).await;
    assert!(seen.overlaps > 0 && seen.lost > 0, "{seen:?}");
    record(Row::Detection, format!("{} overlaps and {} lost updates", seen.overlaps, seen.lost)).await;
}

/// What all contenders together have noticed.
#[derive(Debug)]
struct Seen {
    overlaps: u64,
    lost: u64,
    switches: u64,
    took: Duration,
}

/// Has both sides do the same work under the locks named for Rust and for Java; so many clients wait for each of these.
async fn contend([rust_name, java_name]: [&'static str; 2], waiting: u32) -> Seen {
    let server = RedisServer::start();
    let rust = [locks(&server).await, locks(&server).await];
    let java = [redisson(&server).await, redisson(&server).await];
    let _: String = server.query(&["SET", &format!("{KEYS}:work"), "0 nobody"]).await;

    // Nobody begins before all are there.
    let gate = locks(&server).await;
    let owner = Owner::new();
    let mut closed = Vec::new();
    for name in [rust_name, java_name] {
        closed.push(gate.lock(name).owned_by(&owner).acquire().await.unwrap());
    }
    let mut contenders = start(&server, (&rust, rust_name), (&java, java_name)).await;
    for name in [rust_name, java_name] {
        listened_to(&server, name, waiting).await;
    }
    let begin = Instant::now();
    for guard in closed {
        guard.release().await.unwrap();
    }
    let (mut overlaps, mut switches) = (0, 0);
    while let Some(seen) = soon("a contender", contenders.join_next()).await {
        let (overlapped, switched) = seen.unwrap();
        overlaps += overlapped;
        switches += switched;
    }
    let took = begin.elapsed();
    let work: String = server.query(&["GET", &format!("{KEYS}:work")]).await;
    let done: u64 = work.split(' ').next().unwrap().parse().unwrap();

    for client in rust.into_iter().chain([gate]) {
        client.close().await.unwrap();
    }
    for client in java {
        client.close().await.unwrap();
    }
    Seen { overlaps, lost: HOLDS - done, switches, took }
}

async fn start(
    server: &RedisServer,
    (rust, rust_name): (&[Locks], &str),
    (java, java_name): (&[Redisson], &'static str),
) -> JoinSet<(u64, u64)> {
    let mut contenders = JoinSet::new();
    let redis = redis::Client::open(server.url()).unwrap();
    for lock in rust.iter().map(|locks| locks.lock(rust_name)) {
        for _ in 0..2 {
            let connection = redis.get_multiplexed_async_connection().await.unwrap();
            contenders.spawn(work(lock.clone(), connection));
        }
    }
    for thread in java.iter().flat_map(|client| [client.thread(), client.thread()]) {
        contenders.spawn(async move { thread.contend(java_name, KEYS, ROUNDS).await.unwrap() });
    }
    contenders
}

/// The same as `Contention.java`. How often somebody else was inside, and how often the hold before was the other side's.
async fn work(lock: ReentrantLock, mut redis: MultiplexedConnection) -> (u64, u64) {
    let (inside, work) = (format!("{KEYS}:inside"), format!("{KEYS}:work"));
    let (mut overlaps, mut switches) = (0, 0);
    for _ in 0..ROUNDS {
        let guard = lock.acquire().await.unwrap();
        let now_inside: i64 = redis.incr(&inside, 1).await.unwrap();
        overlaps += u64::from(now_inside != 1);
        let last: String = redis.get(&work).await.unwrap();
        let (done, side) = last.split_once(' ').unwrap();
        switches += u64::from(side != "rust");
        let done = done.parse::<u64>().unwrap() + 1;
        let () = redis.set(&work, format!("{done} rust")).await.unwrap();
        let _: i64 = redis.decr(&inside, 1).await.unwrap();
        guard.release().await.unwrap();
    }
    (overlaps, switches)
}
