//! Error messages: where, why, and what to do. Never a password.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind, Locks, backend::Backend};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

use crate::{
    proxy::PostgresProxy,
    shown::shown,
    support::{connect, enters, is_held, name, request, session, soon, until},
};

const PASSWORD: &str = "hunter2-the-secret";

/// Shows that the attempt to connect fails, has no effect, and shows no password.
async fn fails(url: &str) -> BackendError {
    let error = soon("an answer", PostgresBackend::connect(url)).await.unwrap_err();
    assert!(!shown(&error).contains(PASSWORD), "{}", shown(&error));
    assert!(!error.is_outcome_unknown(), "{error}");
    error
}

async fn role(server: &PostgresServer, role: &str) {
    server.query(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await;
}

#[tokio::test]
async fn each_host_is_named_with_what_it_failed_of_and_the_advice_comes_once() {
    let error = fails("postgresql://u@127.0.0.1:1,nobody.invalid:2/postgres").await;
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    let said = error.to_string();
    assert!(said.contains("127.0.0.1:1:") && said.contains("nobody.invalid"), "{said}");
    assert_eq!(said.matches("check that the server is up").count(), 1, "{said}");
}

#[tokio::test]
async fn a_wrong_password_is_said_to_be_one() {
    let server = PostgresServer::start();
    role(&server, "shop").await;
    let error = fails(&server.url_of("shop", "wrong-hunter2-the-secret")).await;
    assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
    let text = error.to_string();
    assert!(text.contains(&server.address()) && text.contains("password"), "{text}");
}

#[tokio::test]
async fn an_unknown_database_is_named() {
    let server = PostgresServer::start();
    let url = format!("postgresql://postgres@{}/shop", server.address());
    let error = fails(&url).await;
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("\"shop\""), "{error}");
}

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    let mut server = PostgresServer::start();
    server.kill();
    let error = fails(&server.url_of("shop", PASSWORD)).await;
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_waited_for_no_longer_than_allowed() {
    let server = PostgresServer::start();
    server.freeze();
    let builder = PostgresBackend::builder(server.url_of("shop", PASSWORD));
    let builder = builder.connect_timeout(Duration::from_millis(200));
    let error = soon("an answer", builder.connect()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    server.thaw();
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let server = PostgresServer::start();
    role(&server, "shop").await;
    let url = server.url_of("shop", PASSWORD);
    let error = fails(&url).await;
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("schema `lockcore`"), "{error}");

    // The schema exists, and the role must not create anything in it.
    server.query("CREATE SCHEMA lockcore; GRANT USAGE ON SCHEMA lockcore TO shop").await;
    let error = fails(&url).await;
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("CREATE on the schema"), "{error}");
    server.query("DROP SCHEMA lockcore").await;

    // The schema exists, but the role must not use it.
    drop(connect(&server).await);
    let error = fails(&url).await;
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("USAGE on the schema"), "{error}");

    server.query("GRANT USAGE ON SCHEMA lockcore TO shop").await;
    server.query("GRANT ALL ON ALL TABLES IN SCHEMA lockcore TO shop").await;
    server.query("GRANT ALL ON ALL SEQUENCES IN SCHEMA lockcore TO shop").await;
    let backend = PostgresBackend::connect(&url).await.unwrap();
    enters(&backend, &request("order", "a")).await;
}

#[tokio::test]
async fn no_password_is_shown_by_any_debug_output() {
    let server = PostgresServer::start();
    role(&server, "shop").await;
    server.query("GRANT ALL ON DATABASE postgres TO shop").await;
    let builder = PostgresBackend::builder(server.url_of("shop", PASSWORD));
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let backend = builder.connect().await.unwrap();
    let text = format!("{backend:?}");
    assert!(!text.contains(PASSWORD) && text.contains(&server.address()), "{text}");
}

#[tokio::test]
async fn a_url_that_is_none_is_refused_without_showing_it() {
    for url in [
        format!("postgresql://shop:{PASSWORD}@:port/db"),
        format!("postgresql://shop:{PASSWORD}@host/db?{PASSWORD}=1"),
        format!("host=a password={PASSWORD} port=x"),
        format!("password={PASSWORD}"),
        PASSWORD.to_owned(),
    ] {
        let error = fails(&url).await;
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{url}: {error}");
    }
}

#[tokio::test]
async fn settings_out_of_range_are_refused() {
    let server = PostgresServer::shared();
    let builder = || PostgresBackend::builder(server.url());
    for builder in [
        builder().connections(0),
        builder().connections(65),
        builder().schema("a b"),
        builder().response_timeout(Duration::ZERO),
        builder().connect_timeout(Duration::from_secs(61)),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let server = PostgresServer::start();
    let replica = server.start_replica();
    let error = fails(&replica.url()).await;
    assert_eq!(error.kind(), BackendErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains(&replica.address()), "{error}");
}

#[tokio::test]
async fn a_role_whose_transactions_are_read_only_is_not_said_to_meet_a_replica() {
    let server = PostgresServer::start();
    role(&server, "shop").await;
    server.query("ALTER ROLE shop SET default_transaction_read_only = on").await;
    let error = fails(&server.url_of("shop", PASSWORD)).await;
    assert_eq!(error.kind(), BackendErrorKind::ReadOnly, "{error}");
    let said = error.to_string();
    assert!(said.contains("default_transaction_read_only"), "{said}");
    assert!(said.contains(&server.address()) && !said.contains("replica"), "{said}");
}

#[tokio::test]
async fn another_isolation_level_is_refused_without_effect() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    server
        .query("ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'")
        .await;
    // New sessions have it.
    let (ended, order) = (sessions(&server).await, request("order", "a"));
    server
        .query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        )
        .await;
    until("other sessions", async || {
        let all = sessions(&server).await;
        all.len() >= ended.len() && all.iter().all(|session| !ended.contains(session))
    })
    .await;
    let error = backend.acquire(&order).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(!error.is_outcome_unknown() && error.to_string().contains("READ COMMITTED"), "{error}");
    assert!(!is_held(&backend, "order").await);
    let diagnosis = backend.diagnose().await.unwrap();
    assert!(diagnosis.findings().iter().any(|found| found.id() == "isolation"), "{diagnosis:?}");
}

/// With a schema and without one.
#[tokio::test]
async fn nobody_connects_in_another_isolation_level() {
    let server = PostgresServer::start();
    for level in ["repeatable read", "serializable"] {
        for has_schema in [false, true] {
            let reset = "ALTER DATABASE postgres RESET default_transaction_isolation";
            if has_schema {
                server.query(reset).await;
                drop(connect(&server).await);
            } else {
                server.query("DROP SCHEMA IF EXISTS lockcore CASCADE").await;
            }
            let set = "ALTER DATABASE postgres SET default_transaction_isolation =";
            server.query(&format!("{set} '{level}'")).await;
            let error = PostgresBackend::connect(server.url()).await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
            for part in [server.address().as_str(), level, "default_transaction_isolation"] {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
        }
    }
}

/// The processes of the sessions of clients of locks.
async fn sessions(server: &PostgresServer) -> Vec<Vec<String>> {
    server.query("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lockcore %'").await
}

#[tokio::test]
async fn a_name_that_another_transaction_is_busy_with_is_not_waited_for_without_end() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let busy = session(&server).await;
    busy.batch_execute("BEGIN; SELECT lockcore.enter('order')").await.unwrap();
    let error = soon("an answer", backend.acquire(&request("order", "a"))).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    busy.batch_execute("ROLLBACK").await.unwrap();
    assert!(!is_held(&backend, "order").await);
}

/// The server reports an error of each of these classes, as it would itself.
#[tokio::test]
async fn errors_of_the_server_say_whether_the_request_was_carried_out() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    for (code, is_unknown) in [
        ("08006", true),
        ("57P05", true),
        ("58030", true),
        ("XX000", true),
        ("53200", false),
        ("53100", false),
        ("40P01", false),
    ] {
        let raise = format!(
            "CREATE OR REPLACE FUNCTION lockcore.enter(p_name text) RETURNS timestamptz
                LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '{code}'; END $$"
        );
        server.query(&raise).await;
        let error = backend.acquire(&request("order", "a")).await.unwrap_err();
        assert_eq!(error.is_outcome_unknown(), is_unknown, "{code}: {error}");
        assert_eq!(error.is_retryable(), code != "XX000", "{code}: {error}");
    }
}

/// As after a pooler has changed the session, or `DISCARD ALL` was run in it.
#[tokio::test]
async fn a_session_that_lacks_what_was_prepared_is_replaced() {
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).connections(1).connect().await.unwrap();
    server
        .query(
            "CREATE OR REPLACE FUNCTION lockcore.raise_token(p_name text, p_token bigint)
                RETURNS void LANGUAGE sql AS $$ DEALLOCATE ALL $$",
        )
        .await;
    backend.raise_token(&name("order"), 1.into()).await.unwrap();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    until("another session", || async { backend.acquire(&request("order", "b")).await.is_ok() })
        .await;
}

#[tokio::test]
async fn a_schema_that_was_dropped_is_named() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    server.query("DROP SCHEMA lockcore CASCADE").await;
    let error = Locks::new(backend).lock("order:42").acquire().await.unwrap_err().to_string();
    assert!(error.contains("order:42") && error.contains(&server.address()), "{error}");
    assert!(error.contains("the schema is not there"), "{error}");
}

#[tokio::test]
async fn a_pooler_that_swallows_wakeups_is_found_out() {
    let server = PostgresServer::start();
    let pooler = PostgresProxy::before(&server).await;
    pooler.swallow_notifications(true);
    let builder = PostgresBackend::builder(pooler.url()).response_timeout(Duration::from_secs(2));
    let error = soon("an answer", builder.clone().connect()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("listen_url"), "{error}");

    let backend = builder.listen_url(server.url()).connect().await.unwrap();
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("order").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = Locks::new(backend.clone()).lock("order");
        async move { lock.acquire().await.unwrap() }
    });
    until("a waiter", || async { backend.channels_in_use() == 1 }).await;
    guard.release().await.unwrap();
    drop(soon("the wake-up", waiting).await.unwrap());
}

#[tokio::test]
async fn a_listen_url_of_another_database_is_found_out() {
    let server = PostgresServer::start();
    server.query("CREATE DATABASE other").await;
    let other = format!("postgresql://postgres@{}/other", server.address());
    let builder = PostgresBackend::builder(server.url()).response_timeout(Duration::from_secs(2));
    let error = soon("an answer", builder.listen_url(other).connect()).await.unwrap_err();
    assert!(error.to_string().contains("of the same database"), "{error}");
}

#[tokio::test]
async fn tls_that_the_server_lacks_is_not_gone_without() {
    let server = PostgresServer::shared();
    let error = fails(&format!("{}?sslmode=require", server.url())).await;
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn names_of_any_characters_are_kept() {
    let server = PostgresServer::shared();
    let backend = connect(&server).await;
    for lock in ["'; DROP SCHEMA lockcore; --", "$1", "a\u{7f}", "ÄÖ😀", &"x".repeat(512)] {
        let request = request(lock, "a");
        enters(&backend, &request).await;
        assert!(is_held(&backend, lock).await);
        backend.release(&request.release()).await.unwrap();
    }
    assert!(!is_held(&backend, name("$1").as_str()).await);
}
