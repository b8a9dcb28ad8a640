//! Tokens that are checked in the transaction that writes the data.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, FencingToken, LockName, Mode,
    backend::{AcquireRequest, Backend, ReleaseOutcome, SubscribeRequest, Wakeup},
};
use lockcore_postgres::{Fence, PostgresBackend, is_stale_token};
use lockcore_testkit::PostgresServer;
use tokio_postgres::{Client, IsolationLevel};

use crate::support::{LEASE, WAITING, connect, enters, name, request, session, soon, until};

fn fence() -> (Fence, LockName) {
    (Fence::new("lockcore").unwrap(), name("account"))
}

/// Writes the data that the lock protects, with a token.
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

/// A hold with several tokens, one for each of several tasks of one client.
async fn tokens(server: &PostgresServer) -> [FencingToken; 2] {
    let backend = connect(server).await;
    let first = enters(&backend, &request("account", "holder").tokens(2)).await;
    [first, FencingToken::from(u64::from(first) + 1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_the_same_time_the_second_waits_for_the_first() {
    let server = server().await;
    let [old, new] = tokens(&server).await;
    let (fence, name) = fence();
    let (mut first, mut second) = (session(&server).await, session(&server).await);
    let newer = first.transaction().await.unwrap();
    fence.check(&newer, &name, new).await.unwrap();
    let older = tokio::spawn(async move { writes(&mut second, old).await });
    until("the wait", || async { !server.query(WAITING).await.is_empty() }).await;
    newer.commit().await.unwrap();
    let error = soon("the older one", older).await.unwrap().unwrap_err();
    assert!(is_stale_token(&error), "{error}");
}

#[tokio::test]
async fn a_check_that_was_rolled_back_turns_nobody_away() {
    let server = server().await;
    let [old, new] = tokens(&server).await;
    let (fence, name) = fence();
    let mut client = session(&server).await;
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, new).await.unwrap();
    transaction.rollback().await.unwrap();
    writes(&mut client, old).await.unwrap();
}

/// Acquires and releases, and checks nothing.
async fn comes_and_goes(backend: &PostgresBackend, request: &AcquireRequest) {
    enters(backend, request).await;
    backend.release(&request.release()).await.unwrap();
}

#[tokio::test]
async fn a_later_holder_is_remembered_although_it_checked_nothing() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write, Mode::Read] {
        let writer = match mode {
            Mode::Read => Mode::Write,
            mode => mode,
        };
        let stalled = request("account", "stalled").mode(writer);
        let old = enters(&backend, &stalled).await;
        writes(&mut client, old).await.unwrap();
        backend.release(&stalled.release()).await.unwrap();
        writes(&mut client, old).await.unwrap();
        comes_and_goes(&backend, &request("account", "other").mode(mode)).await;
        let error = writes(&mut client, old).await.unwrap_err();
        assert!(is_stale_token(&error), "{mode}: {error}");
    }
}

#[tokio::test]
async fn a_direct_grant_is_remembered_too() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let fair = |hold| request("account", hold).mode(Mode::Fair).queue(Some(LEASE));
    let (stalled, waiter) = (fair("stalled"), fair("waiter").direct_grant(Some(1)));
    let old = enters(&backend, &stalled).await;
    writes(&mut client, old).await.unwrap();
    assert!(backend.acquire(&waiter).await.unwrap().token().is_none());
    backend.release(&stalled.release()).await.unwrap();
    backend.release(&waiter.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "{error}");
}

/// The later hold was not recorded, because nothing had been fenced yet.
#[tokio::test]
async fn the_first_check_of_a_name_needs_a_hold() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let stalled = request("account", "stalled");
    let old = enters(&backend, &stalled).await;
    backend.release(&stalled.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "its hold has ended: {error}");
    comes_and_goes(&backend, &request("account", "other")).await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "somebody else has come and gone: {error}");
    let held = enters(&backend, &request("account", "third")).await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "somebody else holds it: {error}");
    writes(&mut client, held).await.unwrap();
}

/// The data that such a transaction reads may be too old for the check.
#[tokio::test]
async fn another_isolation_level_is_refused() {
    let server = server().await;
    let token = enters(&connect(&server).await, &request("account", "holder")).await;
    let (fence, name) = fence();
    let mut client = session(&server).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        let error = fence.check(&transaction, &name, token).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "LC002", "{error}");
        assert!(error.as_db_error().unwrap().message().contains("READ COMMITTED"), "{error}");
    }
}

/// Between the check and the commit the lock cannot be taken over, even if nobody else has ever
/// checked the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_waits_for_the_fenced_transaction() {
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write, Mode::Read] {
        let server = server().await;
        let backend = connect(&server).await;
        let writer = if mode == Mode::Read { Mode::Write } else { mode };
        let holder = request("account", "holder").mode(writer);
        let token = enters(&backend, &holder).await;
        let ((fence, name), mut client) = (fence(), session(&server).await);
        let transaction = client.transaction().await.unwrap();
        fence.check(&transaction, &name, token).await.unwrap();
        backend.release(&holder.release()).await.unwrap();

        let other = request("account", "other").mode(mode);
        let error = soon("the end of its patience", backend.acquire(&other)).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
        let waiting = tokio::spawn({
            let (backend, other) = (backend.clone(), other.clone());
            async move { enters(&backend, &other).await }
        });
        until("its wait", || async {
            let waiting = "SELECT pid FROM pg_locks WHERE classid = 1819239277 AND NOT granted";
            !server.query(waiting).await.is_empty()
        })
        .await;
        transaction.commit().await.unwrap();
        assert!(soon("the grant", waiting).await.unwrap() > token);
        let error = writes(&mut client, token).await.unwrap_err();
        assert!(is_stale_token(&error), "{mode}: {error}");
    }
}

/// Other requests wait behind a request on its connection, also those that renew.
#[tokio::test]
async fn all_waits_of_a_request_together_take_2_s() {
    let server = server().await;
    drop(connect(&server).await);
    let limit_after = async |passed: &str| {
        let mut client = session(&server).await;
        let transaction = client.transaction().await.unwrap();
        let limit = format!("SELECT pg_sleep({passed}), lockcore.limit_wait()");
        transaction.batch_execute(&limit).await.unwrap();
        let limit = "SELECT setting::integer FROM pg_settings WHERE name = 'lock_timeout'";
        transaction.query_one(limit, &[]).await.unwrap().get::<_, i32>(0)
    };
    assert!((1..=2_000).contains(&limit_after("0").await));
    assert!((1..=1_500).contains(&limit_after("0.5").await));
    assert_eq!(limit_after("2.1").await, 1, "0 would be no limit");
}

#[tokio::test]
async fn each_wait_of_a_request_is_limited() {
    let server = server().await;
    drop(connect(&server).await);
    let mut blocking = session(&server).await;
    // The note of a smaller one would be deleted.
    blocking.batch_execute("SELECT lockcore.note_token('order', 9000000000000000)").await.unwrap();
    let sequence = r#"SELECT pg_advisory_xact_lock(1819239276, hashtext('"lockcore".token'))"#;
    let row = "SELECT FROM lockcore.proposed WHERE name = 'order' FOR UPDATE";
    for (blocked, call) in [
        (sequence, "draw_tokens(1)"),
        (sequence, "raise_tokens(9000000000000000)"),
        (row, "tokens_of('order', NULL, 1)"),
        (row, "note_token('order', 2)"),
    ] {
        let transaction = blocking.transaction().await.unwrap();
        transaction.batch_execute(blocked).await.unwrap();
        // Without a limit of its own, this session would wait for ever.
        let call = format!("SELECT lockcore.{call}");
        let waiting = session(&server).await;
        let error = soon("the limit", waiting.batch_execute(&call)).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "55P03", "{call}: {error}");
        transaction.rollback().await.unwrap();
    }
}

/// The transaction may belong to the owner that releases.
#[tokio::test]
async fn a_release_does_not_wait_for_a_fenced_transaction() {
    let server = server().await;
    let backend = connect(&server).await;
    let fair = |hold| request("account", hold).mode(Mode::Fair).queue(Some(LEASE));
    let (holder, waiter) = (fair("holder"), fair("waiter").direct_grant(Some(1)));
    let token = enters(&backend, &holder).await;
    assert!(backend.acquire(&waiter).await.unwrap().token().is_none());
    let subscribe = SubscribeRequest::new(name("account"), waiter.hold.clone()).mode(Mode::Fair);
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    let ((fence, name), mut client) = (fence(), session(&server).await);
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, token).await.unwrap();
    let released = backend.release(&holder.release()).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    assert_eq!(soon("the wake-up", wakeups.woken()).await, Wakeup::Changed);
    transaction.commit().await.unwrap();
    assert!(enters(&backend, &waiter).await > token);
}
