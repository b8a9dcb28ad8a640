//! The fault battery of lockcore: checks its promises while clients, servers and the network
//! fail.
//!
//! ```text
//! lockcore-faults all [--seed N] [--jobs N] [--table FILE]   every fault, and the table
//! lockcore-faults smoke [--seed N] [--jobs N]                 a part of it, in a few minutes
//! lockcore-faults run 1 39 [--seed N]                         some faults
//! lockcore-faults soak [MINUTES] [--seed N]                   faults at random
//! lockcore-faults bugs [NAME]                                 seeded bugs, which tests must catch
//! lockcore-faults list                                        lists the faults
//! ```
//! `--on single|sentinel|cluster|quorum|postgres|etcd` says where locks are kept; a single Redis
//! server by default.
//!
//! Each fault is a function in [`battery`]; [`scene`] has what they are made of.

mod battery;
mod bugs;
mod client;
mod clock;
mod deployment;
mod monitor;
mod process;
mod protocol;
mod report;
mod resource;
mod rng;
mod scene;
mod shim;
mod store;
mod table;

use std::{path::PathBuf, process::ExitCode};

use crate::{
    deployment::Deployment,
    protocol::{Result, failure},
    report::Run,
};

/// The parsed command line.
#[derive(Debug)]
struct Arguments {
    words: Vec<String>,
    seed: Option<u64>,
    on: Deployment,
    jobs: usize,
    table: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        // How a client process is started.
        Some((hidden, [config])) if hidden == "client" => client::run(config).map(|()| true),
        _ => run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lockcore-faults: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<bool> {
    let arguments = Arguments::parse(arguments)?;
    let run = Run { seed: arguments.seed.unwrap_or_else(fresh_seed), on: arguments.on };
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let jobs = arguments.jobs;
    match words.as_slice() {
        ["list"] => {
            for fault in battery::all() {
                println!(
                    "{:>3} {}{}",
                    fault.number,
                    fault.title,
                    if fault.is_smoke(run.on) { " (smoke)" } else { "" }
                );
            }
            Ok(true)
        }
        ["all"] => {
            runtime.block_on(battery::run(battery::all(), run, jobs, arguments.table.as_deref()))
        }
        ["bugs"] => bugs::run(""),
        ["bugs", name] => bugs::run(name),
        ["smoke"] => {
            let faults =
                battery::all().into_iter().filter(|fault| fault.is_smoke(run.on)).collect();
            runtime.block_on(battery::run(faults, run, jobs, arguments.table.as_deref()))
        }
        ["run", numbers @ ..] if !numbers.is_empty() => {
            let mut faults = battery::all();
            faults.retain(|fault| numbers.contains(&fault.number.to_string().as_str()));
            if faults.len() < numbers.len() {
                return Err(failure("there is no such fault; `list` tells which there are"));
            }
            runtime.block_on(battery::run(faults, run, jobs, arguments.table.as_deref()))
        }
        ["soak", minutes @ ..] if minutes.len() <= 1 => {
            let minutes: u64 = minutes.first().map_or(Ok(10), |minutes| minutes.parse())?;
            println!("soak of {minutes} min on {} with seed {}", run.on, run.seed);
            let time = std::time::Duration::from_secs(60 * minutes);
            let mut report = runtime.block_on(battery::soak::soak(run, time))?;
            (report.number, report.title, report.took) = (62, "soak", time);
            println!("{}", report.summary());
            Ok(report.findings.is_empty())
        }
        _ => Err(failure(
            "usage: all | smoke | run NUMBER.. | soak [MINUTES] | bugs [NAME] | list, with --on single|sentinel|cluster|quorum|postgres|etcd, --seed N, --jobs N, --table FILE",
        )),
    }
}

fn fresh_seed() -> u64 {
    // Short, so that it can be typed again.
    lockcore_testkit::wall_clock() / 1_000_000 % 100_000
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut parsed =
            Self { words: Vec::new(), seed: None, on: Deployment::default(), jobs: 3, table: None };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().ok_or_else(|| failure(format!("{argument} needs a value")));
            match argument.as_str() {
                "--seed" => parsed.seed = Some(value()?.parse()?),
                "--on" => parsed.on = Deployment::parse(value()?)?,
                "--jobs" => parsed.jobs = value()?.parse()?,
                "--table" => parsed.table = Some(value()?.into()),
                word => parsed.words.push(word.into()),
            }
        }
        Ok(parsed)
    }
}
