//! The two builds by turns, and the medians of what a turn costs against the turn beside it.

use std::{env, path::Path, process::Command};

use lockcore_testkit::RedisServer;

use crate::{
    Failure, REDIS,
    load::{LOADS, Load, Yield},
};

const TURNS: usize = 15;

/// Prints a table: each load with this build as a multiple of the pairs of the program `off`.
pub(crate) fn compare(off: &str, rest: &[&str]) -> Result<(), Failure> {
    let turns = rest.first().map_or(Ok(TURNS), |turns| turns.parse())?;
    let chosen = rest.get(1..).unwrap_or_default();
    let (server, on) = (RedisServer::start(), env::current_exe()?);
    println!(
        "| load | off, ns | on, no recorder | on, with the exporter | the exporter alone | \
         processor time with it |"
    );
    println!("|---|---|---|---|---|---|");
    for load in LOADS {
        if !chosen.is_empty() && !chosen.contains(&load.name) {
            continue;
        }
        let run = |program: &Path, recorder: &str| turn(program, load, recorder, &server.url());
        let mut times = Vec::new();
        let (mut plain, mut exported, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let mut processor = Vec::new();
        for number in 0..turns {
            let off = Path::new(off);
            let mut builds = [(off, "off"), (&on, "plain"), (&on, "prometheus"), (off, "floor")];
            // Changes during the run, such as those of the processor's clock, concern all alike.
            let first = number % builds.len();
            builds.rotate_left(first);
            let mut done = builds.map(|(program, recorder)| run(program, recorder));
            done.rotate_right(first);
            let [off, without, with, floor] = done;
            let (off, with) = (off?, with?);
            times.push(off.time);
            plain.push(off.time / without?.time);
            exported.push(off.time / with.time);
            alone.push(off.time / floor?.time);
            processor.push(with.processor_time / off.processor_time);
        }
        println!(
            "| {} | {:.0} | {} | {} | {} | {} |",
            load.about,
            quantile(&mut times, 0.5),
            spread(&mut plain),
            spread(&mut exported),
            spread(&mut alone),
            spread(&mut processor)
        );
    }
    Ok(())
}

/// Has `program` do it in a process of its own.
fn turn(program: &Path, load: Load, recorder: &str, redis: &str) -> Result<Yield, Failure> {
    let run =
        Command::new(program).args(["run", load.name, recorder]).env(REDIS, redis).output()?;
    let said = String::from_utf8(run.stdout)?;
    let mut times = said.split_whitespace().map(str::parse);
    match (run.status.success(), times.next(), times.next()) {
        (true, Some(time), Some(processor_time)) => {
            Ok(Yield { time: time?, processor_time: processor_time? })
        }
        _ => Err(String::from_utf8_lossy(&run.stderr).into_owned().into()),
    }
}

/// The median, with the quartiles.
fn spread(values: &mut [f64]) -> String {
    let [low, median, high] = [0.25, 0.5, 0.75].map(|part| quantile(values, part));
    format!("{median:.2} ({low:.2}..{high:.2})")
}

fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}
