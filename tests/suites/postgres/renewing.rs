//! Renewals of many holds, one of which must wait.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Backend, RenewOutcome, RenewRequest},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;

use crate::{
    proxy::PostgresProxy,
    support::{LEASE, enters, request, session, soon, until},
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
        until("the wait", || async {
            let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            !server.query(waiting).await.is_empty()
        })
        .await;
        other.batch_execute("COMMIT").await.unwrap();
        let outcomes = soon("the answers", renewing).await.unwrap();
        assert!(matches!(outcomes[1], RenewOutcome::Renewed), "{outcomes:?}");
    }
}

/// How long an answer may take. The server gives up on a name after 2 s: it would be the one to
/// answer if the time before did not count.
const TIMEOUT: Duration = Duration::from_millis(2_200);

/// A part of that time.
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
        renewals.push(RenewRequest::new(request.name, request.hold, LEASE));
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
