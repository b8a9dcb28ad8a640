//! Both sides contend for one name, of any kind, and do work inside that too many at a time would
//! spoil: two clients of each side, with two tasks or threads each. On a cluster, they contend for
//! one name on each primary at the same time.

use std::time::{Duration, Instant};

use lockcore::{Lock, LockGuard, Locks};
use lockcore_interop::{Kind, Redisson};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::{
    deployment::{Deployment, Topology},
    report::{Promise, record, record_on},
    section::Section,
    support::{LEASE, listened_to, queued, soon},
};

/// The rounds of each task and each thread; there are four on each side. Like the numbers below, it
/// is a multiple of the number of turns.
const ROUNDS: u32 = 300;

/// The rounds on deployments other than a single server, for all names together.
const ROUNDS_ELSEWHERE: u32 = 126;

/// The rounds without a common lock.
const ROUNDS_APART: u32 = 99;

pub(crate) async fn exclude_each_other(section: Section, servers: &Deployment) {
    let clients = Clients::start(servers, LEASE).await;
    let seen = contend_together(section, servers, &clients).await;
    clients.close().await;
    let holds_a_change = match section {
        Section::Fair => 8,
        // Tasks of one Rust client hand it over to each other for 50 ms at a time. Elsewhere, this
        // leaves two changes: one side comes back after the other.
        Section::Reentrant => 500,
        _ => 48,
    };
    let changes = seen.holds / holds_a_change;
    assert!(seen.switches >= changes, "the sides take turns: {seen:?}");
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
    let primaries = match seen.names {
        1 => String::new(),
        names => format!("{names} names, one on each primary; "),
    };
    let measured = format!(
        "{} holds in {:.1} s, half of each side; {primaries}{together}{} changes of side, \
         0 overlaps{lost}",
        seen.holds,
        seen.took.as_secs_f64(),
        seen.switches
    );
    record_on(servers.topology(), section, Promise::Exclusion, measured).await;
}

/// Makes these clients contend for a name on each primary; no two are inside together.
pub(crate) async fn contend_together(
    section: Section,
    servers: &Deployment,
    clients: &Clients,
) -> Seen {
    let names = servers.names("busy").await;
    let rounds = match servers.topology() {
        Topology::Server => ROUNDS,
        _ => ROUNDS_ELSEWHERE / names.len() as u32,
    };
    let places: Vec<_> = names.iter().map(|name| [name.as_str(); 2]).collect();
    let seen = contend(section, servers, clients, &places, rounds).await;
    assert_eq!((seen.overlaps, seen.lost), (0, 0), "overlaps, lost updates");
    seen
}

/// The control: the same without a lock between the sides.
pub(crate) async fn is_noticed(section: Section) {
    let servers = Deployment::server();
    let clients = Clients::start(&servers, LEASE).await;
    let seen = contend(section, &servers, &clients, &[["of_rust", "of_java"]], ROUNDS_APART).await;
    clients.close().await;
    assert!(seen.overlaps > 0, "{seen:?}");
    let mut measured = format!("{} overlaps", seen.overlaps);
    if !section.is_semaphore() {
        assert!(seen.lost > 0, "{seen:?}");
        measured += &format!(" and {} lost updates", seen.lost);
    }
    record(section, Promise::Detection, measured + &format!(" in {} holds", seen.holds)).await;
}

/// Two clients of each side.
pub(crate) struct Clients {
    pub(crate) rust: [Locks; 2],
    pub(crate) java: [Redisson; 2],
}

impl Clients {
    pub(crate) async fn start(servers: &Deployment, lease: Duration) -> Self {
        Self {
            rust: [servers.locks(lease).await, servers.locks(lease).await],
            java: [servers.redisson(lease).await, servers.redisson(lease).await],
        }
    }

    pub(crate) async fn close(self) {
        for client in self.rust {
            client.close().await.unwrap();
        }
        for client in self.java {
            client.close().await.unwrap();
        }
    }
}

/// The observations of all contenders together.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) holds: u64,
    pub(crate) names: usize,
    overlaps: u64,
    lost: u64,
    switches: u64,
    most: u64,
    took: Duration,
}

/// Makes both sides do the same work under the locks named for Rust and for Java, in `rounds`
/// rounds of each task and each thread.
async fn contend(
    section: Section,
    servers: &Deployment,
    clients: &Clients,
    places: &[[&str; 2]],
    rounds: u32,
) -> Seen {
    // Nobody begins before all are ready.
    let gate = servers.locks(LEASE).await;
    let mut closed = Vec::new();
    let mut contenders = JoinSet::new();
    for names in places {
        closed.extend(close(section, &gate, names).await);
        let start = Start { section, servers, keys: keys(names[0]), rounds };
        start.contenders(clients, *names, &mut contenders).await;
        all_wait(section, servers, names).await;
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
    gate.close().await.unwrap();

    let mut done = 0;
    for [name, _] in places {
        done += servers.query::<u64>(&["GET", &format!("{}:work", keys(name))]).await;
    }
    let (turns, limit) = section.turns();
    let alone = turns.iter().cycle().take(rounds as usize).filter(|(_, weight)| *weight == limit);
    let contenders = 8 * places.len() as u64;
    Seen {
        holds: contenders * u64::from(rounds),
        names: places.len(),
        overlaps,
        lost: contenders * alone.count() as u64 - done,
        switches,
        most,
        took,
    }
}

/// The keys of the work that the lock protects, on the primary of the lock.
fn keys(name: &str) -> String {
    format!("{{{name}}}")
}

/// Acquires the locks so that they exclude everybody.
async fn close(section: Section, gate: &Locks, names: &[&str; 2]) -> Vec<LockGuard> {
    let (kind, _) = section.turns().0[0];
    let mut closed = Vec::new();
    for name in different(names) {
        closed.push(kind.all_of_ours(gate, name).acquire().await.unwrap());
    }
    closed
}

/// Completes when all contenders wait for the locks.
async fn all_wait(section: Section, servers: &Deployment, names: &[&str; 2]) {
    let (kind, _) = section.turns().0[0];
    let names = different(names);
    let clients = 4 / names.len() as u32;
    for name in names {
        match kind {
            // Both tasks or threads of each client.
            Kind::Fair => queued(servers, name, 2 * clients).await,
            _ => listened_to(servers, kind, name, clients).await,
        }
    }
}

fn different<'a>([rust_name, java_name]: &[&'a str; 2]) -> Vec<&'a str> {
    if rust_name == java_name { vec![rust_name] } else { vec![rust_name, java_name] }
}

/// The contenders for a name.
struct Start<'a> {
    section: Section,
    servers: &'a Deployment,
    keys: String,
    rounds: u32,
}

impl Start<'_> {
    async fn contenders(
        self,
        clients: &Clients,
        [rust_name, java_name]: [&str; 2],
        contenders: &mut JoinSet<[u64; 3]>,
    ) {
        let Self { section, servers, keys, rounds } = self;
        let _: String = servers.query(&["SET", &format!("{keys}:work"), "0"]).await;
        let redis = redis::Client::open(servers.server_of(&keys).await.url()).unwrap();
        let (turns, limit) = section.turns();
        for number in 0..4_usize {
            // Not all do the same at the same time.
            let mut turns = turns.to_vec();
            let first = number % turns.len();
            turns.rotate_left(first);
            let rust = &clients.rust[number / 2];
            let ours = turns.iter().map(|(kind, weight)| (kind.ours(rust, rust_name), *weight));
            let connection = redis.get_multiplexed_async_connection().await.unwrap();
            contenders.spawn(work(ours.collect(), connection, keys.clone(), rounds, limit));
            let thread = clients.java[number / 2].thread();
            let (keys, java_name) = (keys.clone(), java_name.to_owned());
            contenders.spawn(async move {
                thread.contend(&turns, &java_name, &keys, rounds, limit).await.unwrap()
            });
        }
    }
}

/// The same as `Contention.java`. Returns how often the work was spoilt, how often the previous
/// hold was the other side's, and the maximum number inside together.
async fn work(
    turns: Vec<(Lock, u32)>,
    mut redis: MultiplexedConnection,
    keys: String,
    rounds: u32,
    limit: u32,
) -> [u64; 3] {
    let [inside, last, work] = ["inside", "last", "work"].map(|key| format!("{keys}:{key}"));
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
