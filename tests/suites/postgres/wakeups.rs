//! Waiting costs the server almost nothing.

use std::time::Duration;

use lockcore::{
    Locks, Mode,
    backend::{Backend, HoldId, SubscribeRequest},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::{PostgresServer, poll_times};
use tokio::task::JoinSet;

use crate::{
    proxy::PostgresProxy,
    support::{connect, enters, name, request, soon, until},
};

const CLIENTS: usize = 4;
const WAITERS: usize = 250;

/// What a client sends from time to time, whether anybody waits or not: it checks that the server
/// is there and that messages arrive, and deletes what has ended.
const KEEPING: [&str; 5] =
    ["transaction_read_only", "pg_notify", ".sweep(", ".raise_tokens_to_clock(", "UNLISTEN"];

/// Waits for `order`, which is held in this mode.
async fn wait(locks: Locks, mode: Mode) {
    let acquired = match mode {
        Mode::Exclusive => locks.lock("order").acquire().await.map(drop),
        _ => locks.semaphore("order", 1).acquire().await.map(drop),
    };
    panic!("somebody else holds it: {acquired:?}");
}

/// The number of statements that a thousand waiters of four clients send in ten seconds, apart from
/// those that keep the clients going. Each waiter for a fair lock asks every 1.7 s for its place.
async fn statements_of_waiters(mode: Mode) -> usize {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let (backend, holder) = (connect(&server).await, request("order", "holder").mode(mode));
    enters(&backend, &holder).await;
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        let client = PostgresBackend::connect(proxy.url()).await.unwrap();
        let locks = Locks::new(client.clone());
        for _ in 0..WAITERS {
            waiting.spawn(wait(locks.clone(), mode));
        }
        clients.push(client);
    }
    until("all clients to wait", || async {
        clients.iter().all(|client| client.channels_in_use() == 1)
    })
    .await;
    // Each waiter has asked once more since it is heard.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _ = proxy.take_statements();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let is_keeping = |statement: &str| KEEPING.iter().any(|part| statement.contains(part));
    let mut sent = proxy.take_statements();
    assert!(sent.iter().any(|statement| is_keeping(statement)), "nothing is counted: {sent:?}");
    sent.retain(|statement| !is_keeping(statement));
    assert!(waiting.try_join_next().is_none(), "somebody does not wait any more");
    waiting.shutdown().await;
    sent.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    let sent = statements_of_waiters(Mode::Exclusive).await;
    assert!(sent <= 100, "{sent} statements in 10 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_do_those_who_wait_for_a_permit() {
    let sent = statements_of_waiters(Mode::permits(1, 1)).await;
    assert!(sent <= 100, "{sent} statements in 10 s");
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
