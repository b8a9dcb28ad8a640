//! Tokens that are checked in the transaction that writes the data.

use std::time::Duration;

use lockcore::{FencingToken, LockName, Mode, backend::Backend};
use lockcore_postgres::{Fence, is_stale_token};
use lockcore_testkit::PostgresServer;
use tokio_postgres::Client;

use crate::support::{connect, enters, name, request, session, soon, until};

fn fence() -> (Fence, LockName) {
    (Fence::new("lockcore").unwrap(), name("account"))
}

/// Writes what the lock protects, with a token.
async fn writes(client: &mut Client, token: FencingToken) -> Result<(), tokio_postgres::Error> {
    let (fence, name) = fence();
    let transaction = client.transaction().await?;
    fence.check(&transaction, &name, token).await?;
    let value = i64::try_from(u64::from(token)).unwrap();
    transaction.execute("INSERT INTO written (token) VALUES ($1)", &[&value]).await?;
    transaction.commit().await
}

async fn server() -> PostgresServer {
    let server = PostgresServer::start();
    server.query("CREATE TABLE written (number serial, token bigint)").await;
    server
}

#[tokio::test]
async fn a_writer_that_stalled_is_turned_away_as_soon_as_somebody_else_holds_the_lock() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let mut stalled = request("account", "stalled");
    stalled.lease = Duration::from_millis(50);
    let old = enters(&backend, &stalled).await;
    writes(&mut client, old).await.unwrap();
    let other = request("account", "other");
    until("the end of the lease", || async {
        backend.acquire(&other).await.unwrap().token().is_some()
    })
    .await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM written").await, [["1"]]);

    let new = enters(&backend, &other).await;
    writes(&mut client, new).await.unwrap();
    backend.release(&other.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "the lock is free, and the data is newer: {error}");
}

#[tokio::test]
async fn a_writer_with_a_reader_beside_it_is_not_turned_away() {
    let server = server().await;
    let backend = connect(&server).await;
    let write = request("account", "writer").mode(Mode::Write);
    let token = enters(&backend, &write).await;
    let read = request("account", "reader").mode(Mode::Read).within(Some(write.hold.clone()));
    assert!(enters(&backend, &read).await > token);
    writes(&mut session(&server).await, token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_the_same_time_the_second_waits_for_the_first() {
    let server = server().await;
    drop(connect(&server).await);
    let (fence, name) = fence();
    let (mut first, mut second) = (session(&server).await, session(&server).await);
    let newer = first.transaction().await.unwrap();
    fence.check(&newer, &name, FencingToken::from(2)).await.unwrap();
    let older = tokio::spawn(async move { writes(&mut second, FencingToken::from(1)).await });
    until("the wait", || async {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        !server.query(waiting).await.is_empty()
    })
    .await;
    newer.commit().await.unwrap();
    let error = soon("the older one", older).await.unwrap().unwrap_err();
    assert!(is_stale_token(&error), "{error}");
}

#[tokio::test]
async fn a_check_that_was_rolled_back_turns_nobody_away() {
    let server = server().await;
    drop(connect(&server).await);
    let (fence, name) = fence();
    let mut client = session(&server).await;
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, FencingToken::from(9)).await.unwrap();
    transaction.rollback().await.unwrap();
    writes(&mut client, FencingToken::from(1)).await.unwrap();
}
