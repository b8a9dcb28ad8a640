//! Never two inside: four clients of eight tasks on one name.

use std::time::Duration;

use lockcore::Locks;
use lockcore_testkit::PostgresServer;

use crate::{
    critical,
    load::Load,
    readers,
    support::{connect, until},
};

const CLIENTS: u64 = 4;
const TASKS: u64 = 8;
const ROUNDS: u64 = 12;

async fn clients_of(server: &PostgresServer) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locks::new(connect(server).await));
    }
    clients
}

pub(crate) async fn nothing_is_left(server: &PostgresServer) {
    until("the last release", || async {
        let left = "SELECT id FROM lockcore.hold UNION ALL SELECT id FROM lockcore.place";
        server.query(left).await.is_empty()
    })
    .await;
}

async fn contend(fair: bool) {
    let server = PostgresServer::start();
    let clients = clients_of(&server).await;
    let lock = match fair {
        true => |locks: &Locks| locks.fair_lock("contended"),
        false => |locks: &Locks| locks.lock("contended"),
    };
    let entries = critical::contend(&clients, lock, TASKS, ROUNDS).await;
    assert!(entries > 64, "{entries}");
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive() {
    contend(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair() {
    contend(true).await;
}

/// Readers share, and writers are alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_write() {
    let server = PostgresServer::start();
    readers::read_and_write(&clients_of(&server).await, TASKS as usize, ROUNDS).await;
    nothing_is_left(&server).await;
}

/// The server is killed and restarted, and connections are killed, while eight tasks work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_crashes_of_the_server() {
    let mut server = PostgresServer::start();
    let mut clients = Vec::new();
    for _ in 0..2 {
        // If a crash reverts a release, the hold stays until its lease ends.
        let builder = Locks::builder(connect(&server).await).lease(Duration::from_secs(2));
        clients.push(builder.retry_for(Duration::from_secs(15)).build().unwrap());
    }
    let load = Load::of(clients);
    for _ in 0..3 {
        load.goes_on().await;
        server.restart();
        load.goes_on().await;
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name LIKE 'lockcore %'";
        server.query(kill).await;
    }
    load.goes_on().await;
    load.ends().await;
}
