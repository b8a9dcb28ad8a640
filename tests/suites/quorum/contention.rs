//! Four clients of eight tasks on one name: never two inside, and no update is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::Quorum;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fault, History, Op, PostgresServer, RedisServer};
use tokio::task::JoinSet;

use crate::{
    critical,
    waiting::{LONG, until},
};

const CLIENTS: usize = 4;
const TASKS: usize = 8;
const ROUNDS: u64 = 25;

/// The data that the lock protects, read and written in two steps.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    async fn add_one(&self) {
        let before = self.0.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.0.store(before + 1, Ordering::SeqCst);
    }
}

/// Makes the tasks of all clients take turns, and checks what they saw.
async fn contend(clients: Vec<Quorum>, hand_over: Duration) {
    let (history, counter) = (Arc::new(History::new()), Arc::new(Counter::default()));
    let mut tasks = JoinSet::new();
    let clients: Vec<_> = clients
        .into_iter()
        .map(|client| Locks::builder(client).hand_over(hand_over).build().unwrap())
        .collect();
    for (client, locks) in clients.iter().enumerate() {
        for task in 0..TASKS {
            let (lock, history, counter) = (locks.lock("a"), history.clone(), counter.clone());
            tasks.spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = lock.acquire().await.unwrap();
                    let inside = history.enter("a", format!("{client}:{task}"), guard.token());
                    counter.add_one().await;
                    inside.leave();
                    guard.release().await.unwrap();
                }
            });
        }
    }
    tokio::time::timeout(Duration::from_secs(120), tasks.join_all()).await.expect("they are stuck");
    history.check().unwrap();
    let visits = (CLIENTS * TASKS) as u64 * ROUNDS;
    assert_eq!(history.beliefs().len() as u64, visits);
    assert_eq!(counter.0.load(Ordering::SeqCst), visits, "updates were lost");
    for locks in clients {
        locks.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_memory() {
    let stores = [(); 3].map(|()| MemoryBackend::new());
    let clients = (0..CLIENTS).map(|_| Quorum::new(stores.clone()).unwrap());
    contend(clients.collect(), Duration::from_millis(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_hand_over_while_one_member_is_down() {
    let stores = [(); 3].map(|()| MemoryBackend::new());
    let clients = (0..CLIENTS).map(|_| {
        let (client, faults) = crate::client(&stores);
        let down = Fault::Refuse(BackendErrorKind::Connection);
        for op in [Op::Acquire, Op::Release, Op::Renew, Op::Subscribe] {
            faults[1].every(op, down);
        }
        client
    });
    contend(clients.collect(), Duration::ZERO).await;
}

/// Clients of `servers`, each with separate connections.
async fn clients_of(servers: &[RedisServer]) -> Vec<Quorum> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut members = Quorum::builder();
        for server in servers {
            members = members.member(RedisBackend::connect(server.url()).await.unwrap());
        }
        clients.push(members.build().unwrap());
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_servers() {
    let servers = [(); 3].map(|()| RedisServer::start());
    for hand_over in [Duration::from_millis(50), Duration::ZERO] {
        contend(clients_of(&servers).await, hand_over).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_five_servers() {
    let servers = [(); 5].map(|()| RedisServer::start());
    for hand_over in [Duration::from_millis(50), Duration::ZERO] {
        contend(clients_of(&servers).await, hand_over).await;
    }
}

/// Memory, Redis and PostgreSQL. The clients are in one process, so they can share the memory.
async fn clients_of_mixed(redis: &RedisServer, postgres: &PostgresServer) -> Vec<Quorum> {
    let (memory, mut clients) = (MemoryBackend::new(), Vec::new());
    for _ in 0..CLIENTS {
        let postgres = PostgresBackend::builder(postgres.url()).connections(1);
        let members = Quorum::builder()
            .member(memory.clone())
            .member(RedisBackend::connect(redis.url()).await.unwrap())
            .member(postgres.connect().await.unwrap())
            .member_timeout(Duration::from_secs(1));
        clients.push(members.build().unwrap());
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_members_of_three_kinds() {
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    for hand_over in [Duration::from_millis(50), Duration::ZERO] {
        contend(clients_of_mixed(&redis, &postgres).await, hand_over).await;
    }
}

/// Acquisitions of every kind, including some that are dropped half-way.
async fn visit_in_every_way(clients: Vec<Quorum>) {
    let patient = |client| Locks::builder(client).retry_for(LONG).build().unwrap();
    let clients: Vec<_> = clients.into_iter().map(patient).collect();
    let entries = critical::contend(&clients, |locks| locks.lock("a"), TASKS as u64, 7).await;
    // Four of the seven ways always get in.
    assert!(entries >= (CLIENTS * TASKS * 4) as u64, "{entries}");
    for locks in &clients {
        locks.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_every_way_on_five_servers() {
    let servers = [(); 5].map(|()| RedisServer::start());
    visit_in_every_way(clients_of(&servers).await).await;
    for server in &servers {
        until("the last release", async || {
            let held: Vec<String> = server.query(&["KEYS", "a"]).await;
            held.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_every_way_on_members_of_three_kinds() {
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    visit_in_every_way(clients_of_mixed(&redis, &postgres).await).await;
}

/// An undone request is repeated, even where an undo leaves a mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_postgresql() {
    let server = PostgresServer::start();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut members = Quorum::builder().member_timeout(Duration::from_secs(1));
        for schema in ["one", "two", "three"] {
            let store = PostgresBackend::builder(server.url()).schema(schema).connections(1);
            members = members.member(store.connect().await.unwrap());
        }
        clients.push(members.build().unwrap());
    }
    contend(clients, Duration::from_millis(5)).await;
}
