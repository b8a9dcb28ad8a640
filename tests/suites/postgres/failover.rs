//! A replica that takes over.

use std::time::{Duration, Instant};

use lockcore::{Locks, backend::Backend};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;
use tokio::task::JoinSet;

use crate::{
    support::{enters, name, request, soon, until},
    waiting::LONG,
};

/// The URL of both servers.
fn url_of(primary: &PostgresServer, replica: &PostgresServer) -> String {
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), replica.port());
    format!("postgresql://postgres@{hosts}/postgres")
}

async fn has_hold(server: &PostgresServer) -> bool {
    // The replica may not have the table yet.
    let holds = server.try_query("SELECT id FROM lockcore.hold").await;
    holds.is_ok_and(|holds| !holds.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_is_found_and_goes_on() {
    let mut primary = PostgresServer::start();
    let replica = primary.start_replica();
    let url = url_of(&primary, &replica);
    let backend = PostgresBackend::connect(&url).await.unwrap();
    let locks = Locks::builder(backend.clone()).retry_for(Duration::from_secs(20)).build().unwrap();
    assert_eq!(backend.intact_for(), Some(Duration::MAX));
    let guard = locks.lock("order").acquire().await.unwrap();
    let before = guard.token();
    until("its replication", || async { has_hold(&replica).await }).await;
    guard.release().await.unwrap();
    until("that of its release", || async { !has_hold(&replica).await }).await;
    primary.kill();
    replica.query("SELECT pg_promote()").await;
    let guard = soon("the lock", locks.lock("order").acquire()).await.unwrap();
    assert!(guard.token() > before, "{} after {before}", guard.token());
    assert!(backend.intact_for().unwrap() < Duration::MAX);
    let waiting = tokio::spawn({
        let lock = Locks::new(PostgresBackend::connect(&url).await.unwrap()).lock("order");
        async move { lock.acquire().await.unwrap() }
    });
    until("the waiter", || async { backend.channels_in_use() <= 1 }).await;
    guard.release().await.unwrap();
    drop(soon("the wake-up", waiting).await.unwrap());
}

/// The kernel accepts connections for a server that is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_host_that_is_frozen_keeps_nobody_from_the_next_one() {
    let primary = PostgresServer::start();
    let replica = primary.start_replica();
    let url = url_of(&primary, &replica);
    let builder = || PostgresBackend::builder(&url).connect_timeout(Duration::from_secs(2));
    let backend = builder().connect().await.unwrap();
    let locks = Locks::builder(backend).retry_for(Duration::from_secs(30)).build().unwrap();
    let before = locks.lock("order").acquire().await.unwrap();
    let token = before.token();
    until("its replication", || async { has_hold(&replica).await }).await;
    before.release().await.unwrap();
    until("that of its release", || async { !has_hold(&replica).await }).await;
    primary.freeze();
    replica.query("SELECT pg_promote()").await;
    let guard = soon("the lock", locks.lock("order").acquire()).await.unwrap();
    assert!(guard.token() > token, "{} after {token}", guard.token());
    guard.release().await.unwrap();
    // A new client finds it as well, and waits for the frozen one once.
    let began = Instant::now();
    let other = soon("a new client", builder().connect()).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
    enters(&other, &request("order", "a")).await;
    primary.thaw();
}

#[tokio::test]
async fn a_host_whose_name_has_no_address_keeps_nobody_from_the_next_one() {
    let server = PostgresServer::shared();
    let hosts = format!("nobody.invalid,{}", server.address());
    let url = format!("postgresql://postgres@{hosts}/postgres");
    let backend = soon("a connection", PostgresBackend::connect(url)).await.unwrap();
    enters(&backend, &request("named", "a")).await;
}

/// As an operator begins to switch over. The sessions stay up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_takes_no_writes_any_more_is_left_for_the_next_one() {
    let primary = PostgresServer::start();
    let replica = primary.start_replica();
    let backend = PostgresBackend::connect(url_of(&primary, &replica)).await.unwrap();
    let locks = Locks::builder(backend).retry_for(Duration::from_secs(30)).build().unwrap();
    locks.lock("order").acquire().await.unwrap().release().await.unwrap();
    until("the schema", || async { replica.try_query("TABLE lockcore.hold").await.is_ok() }).await;
    primary.query("ALTER SYSTEM SET default_transaction_read_only = on").await;
    primary.query("SELECT pg_reload_conf()").await;
    replica.query("SELECT pg_promote()").await;
    let mut number = 0;
    let mut is_there = async || {
        number += 1;
        let guard = locks.lock(format!("order:{number}")).acquire().await.unwrap();
        let is_there = has_hold(&replica).await;
        guard.release().await.unwrap();
        is_there
    };
    soon("the other host", async { while !is_there().await {} }).await;
}

/// Their requests change nothing, so the read-only server never refuses them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_leave_a_host_that_takes_no_writes_any_more() {
    const NAMES: usize = 8;
    let primary = PostgresServer::start();
    let replica = primary.start_replica();
    let url = url_of(&primary, &replica);
    let waiting = PostgresBackend::connect(&url).await.unwrap();
    let waiters = Locks::new(waiting.clone());
    let holders = Locks::builder(PostgresBackend::connect(&url).await.unwrap());
    let holders = holders.retry_for(Duration::from_secs(30)).build().unwrap();
    let (mut guards, mut tasks) = (Vec::new(), JoinSet::new());
    for number in 0..NAMES {
        let (latch, lock) = (format!("latch:{number}"), format!("order:{number}"));
        holders.latch(&*latch).set_count(1).await.unwrap();
        // The end of a shorter lease would wake its waiter.
        let lease = Duration::from_secs(600);
        guards.push(holders.lock(&*lock).lease(lease).acquire().await.unwrap());
        let (latch, lock) = (waiters.latch(latch), waiters.lock(lock));
        tasks.spawn(async move { latch.wait().await.unwrap() });
        tasks.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    until("the waiters", || async { waiting.channels_in_use() == 2 * NAMES }).await;
    until("the replication", || async {
        let held = replica.try_query("SELECT name FROM lockcore.hold").await;
        held.is_ok_and(|held| held.len() == NAMES)
    })
    .await;
    primary.query("ALTER SYSTEM SET default_transaction_read_only = on").await;
    primary.query("SELECT pg_reload_conf()").await;
    replica.query("SELECT pg_promote()").await;
    for (number, guard) in guards.into_iter().enumerate() {
        guard.release().await.unwrap();
        soon("the latch", async {
            while holders.latch(format!("latch:{number}")).count_down().await.is_err() {}
        })
        .await;
    }
    let all = tokio::time::timeout(3 * LONG, tasks.join_all()).await;
    assert!(all.is_ok(), "some wait for what is free at the other host");
}

/// Without a server that takes writes, the error says so, and nothing is granted by the replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_grants_nothing() {
    let mut primary = PostgresServer::start();
    let replica = primary.start_replica();
    let url = url_of(&primary, &replica);
    let backend = PostgresBackend::connect(url).await.unwrap();
    enters(&backend, &request("order", "a")).await;
    primary.kill();
    until("the loss", || async { backend.inspect(&name("order")).await.is_err() }).await;
    until("an attempt at the replica", || async {
        let error = backend.acquire(&request("order", "b")).await.unwrap_err();
        error.kind() == lockcore::BackendErrorKind::ReadOnly && !error.is_outcome_unknown()
    })
    .await;
}
