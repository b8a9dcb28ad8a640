//! The faults, by what they hit, and running them.

mod clients;
mod network;
mod server;

use std::{future::Future, path::Path, pin::Pin, sync::Arc, time::Instant};

use tokio::sync::{RwLock, Semaphore};

use crate::{
    protocol::Result,
    report::{Report, table},
};

type Running = Pin<Box<dyn Future<Output = Result<Report>> + Send>>;

/// One fault.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    /// As in the table of faults.
    pub(crate) number: u32,
    pub(crate) title: &'static str,
    /// Whether it belongs to the part that every change has to pass.
    pub(crate) smoke: bool,
    /// Whether it needs the machine for itself.
    pub(crate) alone: bool,
    pub(crate) run: fn(u64) -> Running,
}

/// `1 "title" path::to::function [smoke] [alone];`
macro_rules! faults {
    ($($number:literal $title:literal $($function:ident)::+ $($flag:ident)*;)*) => {
        /// All faults that there are.
        pub(crate) fn all() -> Vec<Fault> {
            vec![$({
                let flags: &[&str] = &[$(stringify!($flag)),*];
                Fault {
                    number: $number,
                    title: $title,
                    smoke: flags.contains(&"smoke"),
                    alone: flags.contains(&"alone"),
                    run: |seed| Box::pin($($function)::+(seed)),
                }
            }),*]
        }
    };
}

faults! {
    1 "holder killed (SIGKILL)" clients::holder_killed smoke;
    2 "holder stopped longer than its lease" clients::holder_stopped_long smoke;
    10 "server killed, append-only file kept" server::killed_durable smoke;
    32 "pub/sub connections killed in a loop" network::listeners_killed smoke;
    39 "replies lost after the request was carried out" network::replies_lost smoke;
}

/// Runs faults side by side, `jobs` at a time, and those that need the machine for themselves alone. Whether all is well.
pub(crate) async fn run(faults: Vec<Fault>, seed: u64, jobs: usize, to: Option<&Path>) -> Result<bool> {
    println!("{} faults with seed {seed}", faults.len());
    let places = Arc::new(Semaphore::new(jobs.max(1)));
    let machine = Arc::new(RwLock::new(()));
    let running = faults.into_iter().map(|fault| {
        let (places, machine) = (places.clone(), machine.clone());
        tokio::spawn(async move {
            let _place = places.acquire_owned().await;
            let report = if fault.alone {
                let _machine = machine.write().await;
                attempt(fault, seed).await
            } else {
                let _machine = machine.read().await;
                attempt(fault, seed).await
            };
            println!("{}", report.summary());
            report
        })
    });
    let running: Vec<_> = running.collect();
    let mut reports = Vec::new();
    for report in running {
        reports.push(report.await?);
    }
    reports.sort_by_key(|report| report.number);
    if let Some(path) = to {
        std::fs::write(path, table(&reports))?;
    }
    let failed: Vec<_> = reports.iter().filter(|report| !report.findings.is_empty()).collect();
    for report in &failed {
        println!(
            "failed: #{} {}; again: ./scripts/faults run {} --seed {seed}",
            report.number, report.title, report.number
        );
    }
    println!("{} faults, {} failed", reports.len(), failed.len());
    Ok(failed.is_empty())
}

/// Runs one fault. What goes wrong with the rig is a failure like any other.
async fn attempt(fault: Fault, seed: u64) -> Report {
    let start = Instant::now();
    let ended = tokio::spawn((fault.run)(seed)).await;
    let mut report = match ended {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => Report { seed, findings: vec![format!("the rig: {error}")], ..Report::default() },
        Err(error) => Report { seed, findings: vec![format!("the rig: {error}")], ..Report::default() },
    };
    report.number = fault.number;
    report.title = fault.title;
    report.took = start.elapsed();
    report
}
