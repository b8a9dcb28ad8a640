//! Runs one case: on its own runtime, with its own fixture, and with a time limit.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::Fixture;

/// The limit of a case in real time.
const REAL_TIME: Duration = Duration::from_secs(60);

/// The limit of a case on the paused clock, which takes no real time.
const PAUSED_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs `case` against a store in real time.
///
/// # Panics
/// If the case fails, or takes more than a minute.
pub fn run_case<F: Fixture>(case: impl AsyncFnOnce(&F)) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    run_on(&ready(runtime), REAL_TIME, case);
}

/// Runs `case` against a store on tokio's clock, which is paused: time advances when no task has
/// anything else to do.
///
/// # Panics
/// If the case fails, or waits for an event that never comes.
pub fn run_case_paused<F: Fixture>(case: impl AsyncFnOnce(&F)) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    run_on(&ready(runtime), PAUSED_TIME, case);
}

fn ready(runtime: std::io::Result<Runtime>) -> Runtime {
    match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for the test: {error}"),
    }
}

fn run_on<F: Fixture>(runtime: &Runtime, time: Duration, case: impl AsyncFnOnce(&F)) {
    let ended = runtime.block_on(async {
        let fixture = F::set_up().await;
        tokio::time::timeout(time, case(&fixture)).await
    });
    assert!(ended.is_ok(), "the case had not ended after {time:?}");
}
