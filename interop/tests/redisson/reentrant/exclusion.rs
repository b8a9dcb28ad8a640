//! Nobody else is inside.

use std::time::Instant;

use lockcore::{Locks, ReentrantLock};
use lockcore_interop::{JavaThread, Redisson};
use lockcore_testkit::RedisServer;
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::{
    report::{Row, record},
    support::{listened_to, locks, redisson, soon},
};

/// Of each task and each thread; there are four on each side.
const ROUNDS: u32 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_and_java_exclude_each_other() {
    let server = RedisServer::start();
    let rust = [locks(&server).await, locks(&server).await];
    let java = [redisson(&server).await, redisson(&server).await];
    let _: String = server.query(&["SET", "busy:work", "0 nobody"]).await;

    // Nobody begins before all are there.
    let gate = locks(&server).await;
    let closed = gate.lock("busy").acquire().await.unwrap();
    let mut contenders = start(&server, &rust, &java).await;
    listened_to(&server, "busy", 4).await;
    let begin = Instant::now();
    closed.release().await.unwrap();

    let (mut overlaps, mut switches) = (0, 0);
    while let Some(seen) = soon("a contender", contenders.join_next()).await {
        let (overlapped, switched) = seen.unwrap();
        overlaps += overlapped;
        switches += switched;
    }
    let took = begin.elapsed();
    let holds = 8 * ROUNDS;
    let work: String = server.query(&["GET", "busy:work"]).await;
    let done: u32 = work.split(' ').next().unwrap().parse().unwrap();
    assert_eq!((overlaps, holds - done), (0, 0), "overlaps, lost updates");
    assert!(switches >= 100, "the sides took turns: {switches} changes");

    gate.close().await.unwrap();
    for client in rust {
        client.close().await.unwrap();
    }
    for client in java {
        client.close().await.unwrap();
    }
    let measured = format!(
        "{holds} holds in {:.1} s, half of each side; {switches} changes of side, 0 overlaps, 0 lost updates",
        took.as_secs_f64()
    );
    record(Row::Exclusion, measured).await;
}

async fn start(server: &RedisServer, rust: &[Locks], java: &[Redisson]) -> JoinSet<(u64, u64)> {
    let mut contenders = JoinSet::new();
    let redis = redis::Client::open(server.url()).unwrap();
    for locks in rust {
        for _ in 0..2 {
            let connection = redis.get_multiplexed_async_connection().await.unwrap();
            contenders.spawn(contend(locks.lock("busy"), connection));
        }
    }
    for thread in java.iter().flat_map(|client| [client.thread(), client.thread()]) {
        contenders.spawn(contend_in_java(thread));
    }
    contenders
}

/// The same as `Contention.java`. How often somebody else was inside, and how often the hold before was the other side's.
async fn contend(lock: ReentrantLock, mut redis: MultiplexedConnection) -> (u64, u64) {
    let (mut overlaps, mut switches) = (0, 0);
    for _ in 0..ROUNDS {
        let guard = lock.acquire().await.unwrap();
        let inside: u64 = redis.incr("busy:inside", 1).await.unwrap();
        overlaps += u64::from(inside != 1);
        let work: String = redis.get("busy:work").await.unwrap();
        let (done, side) = work.split_once(' ').unwrap();
        switches += u64::from(side != "rust");
        let done = done.parse::<u64>().unwrap() + 1;
        let () = redis.set("busy:work", format!("{done} rust")).await.unwrap();
        let _: u64 = redis.decr("busy:inside", 1).await.unwrap();
        guard.release().await.unwrap();
    }
    (overlaps, switches)
}

async fn contend_in_java(thread: JavaThread) -> (u64, u64) {
    thread.contend("busy", ROUNDS).await.unwrap()
}
