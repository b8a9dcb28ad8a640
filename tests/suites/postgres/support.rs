//! What the suites share.

use std::{future::Future, time::Duration};

use lockcore::{
    FencingToken, LockName,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

/// Longer than anything here takes on a busy machine: a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(20);

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn connect(server: &PostgresServer) -> PostgresBackend {
    PostgresBackend::connect(server.url()).await.unwrap()
}

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn request(lock: &str, hold: &str) -> AcquireRequest {
    AcquireRequest::new(name(lock), HoldId::unique(hold), LEASE)
}

/// The hold is granted.
pub(crate) async fn enters(backend: &PostgresBackend, request: &AcquireRequest) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("refused: {outcome:?}"),
    }
}

pub(crate) async fn is_held(backend: &PostgresBackend, lock: &str) -> bool {
    backend.inspect(&name(lock)).await.unwrap().is_held()
}

/// Waits for what must happen soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// Asks the server until it gives the answer that is expected of it. It has no event for that.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// How many connections of clients of locks the server has.
pub(crate) async fn connections(server: &PostgresServer) -> usize {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lockcore %'";
    server.query(sql).await.len()
}

/// A session of somebody else at the server, which stays open.
pub(crate) async fn session(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
