//! A real pooler in transaction mode between the clients and the server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{BackendErrorKind, LockName, Locks};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::{Fixture, PgBouncer, PostgresServer};

use crate::{
    conformance::left_behind,
    critical::contend,
    exclusion::nothing_is_left,
    support::{is_held, soon, until},
};

/// A client whose requests go through the pooler.
async fn connect(server: &PostgresServer, pooler: &PgBouncer) -> PostgresBackend {
    let builder = PostgresBackend::builder(pooler.url()).listen_url(server.url());
    builder.connections(2).connect().await.unwrap()
}

/// The shared server, and the shared pooler in front of it.
struct Pooled {
    server: Arc<PostgresServer>,
    pooler: Arc<PgBouncer>,
    clients: Mutex<Vec<PostgresBackend>>,
}

impl Fixture for Pooled {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        let (server, pooler) = (PostgresServer::shared(), PgBouncer::shared());
        Self { server, pooler, clients: Mutex::default() }
    }

    async fn client(&self) -> PostgresBackend {
        let backend = connect(&self.server, &self.pooler).await;
        self.clients.lock().unwrap().push(backend.clone());
        backend
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let clients = self.clients.lock().unwrap().clone();
        left_behind(&self.server, "lockcore", &clients, name).await
    }
}

mod conformance {
    lockcore_testkit::conformance_tests!(
        super::Pooled,
        fair,
        read_write,
        permits,
        hand_over,
        direct_grant,
        proposed_tokens,
        latches,
        conditions,
        directory,
    );
}

#[tokio::test]
async fn a_missing_listen_url_is_named_and_nobody_goes_on_listening() {
    let server = PostgresServer::start();
    // All transactions are those of one session.
    let pooler = PgBouncer::before_with(&server, &["default_pool_size=1"]);
    let builder = PostgresBackend::builder(pooler.url()).connections(1);
    let builder = builder.response_timeout(Duration::from_millis(1_000));
    let error = soon("an answer", builder.connect()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("listen_url"), "{error}");

    let (client, connection) =
        tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let listening = client.simple_query("SELECT pg_listening_channels()").await.unwrap();
    let is_row = |message: &&_| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_));
    assert_eq!(listening.iter().filter(is_row).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlast_a_restart_of_the_pooler_and_waiters_go_on() {
    let server = PostgresServer::start();
    let mut pooler = PgBouncer::before(&server);
    let backend = connect(&server, &pooler).await;
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("order").acquire().await.unwrap();
    let token = guard.token();
    let other = connect(&server, &pooler).await;
    let waiting = tokio::spawn({
        let lock = Locks::new(other.clone()).lock("order");
        async move { lock.acquire().await }
    });
    until("a waiter", || async { other.channels_in_use() == 1 }).await;
    pooler.restart();
    assert!(guard.is_held());
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    until("the release", || async { !is_held(&backend, "order").await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_is_inside() {
    let server = PostgresServer::start();
    let pooler = PgBouncer::before(&server);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Locks::new(connect(&server, &pooler).await));
    }
    for lock in [|locks: &Locks| locks.lock("order"), |locks: &Locks| locks.fair_lock("turn")] {
        assert!(contend(&clients, lock, 4, 12).await > 64);
    }
    nothing_is_left(&server).await;
}
