//! Tokens rise, whatever happens to the database.

use lockcore::{FencingToken, backend::Backend};
use lockcore_testkit::PostgresServer;

use crate::support::{connect, enters, request};

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

/// Four sessions draw tokens while two others raise them over and over: nobody gets one that was
/// given away before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raising_repeats_no_token() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let draw = "DO $$
        BEGIN
            FOR turn IN 1..400 LOOP
                INSERT INTO drawn VALUES (lockcore.draw_tokens(1));
                COMMIT;
            END LOOP;
        END $$";
    let raise = "DO $$
        BEGIN
            FOR turn IN 1..400 LOOP
                PERFORM lockcore.raise_tokens((SELECT last_value + 1 FROM lockcore.token));
                COMMIT;
            END LOOP;
        END $$";
    server.query("CREATE TABLE drawn (token bigint UNIQUE)").await;
    let (a, b, c, d) =
        (server.query(draw), server.query(draw), server.query(draw), server.query(draw));
    tokio::join!(a, b, c, d, server.query(raise), server.query(raise));
    assert_eq!(server.query("SELECT count(*) FROM drawn").await, [["1600"]]);
}
