//! Requests that were on their way for too long.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Locks,
    backend::{AcquireOutcome, Backend, ConditionId},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::{On, PostgresServer, Proxy};

use crate::support::{LEASE, connect, enters, is_held, name, request, soon};

/// The answer to an acquisition that was sent when the server's clock showed this.
async fn answer_to(server: &PostgresServer, asked: &str) -> String {
    let sql = format!(
        "SELECT answer FROM lockcore.acquire(
            'order', 'a', 'a', 1, 60000000, 1, NULL, NULL, 1, 0, 0, NULL, NULL, 'channel', {asked}
        )"
    );
    let answer = server.query(&sql).await.concat().concat();
    server.query("DELETE FROM lockcore.hold").await;
    answer
}

/// Has the server take some of the requests for late ones.
async fn take_for_late(server: &PostgresServer, rule: &str) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION lockcore.is_late(p_asked bigint, p_now timestamptz)
            RETURNS boolean LANGUAGE sql SET search_path = public AS $$ SELECT {rule} $$"
    );
    server.query(&sql).await;
}

/// Has the server take the requests for late ones that were sent more than a second ago, and none
/// that is sent from now on, however long it takes to arrive.
async fn take_earlier_ones_for_late(server: &PostgresServer) {
    let limit = server.query("SELECT lockcore.clock() - 1000000").await.concat().concat();
    take_for_late(server, &format!("p_asked < {limit}")).await;
}

#[tokio::test]
async fn a_request_is_late_before_its_mark_has_gone() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    for (asked, answer) in [
        ("lockcore.clock()", "0"),
        ("lockcore.clock() - 29000000", "0"),
        ("lockcore.clock() - 31000000", "6"),
        // A client whose clock is ahead takes its requests for younger ones than they are.
        ("lockcore.clock() + 500000", "0"),
        ("lockcore.clock() + 2000000", "6"),
        ("NULL", "6"),
    ] {
        assert_eq!(answer_to(&server, asked).await, answer, "{asked}");
    }
    backend.release(&request("order", "a").undo()).await.unwrap();
    let kept = "SELECT min(until) > clock_timestamp() + interval '59 seconds' FROM lockcore.undone";
    assert_eq!(server.query(kept).await, [["t"]]);
}

#[tokio::test]
async fn a_client_that_reckons_wrong_is_refused_once() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    server.query("CREATE SEQUENCE asked").await;
    take_for_late(&server, "nextval('asked') % 2 = 1").await;
    let is_late = |error: lockcore::BackendError| {
        assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
        assert!(!error.is_outcome_unknown() && error.is_retryable(), "{error}");
        assert!(error.to_string().contains("clock"), "{error}");
    };
    is_late(backend.acquire(&request("order", "a")).await.unwrap_err());
    assert!(!is_held(&backend, "order").await);
    enters(&backend, &request("order", "a")).await;

    let (latches, latch) = (backend.latches().unwrap(), name("latch"));
    is_late(latches.set_count(&latch, 2, "set").await.unwrap_err());
    assert!(latches.set_count(&latch, 2, "set").await.unwrap());
    is_late(latches.count_down(&latch, "once").await.unwrap_err());
    assert_eq!(latches.count_down(&latch, "once").await.unwrap(), 1);

    let conditions = backend.conditions().unwrap();
    let condition = ConditionId::new(name("order"), name("filled"));
    is_late(conditions.join(&condition, "waiter", LEASE).await.unwrap_err());
    conditions.join(&condition, "waiter", LEASE).await.unwrap();
    assert!(conditions.stay(&condition, "waiter", LEASE).await.unwrap());

    // The core asks again.
    let guard = Locks::new(backend).lock("other").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Clients repeat it for 50 s, and it may be 30 s on its way, by a clock that is 30 s wrong.
#[tokio::test]
async fn an_answer_of_a_latch_is_kept_for_longer_than_it_is_repeated() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let latches = backend.latches().unwrap();
    assert!(latches.set_count(&name("latch"), 2, "set").await.unwrap());
    let kept = "SELECT until > clock_timestamp() + interval '115 seconds' FROM lockcore.reply";
    assert_eq!(server.query(kept).await, [["t"]]);
}

/// As behind a pooler that keeps no order, and ends no session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_when_its_mark_has_gone_has_no_effect() {
    let server = PostgresServer::start();
    let proxy = Proxy::start_opaque(server.port()).await.unwrap();
    let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", proxy.port());
    let builder = PostgresBackend::builder(url).listen_url(server.url()).connections(1);
    let (backend, other) = (builder.connect().await.unwrap(), connect(&server).await);
    for forgets in [false, true] {
        let request = |hold: &str| request("order", &format!("{hold} {forgets}"));
        let [first, late, next] = ["first", "late", "next"].map(request);
        enters(&backend, &first).await;
        backend.release(&first.undo()).await.unwrap();
        proxy.freeze(On::All);
        let waited = tokio::time::timeout(Duration::from_millis(100), backend.acquire(&late)).await;
        assert!(waited.is_err(), "it was not withheld: {waited:?}");
        proxy.abandon();
        crate::support::until("the undo", || async { backend.release(&late.undo()).await.is_ok() })
            .await;
        if forgets {
            // Instead of a minute, after which the mark goes.
            server.query("SELECT pg_sleep(2)").await;
            server.query("DELETE FROM lockcore.undone").await;
            take_earlier_ones_for_late(&server).await;
        }
        soon("the delivery", proxy.deliver()).await;
        let outcome = other.acquire(&next).await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Acquired { .. }), "it was in: {outcome:?}");
        other.release(&next.undo()).await.unwrap();
    }
}

/// A mark would keep out later requests to grow. What is late says so itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_does_not_make_a_hold_grow_again() {
    let server = PostgresServer::start();
    let proxy = Proxy::start_opaque(server.port()).await.unwrap();
    let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", proxy.port());
    let builder = PostgresBackend::builder(url).listen_url(server.url()).connections(1);
    let backend = builder.connect().await.unwrap();
    let hold = request("order", "hold");
    enters(&backend, &hold).await;
    let nested = hold.clone().count(2);
    proxy.freeze(On::All);
    let waited = tokio::time::timeout(Duration::from_millis(100), backend.acquire(&nested)).await;
    assert!(waited.is_err(), "it was not withheld: {waited:?}");
    proxy.abandon();
    crate::support::until("the undo", || async {
        backend.release(&hold.undo().remaining(1)).await.is_ok()
    })
    .await;
    server.query("SELECT pg_sleep(2)").await;
    take_earlier_ones_for_late(&server).await;
    soon("the delivery", proxy.deliver()).await;
    assert_eq!(server.query("SELECT count FROM lockcore.hold").await, [["1"]]);
}

#[tokio::test]
async fn a_repetition_of_the_last_count_down_is_answered_whatever_the_name_is_used_for() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let latches = backend.latches().unwrap();
    assert!(latches.set_count(&name("latch"), 1, "set").await.unwrap());
    assert_eq!(latches.count_down(&name("latch"), "once").await.unwrap(), 0);
    enters(&backend, &request("latch", "a")).await;
    assert_eq!(latches.count_down(&name("latch"), "once").await.unwrap(), 0);
    let error = latches.count_down(&name("latch"), "twice").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
}
