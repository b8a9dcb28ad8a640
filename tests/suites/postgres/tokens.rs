//! Tokens rise, whatever happens to the database.

use lockcore::{FencingToken, backend::Backend};
use lockcore_testkit::PostgresServer;

use crate::support::{connect, enters, request, session, soon, until};

async fn next_token(server: &PostgresServer) -> FencingToken {
    let backend = connect(server).await;
    let request = request("order", "a");
    let token = enters(&backend, &request).await;
    backend.release(&request.release()).await.unwrap();
    token
}

#[tokio::test]
async fn tokens_rise_past_a_sequence_that_was_turned_back() {
    let server = PostgresServer::start();
    let before = next_token(&server).await;
    assert!(u64::from(before) > 1_700_000_000_000_000, "{before} does not follow the clock");
    server.query("SELECT setval('lockcore.token', 1)").await;
    let after = next_token(&server).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test]
async fn tokens_rise_past_a_schema_that_was_made_anew() {
    let server = PostgresServer::start();
    let before = next_token(&server).await;
    server.query("DROP SCHEMA lockcore CASCADE").await;
    let after = next_token(&server).await;
    assert!(after > before, "{after} after {before}");
}

/// Between reading the sequence and raising it, nobody may draw: the sequence would be set back
/// below what is drawn then.
#[tokio::test]
async fn tokens_are_not_raised_while_some_are_drawn() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let draws = session(&server).await;
    draws.batch_execute("BEGIN; SELECT lockcore.draw_tokens(1)").await.unwrap();
    let raises = session(&server).await;
    let raising = tokio::spawn(async move {
        let raise = "SELECT lockcore.raise_tokens(4000000000000000000)";
        raises.batch_execute(raise).await.unwrap();
    });
    until("the wait", || async {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'";
        !server.query(waiting).await.is_empty()
    })
    .await;
    draws.batch_execute("COMMIT").await.unwrap();
    soon("the raising", raising).await.unwrap();
    assert!(u64::from(next_token(&server).await) > 4_000_000_000_000_000_000);
}

/// The database may set back the sequence, but must not set back proposed tokens.
#[tokio::test]
async fn a_proposed_token_is_noted_until_the_sequence_has_passed_it() {
    const NOTED: &str = "SELECT token FROM lockcore.proposed";
    let server = PostgresServer::start();
    let hour = 3_600_000_000;
    let ahead = FencingToken::from(u64::from(next_token(&server).await) + hour);
    let backend = connect(&server).await;
    let proposing = request("order", "a").least_token(Some(ahead));
    assert_eq!(enters(&backend, &proposing).await, ahead);
    backend.release(&proposing.release()).await.unwrap();
    server.query("SELECT lockcore.sweep(0, 1000)").await;
    assert_eq!(server.query(NOTED).await, [[ahead.to_string()]]);
    assert!(next_token(&server).await > ahead);
    // Greater than the note, but it may be set back to the clock, which is not.
    server.query(&format!("SELECT lockcore.raise_tokens({ahead} + {hour})")).await;
    server.query("SELECT lockcore.sweep(0, 1000)").await;
    assert_eq!(server.query(NOTED).await.len(), 1);
    let passed = "UPDATE lockcore.proposed SET token = lockcore.clock() - 1";
    server.query(passed).await;
    server.query("SELECT lockcore.sweep(0, 1000)").await;
    assert!(server.query(NOTED).await.is_empty());
}

/// A grant that has drawn a token may write a note that the sweeper is deleting.
#[tokio::test]
async fn a_sweep_waits_for_no_grant() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let draws = session(&server).await;
    draws.batch_execute("BEGIN; SELECT lockcore.draw_tokens(1)").await.unwrap();
    let note = "INSERT INTO lockcore.proposed VALUES ('order', 1)";
    server.query(note).await;
    let sweep = "SELECT lockcore.sweep(0, 1000)";
    assert_eq!(soon("the sweep", server.query(sweep)).await, [["1"]]);
    draws.batch_execute("SELECT lockcore.note_token('order', 1); COMMIT").await.unwrap();
}

/// A token drawn before the note is gone could be less than the note.
#[tokio::test]
async fn a_note_that_is_being_deleted_is_waited_for_before_the_draw() {
    const NO_DRAW: &str = "SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND classid = 1819239276
        AND objid = hashtext('\"lockcore\".token')::oid";
    let server = PostgresServer::start();
    drop(connect(&server).await);
    server.query("INSERT INTO lockcore.proposed VALUES ('order', 1)").await;
    let (sweeps, grants) = (session(&server).await, session(&server).await);
    sweeps.batch_execute("BEGIN; DELETE FROM lockcore.proposed").await.unwrap();
    let granting = tokio::spawn(async move {
        let tokens = "BEGIN; SELECT lockcore.tokens_of('order', NULL, 1)";
        grants.batch_execute(tokens).await.unwrap();
        grants
    });
    until("the wait", || async {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        !server.query(waiting).await.is_empty()
    })
    .await;
    assert_eq!(server.query(NO_DRAW).await, [["0"]]);
    sweeps.batch_execute("COMMIT").await.unwrap();
    let grants = soon("the draw", granting).await.unwrap();
    assert_eq!(server.query(NO_DRAW).await, [["1"]]);
    grants.batch_execute("COMMIT").await.unwrap();
}

/// As behind a pooler that switches to another server while its clients stay connected. Neither the
/// clock nor the sequence of that server has reached the tokens of the other one.
#[tokio::test]
async fn tokens_rise_when_the_server_is_another_one_now() {
    const HOUR: u64 = 3_600_000_000;
    for ahead in [0, HOUR] {
        rise_when_the_server_is_another_one(ahead).await;
    }
}

async fn rise_when_the_server_is_another_one(ahead: u64) {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let ahead = format!("SELECT lockcore.raise_tokens(lockcore.clock() + {ahead})");
    server.query(&ahead).await;
    let mut before = enters(&backend, &request("first", "a")).await;
    for (number, turn) in [
        "UPDATE lockcore.server SET started = started - interval '1 second'",
        "UPDATE lockcore.server SET database = 1",
        "UPDATE lockcore.server SET raised = raised + 3600000000",
        // As after a dump is restored.
        "DROP SEQUENCE lockcore.token; CREATE SEQUENCE lockcore.token INCREMENT BY 64",
        // As after one of the data alone, which comes with the sequence.
        "CREATE TABLE dumped AS TABLE lockcore.server; TRUNCATE lockcore.server;
            INSERT INTO lockcore.server SELECT * FROM dumped;
            UPDATE lockcore.server SET raised = 1",
    ]
    .into_iter()
    .enumerate()
    {
        server.query(turn).await;
        server.query(&format!("SELECT setval('lockcore.token', {before} - 640000)")).await;
        let after = enters(&backend, &request(&format!("order:{number}"), "a")).await;
        assert!(after > before, "{after} after {before}: {turn}");
        let next = enters(&backend, &request(&format!("other:{number}"), "a")).await;
        assert_eq!(u64::from(next), u64::from(after) + 64, "it is raised once");
        before = next;
    }
}

/// The state that is restored does not know of the restarts since it was saved, nor of tables that
/// were written anew.
#[tokio::test]
async fn tokens_rise_when_an_older_state_is_restored_after_restarts() {
    const AHEAD: u64 = 67_108_864;
    let mut server = PostgresServer::start();
    enters(&connect(&server).await, &request("first", "a")).await;
    server.query("CREATE TABLE dumped AS TABLE lockcore.server").await;
    let saved = server.query("SELECT last_value FROM lockcore.token").await[0][0].clone();
    for restart in 0..3 {
        server.restart();
        enters(&connect(&server).await, &request(&format!("after restart {restart}"), "a")).await;
    }
    server.query("VACUUM FULL lockcore.server").await;
    let backend = connect(&server).await;
    let before = enters(&backend, &request("before", "a")).await;
    // The restarts of this server are quicker than usual.
    let past = format!("SELECT lockcore.clock() + {AHEAD} > {before}");
    until("the clock to be past them", async || server.query(&past).await == [["t"]]).await;
    let restore = format!(
        "TRUNCATE lockcore.server; INSERT INTO lockcore.server SELECT * FROM dumped; \
         SELECT setval('lockcore.token', {saved})"
    );
    server.query(&restore).await;
    let after = enters(&backend, &request("after", "a")).await;
    assert!(after > before, "{after} after {before}");
}

/// Many clients reconnect at the same time.
#[tokio::test]
async fn a_client_that_connects_waits_for_no_grant() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let draws = session(&server).await;
    draws.batch_execute("BEGIN; SELECT lockcore.draw_tokens(1)").await.unwrap();
    drop(soon("the connection", connect(&server)).await);
    draws.batch_execute("COMMIT").await.unwrap();
}

/// As when the tables were emptied by hand.
#[tokio::test]
async fn a_row_of_the_server_that_is_missing_comes_back() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    server.query("DELETE FROM lockcore.server").await;
    let token = enters(&connect(&server).await, &request("order", "a")).await;
    let clock: u64 = server.query("SELECT lockcore.clock()").await[0][0].parse().unwrap();
    assert!(u64::from(token) > clock, "{token} at {clock}");
    assert_eq!(server.query("SELECT count(*) FROM lockcore.server").await, [["1"]]);
}
