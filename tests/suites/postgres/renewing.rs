//! Renewals of many holds, one of which must wait.

use std::{
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Backend, RenewOutcome, RenewRequest},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

use crate::{
    proxy::PostgresProxy,
    support::{LEASE, WAITING, enters, request, session, soon, until},
};

/// Transactions that block the renewal of a name.
const BUSY: [&str; 2] = [
    "BEGIN; SELECT lockcore.enter('stuck')",
    "BEGIN; SELECT FROM lockcore.hold WHERE name = 'stuck' FOR UPDATE",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_stuck_keeps_no_other_from_being_renewed() {
    for busy in BUSY {
        let server = PostgresServer::start();
        let builder = PostgresBackend::builder(server.url()).connections(1);
        let backend = builder.connect().await.unwrap();
        let mut renewals = Vec::new();
        for name in ["a", "stuck", "b"] {
            let request = request(name, "holder");
            enters(&backend, &request).await;
            renewals.push(RenewRequest::new(request.name, request.hold, LEASE * 10));
        }
        renewals.push(RenewRequest::new(renewals[0].name.clone(), request("a", "no").hold, LEASE));
        let other = session(&server).await;
        other.batch_execute(busy).await.unwrap();
        let renewing = tokio::spawn({
            let (backend, renewals) = (backend.clone(), renewals.clone());
            async move { backend.renew(&renewals).await.unwrap() }
        });
        // While one waits, the others have been renewed.
        until("their renewal", || async {
            let renewed = "SELECT name FROM lockcore.hold
                WHERE until > clock_timestamp() + interval '5 minutes' ORDER BY name";
            server.query(renewed).await == [["a"], ["b"]]
        })
        .await;
        let outcomes = soon("the answers", renewing).await.unwrap();
        let [RenewOutcome::Renewed, stuck, RenewOutcome::Renewed, RenewOutcome::NotHeld] =
            &outcomes[..]
        else {
            panic!("{outcomes:?}")
        };
        let RenewOutcome::Failed(error) = stuck else { panic!("{stuck:?}") };
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(!error.is_outcome_unknown(), "{error}");

        // The renewal is late, but still succeeds.
        let renewing = tokio::spawn(async move { backend.renew(&renewals).await.unwrap() });
        until("the wait", || async { !server.query(WAITING).await.is_empty() }).await;
        other.batch_execute("COMMIT").await.unwrap();
        let outcomes = soon("the answers", renewing).await.unwrap();
        assert!(matches!(outcomes[1], RenewOutcome::Renewed), "{outcomes:?}");
    }
}

/// How long an answer may take. The server gives up on a name after 2 s: it would be the one to
/// answer if the time before did not count.
const TIMEOUT: Duration = Duration::from_millis(2_200);

/// A lease of which a quarter is less than that.
const SHORT: Duration = Duration::from_secs(8);

/// A part of the time for an answer.
const DELAY: Duration = Duration::from_millis(1_500);

async fn is_given_up(renewing: impl Future<Output = Result<Vec<RenewOutcome>, BackendError>>) {
    let outcomes = soon("the answers", renewing).await.unwrap();
    let [RenewOutcome::Failed(error)] = &outcomes[outcomes.len() - 1..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
}

/// The core waits for all of the renewals, and must know in time which ones to repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_takes_no_longer_than_one_answer_may() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let builder = PostgresBackend::builder(proxy.url()).connections(1).response_timeout(TIMEOUT);
    let backend = builder.connect().await.unwrap();
    let mut renewals = Vec::new();
    for name in ["a", "stuck"] {
        let request = request(name, "holder");
        enters(&backend, &request).await;
        renewals.push(RenewRequest::new(request.name, request.hold, SHORT));
    }
    let busy = session(&server).await;
    busy.batch_execute(BUSY[0]).await.unwrap();

    // The statement for all is slow, and the one for the name that is stuck comes after it.
    server.freeze();
    let renewing = tokio::spawn({
        let (backend, renewals) = (backend.clone(), renewals.clone());
        async move { backend.renew(&renewals).await }
    });
    tokio::time::sleep(DELAY).await;
    server.thaw();
    is_given_up(async { renewing.await.unwrap() }).await;

    // The connection is not up at first.
    server.freeze();
    proxy.cut();
    let renewing = tokio::spawn(async move {
        loop {
            let outcomes = backend.renew(&renewals[1..]).await;
            // It may begin before the loss of the connection is noticed.
            if !outcomes.as_ref().is_ok_and(|outcomes| has_lost_connection(&outcomes[0])) {
                return outcomes;
            }
        }
    });
    tokio::time::sleep(DELAY).await;
    server.thaw();
    is_given_up(async { renewing.await.unwrap() }).await;
}

fn has_lost_connection(outcome: &RenewOutcome) -> bool {
    matches!(outcome, RenewOutcome::Failed(error) if error.kind() == BackendErrorKind::Connection)
}

/// A renewal whose connection is killed while it waits at the server is answered over the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_goes_over_the_next_connection_when_one_is_killed() {
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).connections(1).connect().await.unwrap();
    let request = request("stuck", "holder");
    enters(&backend, &request).await;
    let renewals = [RenewRequest::new(request.name, request.hold, LEASE * 10)];
    let busy = session(&server).await;
    busy.batch_execute(BUSY[0]).await.unwrap();
    let renewing = tokio::spawn(async move { backend.renew(&renewals).await });
    until("the wait", || async { !server.query(WAITING).await.is_empty() }).await;
    let killed = format!("SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS waiting");
    server.query(&killed).await;
    until("the wait over another connection", || async { !server.query(WAITING).await.is_empty() })
        .await;
    busy.batch_execute("COMMIT").await.unwrap();
    let outcomes = soon("the answer", renewing).await.unwrap().unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
}

/// A backend with one connection, and the renewal of its hold of `held`.
async fn holder(url: String) -> (PostgresBackend, [RenewRequest; 1]) {
    let builder = PostgresBackend::builder(url).connections(1);
    let backend = builder.response_timeout(LEASE).connect().await.unwrap();
    let held = request("held", "holder");
    enters(&backend, &held).await;
    (backend, [RenewRequest::new(held.name, held.hold, LEASE * 10)])
}

/// Runs a statement before each entry of a name.
async fn before_entering(server: &PostgresServer, statement: &str) {
    server
        .query(&format!(
            "ALTER FUNCTION lockcore.enter(text) RENAME TO enter_silently;
             CREATE FUNCTION lockcore.enter(name text) RETURNS timestamptz
             LANGUAGE plpgsql SET search_path = public AS $$
             BEGIN
                 {statement};
                 RETURN lockcore.enter_silently(name);
             END $$"
        ))
        .await;
}

/// Cuts the connection, and freezes the server, so that the next one opens when it thaws. An attempt
/// that is refused would fail those who wait for it.
async fn until_reconnecting(
    server: &PostgresServer,
    proxy: &PostgresProxy,
    backend: &PostgresBackend,
) {
    server.freeze();
    proxy.cut();
    until("the loss", || async { !format!("{backend:?}").contains("\"up\"") }).await;
}

/// Whatever waits for the connection lets renewals go first, even if they come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_first_when_a_connection_is_open_again() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let (backend, renewals) = holder(proxy.url()).await;
    server.query("CREATE TABLE entered (place serial, name text)").await;
    before_entering(&server, "INSERT INTO entered (name) VALUES (name)").await;
    until_reconnecting(&server, &proxy, &backend).await;
    let acquiring: Vec<_> = (0..20)
        .map(|number| {
            let (backend, request) = (backend.clone(), request(&format!("{number}"), "waits"));
            tokio::spawn(async move { backend.acquire(&request).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let renewing = tokio::spawn({
        let backend = backend.clone();
        async move { backend.renew(&renewals).await }
    });
    tokio::task::yield_now().await;
    server.thaw();
    let outcomes = soon("the renewal", renewing).await.unwrap().unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
    for acquiring in acquiring {
        soon("a lock", acquiring).await.unwrap().unwrap();
    }
    assert_eq!(server.query("SELECT name FROM entered ORDER BY place LIMIT 1").await, [["held"]]);
}

/// The server says so shortly before it closes the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_session_is_ended_goes_first_on_the_next_connection() {
    let server = PostgresServer::start();
    let (backend, renewals) = holder(server.url()).await;
    server.query("CREATE SEQUENCE entries; CREATE TABLE entered (place serial, name text)").await;
    let end = "IF name = 'held' AND nextval('entries') = 1 THEN
                   PERFORM pg_sleep(1);
                   PERFORM pg_terminate_backend(pg_backend_pid());
               END IF;
               INSERT INTO entered (name) VALUES (name);
               PERFORM pg_sleep(0.005)";
    before_entering(&server, end).await;
    let renewing = tokio::spawn({
        let backend = backend.clone();
        async move { backend.renew(&renewals).await }
    });
    until("the renewal at the server", || async {
        server.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'").await.len() == 1
    })
    .await;
    // These requests fail with the session, and are repeated at once.
    let acquiring: Vec<_> = (0..20)
        .map(|number| {
            let (backend, request) = (backend.clone(), request(&format!("{number}"), "waits"));
            tokio::spawn(async move { while backend.acquire(&request).await.is_err() {} })
        })
        .collect();
    let outcomes = soon("the renewal", renewing).await.unwrap().unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
    for acquiring in acquiring {
        soon("a lock", acquiring).await.unwrap();
    }
    assert_eq!(server.query("SELECT name FROM entered ORDER BY place LIMIT 1").await, [["held"]]);
}

/// Poolers say so of a server that they have lost, and keep the session with their client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_not_lost_serves_others_while_a_renewal_waits_for_the_next_one() {
    let server = PostgresServer::start();
    let (backend, renewals) = holder(server.url()).await;
    server.query("CREATE SEQUENCE attempts; CREATE TABLE entered (attempts bigint)").await;
    let lost = "IF name = 'held' THEN
                    PERFORM nextval('attempts');
                    RAISE SQLSTATE '08006';
                END IF;
                INSERT INTO entered SELECT last_value FROM attempts";
    before_entering(&server, lost).await;
    // Renewals overtake others for half a second after a connection is opened. Another attempt
    // follows after a fifth, in which a busy machine may do nothing else.
    for round in 1.. {
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name LIKE 'lockcore %'";
        server.query(kill).await;
        let [first, second] =
            ["first", "second"].map(|name| request(&format!("{name}-{round}"), "a"));
        while backend.acquire(&first).await.is_err() {}
        server.query("SELECT setval('attempts', 1, false); TRUNCATE entered").await;
        let renewing = tokio::spawn({
            let (backend, renewals) = (backend.clone(), renewals.clone());
            async move { backend.renew(&renewals).await }
        });
        until("the first attempt", || async {
            server.query("SELECT 1 FROM attempts WHERE is_called").await.len() == 1
        })
        .await;
        backend.acquire(&second).await.unwrap();
        renewing.abort();
        if server.query("SELECT attempts FROM entered").await == [["1"]] {
            break;
        }
        assert!(round < 10, "it always waits for the second attempt");
    }
}

/// As on a thread that is blocked: other clients of the backend go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_nobody_polls_keeps_no_other_request_from_a_new_connection() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let (backend, renewals) = holder(proxy.url()).await;
    until_reconnecting(&server, &proxy, &backend).await;
    let mut renewing = pin!(backend.renew(&renewals));
    let first = poll_fn(|context| Poll::Ready(renewing.as_mut().poll(context))).await;
    assert!(first.is_pending(), "{first:?}");
    server.thaw();
    let began = Instant::now();
    soon("a lock", backend.acquire(&request("other", "other"))).await.unwrap();
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
    let outcomes = soon("the renewal", renewing).await.unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
}

/// A renewal is sent again for as long as its answer may come in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_outlasts_a_while_in_which_every_session_ends() {
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).connections(1).connect().await.unwrap();
    let held = request("held", "holder");
    enters(&backend, &held).await;
    let end = server.query("SELECT clock_timestamp() + interval '1500 ms'").await;
    let end = format!(
        "IF name = 'held' AND clock_timestamp() < '{}' THEN
             PERFORM pg_terminate_backend(pg_backend_pid());
         END IF",
        end[0][0]
    );
    before_entering(&server, &end).await;
    let renewals = [RenewRequest::new(held.name, held.hold, LEASE * 10)];
    let outcomes = soon("the renewal", backend.renew(&renewals)).await.unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
}

/// It would end the session of every other request as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_ends_its_session_is_sent_a_few_times_only() {
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).connections(1).connect().await.unwrap();
    let held = request("held", "holder");
    enters(&backend, &held).await;
    server.query("CREATE SEQUENCE entries").await;
    let end = "IF name = 'held' THEN
                   PERFORM nextval('entries');
                   PERFORM pg_terminate_backend(pg_backend_pid());
               END IF";
    before_entering(&server, end).await;
    let renewals = [RenewRequest::new(held.name, held.hold, LEASE * 10)];
    let outcomes = soon("the failure", backend.renew(&renewals)).await.unwrap();
    let [RenewOutcome::Failed(error)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.is_outcome_unknown(), "{error}");
    let entries = server.query("SELECT last_value FROM entries").await;
    let entries: u32 = entries[0][0].parse().unwrap();
    assert!((2..=8).contains(&entries), "{entries}");
}

/// An error of the class of connections does not always mean that the connection is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_sent_again_over_a_connection_that_stays_open() {
    let server = PostgresServer::start();
    let (backend, renewals) = holder(server.url()).await;
    server.query("CREATE SEQUENCE entries").await;
    let fail_once = "IF nextval('entries') = 1 THEN RAISE SQLSTATE '08006'; END IF";
    before_entering(&server, fail_once).await;
    let began = Instant::now();
    let outcomes = soon("the renewal", backend.renew(&renewals)).await.unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed]), "{outcomes:?}");
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_first_answer_was_lost_may_have_been_carried_out() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let backend = PostgresBackend::builder(proxy.url()).connections(1).connect().await.unwrap();
    let request = request("stuck", "holder");
    enters(&backend, &request).await;
    let renewals = [RenewRequest::new(request.name, request.hold, LEASE * 10)];
    let busy = session(&server).await;
    busy.batch_execute(BUSY[0]).await.unwrap();
    let renewing = tokio::spawn({
        let backend = backend.clone();
        async move { backend.renew(&renewals).await }
    });
    until("the wait", || async { !server.query(WAITING).await.is_empty() }).await;
    proxy.refuse(true);
    proxy.cut();
    let outcomes = soon("the failure", renewing).await.unwrap().unwrap();
    let [RenewOutcome::Failed(error)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.is_outcome_unknown(), "{error}");
}
