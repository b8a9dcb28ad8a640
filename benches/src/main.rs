//! lockcore side by side with other lock libraries, and with the least that its scripts cost.
//!
//! ```text
//! cargo run --release -p lockcore-bench                       everything, in half an hour
//! cargo run --release -p lockcore-bench -- --quick            in four minutes
//! cargo run --release -p lockcore-bench -- --only fleet,idle  some scenarios
//! ```
//! Each scenario is a file in `scenarios/`, each of the compared libraries one in `subjects/`. It
//! starts its own redis-server.

mod error;
mod measure;
mod report;
mod run;
mod scenarios;
mod subjects;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

use crate::{
    error::{Result, failure},
    report::Report,
    run::{Plan, Scenario, Stage, progress_bar},
};

/// lockcore side by side with other lock libraries.
#[derive(Debug, Parser)]
struct Arguments {
    /// Measure for a shorter time: in four minutes altogether, in eight with other runtimes.
    #[arg(long)]
    quick: bool,
    /// Measure Redisson as well: needs a Java runtime, and `mvn -q -B -f interop/java/pom.xml
    /// package` before.
    #[arg(long)]
    redisson: bool,
    /// Measure libraries for Go as well: needs Go 1.26 or newer, with which it builds `interop/go`.
    #[arg(long)]
    go: bool,
    /// Run only these scenarios.
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    only: Vec<String>,
    /// Write every figure into this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write plots into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Write the tables between the marks of this document: docs/PERFORMANCE.md.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match (words.next(), words.next()) {
        // How a worker is started.
        (Some(command), Some(config)) if command == worker::COMMAND => worker::serve(&config),
        _ => run(&Arguments::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockcore-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!(
            "lockcore-bench: this is a debug build; for figures that mean something: cargo run --release"
        );
    }
    let plan = Plan::new(arguments.quick, arguments.redisson, arguments.go);
    let scenarios = chosen(arguments)?;
    if plan.has_go {
        subjects::go::build()?;
    }
    let mut report = Report::new(arguments.json.as_deref())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let progress = progress_bar(scenarios.len())?;
        for scenario in scenarios {
            report.begin(scenario.name, scenario.about);
            (scenario.run)(&mut Stage::new(plan, scenario.name, &mut report, &progress))
                .await
                .map_err(|error| failure(format!("{}: {error}", scenario.name)))?;
            progress.inc(1);
            let table = report.scenario(scenario.name);
            progress.suspend(|| println!("\n{}: {}\n{table}", scenario.name, scenario.about));
        }
        progress.finish_and_clear();
        Ok::<(), error::Error>(())
    })?;
    if let Some(bars) = report.bars() {
        println!("\n{bars}");
    }
    if let Some(directory) = &arguments.plot {
        report.write_plots(directory)?;
    }
    if let Some(document) = &arguments.table {
        report.write_tables(document, arguments.plot.as_deref(), &plan)?;
    }
    Ok(())
}

/// The scenarios on the command line, or all those of this kind of run.
fn chosen(arguments: &Arguments) -> Result<Vec<Scenario>> {
    let names = scenarios::ALL.map(|scenario| scenario.name);
    if let Some(unknown) = arguments.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(failure(format!(
            "there is no scenario {unknown}; there are {}",
            names.join(", ")
        )));
    }
    if arguments.quick && arguments.only.is_empty() {
        println!("without growth, which is only in a full run");
    }
    let is_chosen = |scenario: &Scenario| match arguments.only.as_slice() {
        [] => !(arguments.quick && scenario.name == "growth"),
        only => only.iter().any(|name| name == scenario.name),
    };
    Ok(scenarios::ALL.into_iter().filter(is_chosen).collect())
}
