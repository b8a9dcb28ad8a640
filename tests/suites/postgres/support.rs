//! Helpers shared by the suites.

use std::time::Duration;

use lockcore::{
    FencingToken, LockName,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

pub(crate) use crate::waiting::{soon, until};

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// The sessions that wait for another one.
pub(crate) const WAITING: &str = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

pub(crate) async fn connect(server: &PostgresServer) -> PostgresBackend {
    PostgresBackend::connect(server.url()).await.unwrap()
}

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn request(lock: &str, hold: &str) -> AcquireRequest {
    AcquireRequest::new(name(lock), HoldId::unique(hold), LEASE)
}

/// Shows that the hold is granted.
pub(crate) async fn enters(backend: &PostgresBackend, request: &AcquireRequest) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("refused: {outcome:?}"),
    }
}

pub(crate) async fn is_held(backend: &PostgresBackend, lock: &str) -> bool {
    backend.inspect(&name(lock)).await.unwrap().is_held()
}

/// The number of connections that clients of locks have to the server.
pub(crate) async fn connections(server: &PostgresServer) -> usize {
    sessions(server).await.len()
}

/// The processes of the sessions of backends.
pub(crate) async fn sessions(server: &PostgresServer) -> Vec<Vec<String>> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lockcore %'";
    server.query(sql).await
}

/// Another client's session at the server, which stays open.
pub(crate) async fn session(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
