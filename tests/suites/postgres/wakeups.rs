//! Waiting costs the server almost nothing.

use std::time::Duration;

use lockcore::{
    Locks,
    backend::{Backend, HoldId, SubscribeRequest},
};
use lockcore_testkit::{PostgresServer, poll_times};
use tokio::task::JoinSet;

use crate::support::{connect, enters, name, request, soon, until};

const CLIENTS: usize = 4;
const WAITERS: usize = 250;

/// The number of transactions of the server. Its statistics are delayed.
async fn transactions(server: &PostgresServer) -> i64 {
    let sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database
        WHERE datname = 'postgres'";
    server.query(sql).await[0][0].parse().unwrap()
}

/// A thousand waiters of four clients, for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    // Every 5 s, clients check that the server is there, and delete what has ended, with five
    // connections per client. The server's own processes count as well.
    const KEEPING: i64 = 3 * (CLIENTS as i64) * (5 + 1) + 20;
    let server = PostgresServer::start_with(&["autovacuum=off"]);
    let holder = Locks::new(connect(&server).await);
    let guard = holder.lock("order").acquire().await.unwrap();
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        let backend = connect(&server).await;
        let locks = Locks::new(backend.clone());
        for _ in 0..WAITERS {
            let lock = locks.lock("order");
            waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        clients.push(backend);
    }
    until("all clients to wait", || async {
        clients.iter().all(|client| client.channels_in_use() == 1)
    })
    .await;
    // An idle process of the server reports what it has done within ten seconds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = transactions(&server).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let spent = transactions(&server).await - before;
    assert!(spent <= 100 + KEEPING, "{spent} transactions in 10 s");
    guard.release().await.unwrap();
    while let Some(waiter) = soon("everybody's turn", waiting.join_next()).await {
        waiter.unwrap();
    }
}

/// Subscriptions start and end without a pause, and the server is told of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeups_do_not_wait_for_other_subscriptions() {
    const COMING: usize = 4;
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let (holder, waiter) = (request("order", "holder"), HoldId::unique("waiter"));
    enters(&backend, &holder).await;
    let subscribe = SubscribeRequest::new(name("order"), waiter);
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    let mut coming = JoinSet::new();
    for task in 0..COMING {
        let backend = backend.clone();
        coming.spawn(async move {
            for number in 0_u64.. {
                let name = name(&format!("other:{task}:{number}"));
                let subscribe = SubscribeRequest::new(name, HoldId::unique("other"));
                // Whether it has taken effect by then or not.
                drop(poll_times(8, backend.subscribe(&subscribe)).await);
            }
        });
    }
    until("their coming", || async { backend.channels_in_use() > 1 }).await;
    backend.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
    coming.shutdown().await;
    drop(wakeups);
    until("the end of all", || async { backend.channels_in_use() == 0 }).await;
}
