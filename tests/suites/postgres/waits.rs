//! No request waits for another session for longer than its limit.

use std::time::{Duration, Instant};

use lockcore::{
    BackendErrorKind, Mode,
    backend::{Backend, Start},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

use crate::support::{connect, name, request, session};

/// Another session keeps all tables from everybody, as some changes of a table do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_is_not_waited_for_without_end() {
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).response_timeout(Duration::from_secs(60));
    let backend = backend.connections(16).connect().await.unwrap();
    let busy = session(&server).await;
    busy.batch_execute(
        "BEGIN; LOCK TABLE lockcore.hold, lockcore.place, lockcore.client, lockcore.reply",
    )
    .await
    .unwrap();
    let (latches, directory) = (backend.latches().unwrap(), backend.directory().unwrap());
    let asked = Instant::now();
    let names: Vec<_> = (0..6).map(|number| name(&format!("name {number}"))).collect();
    let (exclusive, fair) = (request("a", "a"), request("b", "b").mode(Mode::Fair));
    let errors = tokio::time::timeout(Duration::from_secs(10), async {
        tokio::join!(
            async { backend.acquire(&exclusive).await.unwrap_err() },
            async { backend.acquire(&fair).await.unwrap_err() },
            async { backend.inspect(&names[0]).await.unwrap_err() },
            async { latches.count(&names[1]).await.unwrap_err() },
            async { directory.names(&Start::Beginning).await.unwrap_err() },
            async { directory.clients(&Start::Beginning).await.unwrap_err() },
            async { directory.storage(&names[2], &[]).await.unwrap_err() },
        )
    });
    let errors = errors.await.expect("an answer within the limit");
    let errors = [errors.0, errors.1, errors.2, errors.3, errors.4, errors.5, errors.6];
    for error in errors {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable(), "{error}");
    }
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

/// Other requests wait behind it on its connection.
#[tokio::test]
async fn a_sweep_waits_for_a_moment_only() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    for table in ["swept", "hold", "reply", "proposed"] {
        let (busy, sweeping) = (session(&server).await, session(&server).await);
        let lock = format!("BEGIN; LOCK TABLE lockcore.{table}");
        busy.batch_execute(&lock).await.unwrap();
        let sweep = sweeping.batch_execute("SELECT lockcore.sweep(0, 10)");
        let error = tokio::time::timeout(Duration::from_millis(1_500), sweep).await;
        let error = error.expect("the end of the wait").unwrap_err();
        assert_eq!(error.code().unwrap().code(), "55P03", "{table}: {error}");
    }
}

/// A name that is waited for keeps the connection from answering for as long, and a connection that
/// does not answer in time is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_less_than_its_client_waits_for_the_answer() {
    let server = PostgresServer::start();
    // The server waits for two thirds of it. The rest is for a busy machine.
    let limit = Duration::from_millis(2_400);
    let builder = PostgresBackend::builder(server.url()).response_timeout(limit);
    let backend = builder.connections(1).connect().await.unwrap();
    let processes = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lockcore %'
        ORDER BY pid";
    let before = server.query(processes).await;
    let busy = session(&server).await;
    busy.batch_execute("BEGIN; SELECT lockcore.enter('order')").await.unwrap();
    for _ in 0..2 {
        let error = backend.acquire(&request("order", "a")).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    }
    assert_eq!(server.query(processes).await, before, "a connection was given up");
}
