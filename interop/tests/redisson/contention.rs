//! Both sides contend for one lock, of any kind, and do inside what two at a time would spoil: two clients of each side, with two
//! tasks or threads each.

use std::time::{Duration, Instant};

use lockcore::{Locks, Owner, ReentrantLock};
use lockcore_interop::{Kind, Redisson};
use lockcore_testkit::RedisServer;
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::support::{listened_to, locks, of_kind, queued, redisson, soon};

/// Where the work is, whatever lock is taken for it.
const KEYS: &str = "work";

/// What all contenders together have noticed.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) holds: u64,
    pub(crate) overlaps: u64,
    pub(crate) lost: u64,
    pub(crate) switches: u64,
    pub(crate) took: Duration,
}

/// Has both sides do the same work under the locks named for Rust and for Java, so often in each task and each thread; so many
/// waiters are seen for each of these locks.
pub(crate) async fn contend(
    kind: Kind,
    [rust_name, java_name]: [&'static str; 2],
    rounds: u32,
    waiting: u32,
) -> Seen {
    let server = RedisServer::start();
    let rust = [locks(&server).await, locks(&server).await];
    let java = [redisson(&server).await, redisson(&server).await];
    let _: String = server.query(&["SET", &format!("{KEYS}:work"), "0 nobody"]).await;

    // Nobody begins before all are there.
    let gate = locks(&server).await;
    let owner = Owner::new();
    let mut closed = Vec::new();
    for name in [rust_name, java_name] {
        closed.push(of_kind(&gate, kind, name).owned_by(&owner).acquire().await.unwrap());
    }
    let mut contenders = start(&server, (&rust, rust_name), (&java, java_name), kind, rounds).await;
    for name in [rust_name, java_name] {
        match kind {
            Kind::Fair => queued(&server, name, waiting).await,
            _ => listened_to(&server, name, waiting).await,
        }
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
    let holds = 8 * u64::from(rounds);
    Seen { holds, overlaps, lost: holds - done, switches, took }
}

async fn start(
    server: &RedisServer,
    (rust, rust_name): (&[Locks], &str),
    (java, java_name): (&[Redisson], &'static str),
    kind: Kind,
    rounds: u32,
) -> JoinSet<(u64, u64)> {
    let mut contenders = JoinSet::new();
    let redis = redis::Client::open(server.url()).unwrap();
    for lock in rust.iter().map(|locks| of_kind(locks, kind, rust_name)) {
        for _ in 0..2 {
            let connection = redis.get_multiplexed_async_connection().await.unwrap();
            contenders.spawn(work(lock.clone(), connection, rounds));
        }
    }
    for thread in java.iter().flat_map(|client| [client.thread().kind(kind), client.thread().kind(kind)]) {
        contenders.spawn(async move { thread.contend(java_name, KEYS, rounds).await.unwrap() });
    }
    contenders
}

/// The same as `Contention.java`. How often somebody else was inside, and how often the hold before was the other side's.
async fn work(lock: ReentrantLock, mut redis: MultiplexedConnection, rounds: u32) -> (u64, u64) {
    let (inside, work) = (format!("{KEYS}:inside"), format!("{KEYS}:work"));
    let (mut overlaps, mut switches) = (0, 0);
    for _ in 0..rounds {
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
