//! Never two inside, under all circumstances: four clients of sixteen tasks on one name, on both
//! backends.

use lockcore::Locks;
use lockcore_memory::MemoryBackend;
use lockcore_testkit::RedisServer;

use crate::{
    critical::contend,
    support::{assert_nothing_left, connect},
};

const CLIENTS: usize = 4;
const TASKS: u64 = 16;
const ROUNDS: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let store = MemoryBackend::new();
    let clients: Vec<Locks> = (0..CLIENTS).map(|_| Locks::new(store.clone())).collect();
    let metrics = tokio::runtime::Handle::current().metrics();
    let entries = contend(&clients, |locks| locks.lock("contended"), TASKS, ROUNDS).await;
    assert!(entries > 64, "{entries}");
    crate::support::until("the last release", || async { store.names_in_use() == 0 }).await;
    drop(clients);
    crate::support::until("the tasks to end", || async { metrics.num_alive_tasks() == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locks::new(connect(&server).await));
    }
    let entries = contend(&clients, |locks| locks.lock("contended"), TASKS, ROUNDS).await;
    assert!(entries > 64, "{entries}");
    assert_nothing_left(&server).await;
}
