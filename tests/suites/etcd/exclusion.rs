//! Never two inside: four clients of eight tasks on one name, with and without faults.

use std::time::Duration;

use lockcore::Locks;
use lockcore_testkit::EtcdCluster;

use crate::{
    critical,
    load::Load,
    readers,
    support::{connect, keys, until},
};

const CLIENTS: u64 = 4;
const TASKS: u64 = 8;
const ROUNDS: u64 = 4;

async fn clients_of(cluster: &EtcdCluster) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locks::new(connect(cluster).await));
    }
    clients
}

async fn nothing_is_left(cluster: &EtcdCluster, clients: Vec<Locks>) {
    for locks in clients {
        // Its record would stay for a while otherwise.
        locks.close().await.unwrap();
    }
    let client = cluster.client().await;
    until("the last release", async || keys(&client).await.is_empty()).await;
}

async fn contend(fair: bool, members: usize) {
    let cluster = EtcdCluster::start(members);
    let clients = clients_of(&cluster).await;
    let lock = match fair {
        true => |locks: &Locks| locks.fair_lock("contended"),
        false => |locks: &Locks| locks.lock("contended"),
    };
    let entries = critical::contend(&clients, lock, TASKS, ROUNDS).await;
    assert!(entries > CLIENTS * TASKS, "{entries}");
    nothing_is_left(&cluster, clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive() {
    contend(false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_on_three_members() {
    contend(false, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair() {
    contend(true, 1).await;
}

/// Readers share, and writers are alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_write() {
    let cluster = EtcdCluster::start(1);
    let clients = clients_of(&cluster).await;
    readers::read_and_write(&clients, TASKS as usize, 7).await;
    nothing_is_left(&cluster, clients).await;
}

async fn load_on(cluster: &EtcdCluster) -> Load {
    let mut clients = Vec::new();
    for _ in 0..2 {
        // After a failed release, the hold stays until its lease ends.
        let builder = Locks::builder(connect(cluster).await).lease(Duration::from_secs(4));
        clients.push(builder.retry_for(Duration::from_secs(18)).build().unwrap());
    }
    Load::of(clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_leaders_are_killed() {
    let mut cluster = EtcdCluster::start(3);
    let load = load_on(&cluster).await;
    for _ in 0..4 {
        load.goes_on().await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        load.goes_on().await;
        cluster.restart(leader);
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_leaders_are_frozen_and_come_back() {
    let mut cluster = EtcdCluster::start(3);
    let load = load_on(&cluster).await;
    for _ in 0..3 {
        load.goes_on().await;
        let leader = cluster.leader().await;
        cluster.freeze(leader);
        load.goes_on().await;
        // The requests that were pending when it was stopped are carried out now.
        cluster.thaw(leader);
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_leader_moves() {
    let cluster = EtcdCluster::start(3);
    let load = load_on(&cluster).await;
    for round in 0..6 {
        load.goes_on().await;
        cluster.move_leader(round % cluster.len()).await;
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_members_are_killed_and_started_again() {
    let mut cluster = EtcdCluster::start(3);
    let load = load_on(&cluster).await;
    for _ in 0..2 {
        load.goes_on().await;
        cluster.restart_all(&[0, 1, 2]);
    }
    load.goes_on().await;
    load.ends().await;
}
