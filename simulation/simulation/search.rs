//! Runs many seeds, each twice, and reports those that violate a promise.

use std::{
    env,
    process::{Command, ExitCode, Output},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{panics, world};

/// The number of seeds, unless `SEEDS` says otherwise.
pub(crate) const SEEDS: u64 = 2000;

/// Tells a process which single seed to run.
pub(crate) const RUN: &str = "LOCKCORE_SIMULATION_RUN";

/// The number of failures after which the search stops.
const ENOUGH: usize = 10;

/// One run: prints its outcome, for [`search`].
pub(crate) fn run(seed: u64) -> ExitCode {
    panics::note();
    let outcome = world::run(seed, false);
    println!("{} events, trace {:016x}", outcome.events, outcome.hash);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one seed, and prints its whole trace.
pub(crate) fn replay(seed: u64) -> ExitCode {
    panics::note();
    let outcome = world::run(seed, true);
    println!("{}", outcome.lines.join("\n"));
    println!("SEED={seed}: {} events, trace {:016x}", outcome.events, outcome.hash);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("SEED={seed}: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// Runs each seed twice, on all processors.
pub(crate) fn search(first: u64, count: u64) -> ExitCode {
    let start = Instant::now();
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    let failed = || failures.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        while failed().len() < ENOUGH {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                break;
            }
            if let Err(failure) = run_twice(seed) {
                println!("SEED={seed}: {failure}");
                failed().push(seed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed();
    let run = next.load(Ordering::Relaxed).min(first + count) - first;
    println!(
        "simulation: {run} seeds from {first}, each twice, in {:.1?}; failed: {failed:?}",
        start.elapsed()
    );
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("replay one with SEED=n cargo test -p lockcore-simulation");
    ExitCode::FAILURE
}

fn run_twice(seed: u64) -> Result<(), String> {
    let [one, other] = [run_apart(seed), run_apart(seed)];
    let text =
        String::from_utf8_lossy(&one.stdout).into_owned() + &String::from_utf8_lossy(&one.stderr);
    if !one.status.success() {
        return Err(text);
    }
    if one.stdout != other.stdout {
        return Err(format!("two runs differ:\n{text}{}", String::from_utf8_lossy(&other.stdout)));
    }
    Ok(())
}

/// Runs `seed` in a separate process.
fn run_apart(seed: u64) -> Output {
    let this = env::current_exe().expect("the path of this program");
    Command::new(this).env(RUN, seed.to_string()).output().expect("this program runs")
}
