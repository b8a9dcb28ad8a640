//! What the metrics of lockcore cost: the same loads with and without the feature `metrics`, by turns.
//!
//! `./scripts/metrics-cost` builds this program twice and runs it as
//!
//! ```text
//! metrics-cost compare OFF [TURNS [LOAD..]]  this build against the program OFF, which has no metrics
//! metrics-cost run LOAD off|floor            one turn of a load, in a build without metrics
//! metrics-cost run LOAD plain|prometheus     one turn of a load, in a build with metrics
//! ```
//!
//! A turn prints two times of a pair in ns. `floor` gives the exporter the figures that lockcore would
//! give it, and measures nothing.

mod compare;
mod load;

use std::{env, error::Error, process::ExitCode};

use load::LOADS;

type Failure = Box<dyn Error + Send + Sync>;

/// Where a turn finds its server.
const REDIS: &str = "METRICS_COST_REDIS";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", load, recorder] => run(load, recorder),
        ["compare", off, ref rest @ ..] => compare::compare(off, rest),
        _ => Err("metrics-cost compare OFF [TURNS [LOAD..]]; or use ./scripts/metrics-cost".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("metrics-cost: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One turn.
fn run(name: &str, recorder: &str) -> Result<(), Failure> {
    let load = LOADS.into_iter().find(|load| load.name == name).ok_or("there is no such load")?;
    let (has_exporter, has_metrics) = match recorder {
        "off" => (false, false),
        "floor" => (true, false),
        "plain" => (false, true),
        "prometheus" => (true, true),
        _ => return Err("the recorder is off, floor, plain or prometheus".into()),
    };
    if has_metrics != cfg!(feature = "metrics") {
        return Err("that is for the other build".into());
    }
    let redis = env::var(REDIS).unwrap_or_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if has_exporter {
            install()?;
        }
        let result = load.run(&redis, has_exporter && !has_metrics).await?;
        println!("{} {}", result.time, result.processor_time);
        Ok(())
    })
}

/// As a program would that serves Prometheus: also the exporter's upkeep runs.
fn install() -> Result<(), Failure> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    const SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 30.0, 300.0, 3600.0];
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .with_http_listener(([127, 0, 0, 1], 0))
        .install()?;
    Ok(())
}
