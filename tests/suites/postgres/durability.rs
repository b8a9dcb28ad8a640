//! Which requests wait for the disk and for the replicas before they are answered.

use std::time::Duration;

use lockcore::{
    Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend},
};
use lockcore_testkit::PostgresServer;

use crate::support::{connect, enters, request, session};

/// Carries out a release, and returns the setting that it is committed with.
async fn setting_of_release(server: &PostgresServer, request: &AcquireRequest) -> String {
    let session = session(server).await;
    let (name, id) = (request.name.as_str(), request.hold.id());
    session.batch_execute("BEGIN").await.unwrap();
    let release = "SELECT lockcore.release($1, $2, 0, false, 'channel')";
    session.query_one(release, &[&name, &id]).await.unwrap();
    let setting = session.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
    session.batch_execute("COMMIT").await.unwrap();
    setting
}

/// The waiter learns of its grant, and nobody asks the server again.
#[tokio::test]
async fn a_release_that_grants_waits_for_the_disk() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let fair = |hold| request("order", hold).mode(Mode::Fair).queue(Some(Duration::from_secs(20)));
    let (holder, waiter) = (fair("holder"), fair("waiter").direct_grant(Some(1)));
    enters(&backend, &holder).await;
    let refused = backend.acquire(&waiter).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    assert_eq!(setting_of_release(&server, &holder).await, "on");
    let granted = "SELECT owner FROM lockcore.hold";
    assert_eq!(server.query(granted).await, [[waiter.hold.owner()]]);
    // Nobody waits any more.
    assert_eq!(setting_of_release(&server, &waiter).await, "off");
    assert!(server.query(granted).await.is_empty());
}

/// The setting of the role is kept, whether it is stronger or weaker than the disk.
#[tokio::test]
async fn a_grant_waits_for_the_replicas_that_the_role_names() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    for (set, kept) in [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")] {
        let session = session(&server).await;
        let enter =
            format!("SET synchronous_commit = {set}; BEGIN; SELECT lockcore.enter('order')");
        session.batch_execute(&enter).await.unwrap();
        let row = session.query_one("SHOW synchronous_commit", &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), kept);
    }
}
