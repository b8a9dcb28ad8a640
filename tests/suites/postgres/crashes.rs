//! Answers of PostgreSQL outlast a crash.

use lockcore::LockName;
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::{Crashes, Fixture, PostgresServer, crash_tests, crashes, run_case};
use tokio::sync::Mutex;

use crate::conformance::left_behind;

/// A private server on which only writes that are waited for reach its files. The kit's servers
/// sync nothing to the disk, and need not: what they have written outlasts their processes.
struct Crashing(Mutex<PostgresServer>);

impl Fixture for Crashing {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        Self(Mutex::new(PostgresServer::start_with(&["wal_writer_delay=10s"])))
    }

    async fn client(&self) -> PostgresBackend {
        PostgresBackend::connect(self.0.lock().await.url()).await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let server = self.0.lock().await;
        left_behind(&server, "lockcore", &[], name).await
    }
}

impl Crashes for Crashing {
    async fn crash(&self) {
        self.0.lock().await.restart();
    }
}

crash_tests!(Crashing, permits, direct_grant, proposed_tokens, latches);

/// What would make PostgreSQL forget what it has answered.
const WEAKENED: [&str; 2] = [
    "ALTER TABLE lockcore.hold SET UNLOGGED",
    "DO $do$ BEGIN EXECUTE replace(
        pg_get_functiondef('lockcore.begin_request'::regproc),
        'PERFORM set_config(''synchronous_commit'', ''on'', true)', 'NULL'
    ); END $do$;
    ALTER DATABASE postgres SET synchronous_commit = off",
];

struct Weakened<const HOW: usize>(Crashing);

impl<const HOW: usize> Fixture for Weakened<HOW> {
    type Backend = PostgresBackend;

    async fn set_up() -> Self {
        let crashing = Crashing::set_up().await;
        // It creates the tables and the functions.
        drop(crashing.client().await);
        crashing.0.lock().await.query(WEAKENED[HOW]).await;
        Self(crashing)
    }

    async fn client(&self) -> PostgresBackend {
        self.0.client().await
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.0.left_behind(name).await
    }
}

impl<const HOW: usize> Crashes for Weakened<HOW> {
    async fn crash(&self) {
        self.0.crash().await;
    }
}

#[test]
#[should_panic(expected = "this is another hold")]
fn a_table_that_a_crash_empties_is_found() {
    run_case::<Weakened<0>>(crashes::holds_of_every_mode_outlast_a_crash);
}

#[test]
#[should_panic(expected = "this is another hold")]
fn an_answer_that_does_not_wait_for_the_files_is_found() {
    run_case::<Weakened<1>>(crashes::holds_of_every_mode_outlast_a_crash);
}
