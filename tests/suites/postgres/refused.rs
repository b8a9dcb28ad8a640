//! Servers that refuse new connections: they have too many, or the role may not log in any more.

use std::time::Duration;

use lockcore::{BackendErrorKind, Locks, backend::Backend};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;
use tokio_postgres::NoTls;

use crate::support::{is_held, name, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_refuses_newcomers_only() {
    let server = PostgresServer::start_with(&["max_connections=12"]);
    let builder = PostgresBackend::builder(server.url()).connections(1);
    let backend = builder.clone().connect().await.unwrap();
    let mut others = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&server.url(), NoTls).await {
        tokio::spawn(connection);
        others.push(client);
    }
    let error = soon("an answer", builder.clone().connect()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    let said = error.to_string();
    assert!(said.contains(&server.address()) && said.contains("max_connections"), "{said}");

    let guard = Locks::new(backend).lock("order").acquire().await.unwrap();
    guard.release().await.unwrap();
    drop(others);
    until("room", || async { builder.clone().connect().await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_log_in_keeps_its_holds_until_they_end() {
    let server = PostgresServer::start();
    server.query("CREATE ROLE shop LOGIN PASSWORD 'first'").await;
    server.query("GRANT ALL ON DATABASE postgres TO shop").await;
    let backend = PostgresBackend::connect(server.url_of("shop", "first")).await.unwrap();
    let locks = Locks::builder(backend.clone()).lease(Duration::from_secs(60)).build().unwrap();
    for (forbid, allow, said) in [
        ("PASSWORD 'second'", "PASSWORD 'first'", "password authentication failed"),
        ("NOLOGIN", "LOGIN", "not permitted to log in"),
    ] {
        let guard = locks.lock("order").acquire().await.unwrap();
        server.query(&format!("ALTER ROLE shop {forbid}")).await;
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'";
        server.query(kill).await;
        let asking = async || backend.inspect(&name("order")).await;
        let is_auth = |error: &lockcore::BackendError| error.kind() == BackendErrorKind::Auth;
        until("a refusal", || async { asking().await.is_err_and(|error| is_auth(&error)) }).await;
        let error = asking().await.unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(&server.address()), "{error}");
        assert!(guard.is_held(), "its lease has not ended");
        server.query(&format!("ALTER ROLE shop {allow}")).await;
        until("a connection", || async { backend.inspect(&name("order")).await.is_ok() }).await;
        assert!(is_held(&backend, "order").await);
        guard.release().await.unwrap();
    }
}
