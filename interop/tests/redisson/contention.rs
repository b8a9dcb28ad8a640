//! Both sides contend for one name, of any kind, and do inside what too many at a time would spoil: two clients of each side, with two
//! tasks or threads each.

use std::time::{Duration, Instant};

use lockcore::{Lock, Locks};
use lockcore_interop::{Kind, Redisson};
use lockcore_testkit::RedisServer;
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{listened_to, locks, queued, redisson, soon},
};

/// Where the work is, whatever lock is taken for it.
const KEYS: &str = "work";

/// Of each task and each thread; there are four on each side.
const ROUNDS: u32 = 300;

/// Without a common lock. Both are multiples of the number of turns.
const ROUNDS_APART: u32 = 99;

pub(crate) async fn exclude_each_other(section: Section) {
    let seen = contend(section, ["busy", "busy"], ROUNDS).await;
    assert_eq!((seen.overlaps, seen.lost), (0, 0), "overlaps, lost updates");
    let turns = match section {
        Section::Fair => seen.holds / 8,
        // Tasks of one Rust client hand it on to each other for 50 ms at a time.
        Section::Reentrant => 8,
        _ => 50,
    };
    assert!(seen.switches >= turns, "the sides take turns: {} changes", seen.switches);
    let (_, limit) = section.turns();
    let together = match section {
        Section::ReadWrite => {
            assert!(seen.most > 1, "readers are inside together");
            format!("one in three to write; up to {} readers at a time, ", seen.most)
        }
        Section::Semaphore | Section::PlainSemaphore => {
            assert_eq!(seen.most, u64::from(limit), "all permits are in use");
            format!("up to {} at a time of {limit} permits, ", seen.most)
        }
        _ => String::new(),
    };
    let lost = if section.is_semaphore() { "" } else { ", 0 lost updates" };
    let measured = format!(
        "{} holds in {:.1} s, half of each side; {together}{} changes of side, 0 overlaps{lost}",
        seen.holds,
        seen.took.as_secs_f64(),
        seen.switches
    );
    record(section, Promise::Exclusion, measured).await;
}

/// The control: the same without anything that keeps the sides apart.
pub(crate) async fn is_noticed(section: Section) {
    let seen = contend(section, ["of_rust", "of_java"], ROUNDS_APART).await;
    assert!(seen.overlaps > 0, "{seen:?}");
    let mut measured = format!("{} overlaps", seen.overlaps);
    if !section.is_semaphore() {
        assert!(seen.lost > 0, "{seen:?}");
        measured += &format!(" and {} lost updates", seen.lost);
    }
    record(section, Promise::Detection, measured + &format!(" in {} holds", seen.holds)).await;
}

/// What all contenders together have noticed.
#[derive(Debug)]
struct Seen {
    holds: u64,
    overlaps: u64,
    lost: u64,
    switches: u64,
    most: u64,
    took: Duration,
}

/// Has both sides do the same work under the locks named for Rust and for Java, so often in each task and each thread.
async fn contend(section: Section, [rust_name, java_name]: [&'static str; 2], rounds: u32) -> Seen {
    let server = RedisServer::start();
    let rust = [locks(&server).await, locks(&server).await];
    let java = [redisson(&server).await, redisson(&server).await];
    let _: String = server.query(&["SET", &format!("{KEYS}:work"), "0"]).await;

    // Nobody begins before all are there.
    let gate = locks(&server).await;
    let (turns, limit) = section.turns();
    let (kind, _) = turns[0];
    let names = if rust_name == java_name { vec![rust_name] } else { vec![rust_name, java_name] };
    let mut closed = Vec::new();
    for name in &names {
        closed.push(kind.all_of_ours(&gate, name).acquire().await.unwrap());
    }
    let mut contenders =
        start(&server, section, (&rust, rust_name), (&java, java_name), rounds).await;
    let clients = 4 / names.len() as u32;
    for name in names {
        match kind {
            // Both tasks or threads of each.
            Kind::Fair => queued(&server, name, 2 * clients).await,
            _ => listened_to(&server, kind, name, clients).await,
        }
    }
    let begin = Instant::now();
    for guard in closed {
        guard.release().await.unwrap();
    }
    let (mut overlaps, mut switches, mut most) = (0, 0, 0);
    while let Some(seen) = soon("a contender", contenders.join_next()).await {
        let [overlapped, switched, together] = seen.unwrap();
        overlaps += overlapped;
        switches += switched;
        most = most.max(together);
    }
    let took = begin.elapsed();
    let done: u64 = server.query(&["GET", &format!("{KEYS}:work")]).await;

    for client in rust.into_iter().chain([gate]) {
        client.close().await.unwrap();
    }
    for client in java {
        client.close().await.unwrap();
    }
    let (of_each, turns) = (u64::from(rounds), turns.iter().cycle());
    let updates =
        8 * turns.take(rounds as usize).filter(|(_, weight)| *weight == limit).count() as u64;
    Seen { holds: 8 * of_each, overlaps, lost: updates - done, switches, most, took }
}

async fn start(
    server: &RedisServer,
    section: Section,
    (rust, rust_name): (&[Locks], &str),
    (java, java_name): (&[Redisson], &'static str),
    rounds: u32,
) -> JoinSet<[u64; 3]> {
    let mut contenders = JoinSet::new();
    let redis = redis::Client::open(server.url()).unwrap();
    let (turns, limit) = section.turns();
    for number in 0..4_usize {
        // Not all do the same at the same time.
        let mut turns = turns.to_vec();
        let first = number % turns.len();
        turns.rotate_left(first);
        let ours = turns
            .iter()
            .map(|(kind, weight)| (kind.ours(&rust[number / 2], rust_name), *weight))
            .collect();
        let connection = redis.get_multiplexed_async_connection().await.unwrap();
        contenders.spawn(work(ours, connection, rounds, limit));
        let thread = java[number / 2].thread();
        contenders.spawn(async move {
            thread.contend(&turns, java_name, KEYS, rounds, limit).await.unwrap()
        });
    }
    contenders
}

/// The same as `Contention.java`. How often it was not as it must be, how often the hold before was the other side's, and how many
/// were inside together at most.
async fn work(
    turns: Vec<(Lock, u32)>,
    mut redis: MultiplexedConnection,
    rounds: u32,
    limit: u32,
) -> [u64; 3] {
    let [inside, last, work] = ["inside", "last", "work"].map(|key| format!("{KEYS}:{key}"));
    let (mut overlaps, mut switches, mut most) = (0, 0, 0);
    for (lock, weight) in turns.into_iter().cycle().take(rounds as usize) {
        let guard = lock.acquire().await.unwrap();
        let is_alone = weight == limit;
        let together: u64 = redis.incr(&inside, weight).await.unwrap();
        overlaps += u64::from(together > u64::from(limit));
        most = most.max(if is_alone { 1 } else { together });
        let found: u64 = redis.get(&work).await.unwrap();
        let side: Option<String> = redis.getset(&last, "rust").await.unwrap();
        switches += u64::from(side.as_deref() != Some("rust"));
        if is_alone {
            let () = redis.set(&work, found + 1).await.unwrap();
        } else {
            let still: u64 = redis.get(&work).await.unwrap();
            overlaps += u64::from(still != found);
        }
        let _: i64 = redis.decr(&inside, weight).await.unwrap();
        guard.release().await.unwrap();
    }
    [overlaps, switches, most]
}
