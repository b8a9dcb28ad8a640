//! Deterministic simulation of the core over the memory backend: a seed decides who wants what
//! when, what fails, and in which order tasks run. Time is paused, so a run of a minute takes
//! milliseconds.
//!
//! ```sh
//! cargo test -p lockcore-simulation                # thousands of seeds, each twice
//! SEEDS=10000 cargo test -p lockcore-simulation    # this many
//! SEED=17 cargo test -p lockcore-simulation        # this one, with its whole trace
//! DELAYS=2 cargo test -p lockcore-simulation       # more orders of events in small scenarios
//! ```
//!
//! Each run is a separate process: tokio, `Owner` and others have counters per process, and the
//! order of events depends on them.

mod actor;
mod beliefs;
mod chance;
mod draw;
mod entropy;
mod noise;
mod panics;
mod plan;
mod scenario;
mod schedules;
mod search;
mod trace;
mod truth;
mod waits;
mod world;

use std::{env, process::ExitCode};

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {value:?}")))
}

fn main() -> ExitCode {
    match (number(search::RUN), number("SEED")) {
        (Some(seed), _) => search::run(seed),
        (None, Some(seed)) => search::replay(seed),
        (None, None) => {
            let explored = schedules::explore();
            let seeds = number("SEEDS").unwrap_or(search::SEEDS);
            let searched = search::search(number("FIRST").unwrap_or(1), seeds);
            if explored == ExitCode::SUCCESS { searched } else { explored }
        }
    }
}
