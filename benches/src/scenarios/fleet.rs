//! Several processes contend for one name, with several tasks each.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::{
    error::Result,
    measure::{
        load::{Load, Span},
        samples::Samples,
        server::Server,
        stats::{float, ratio, shares},
    },
    run::{LEASE, Scenario, Stage, rotate},
    subjects::{Ability, Names, Subject},
    worker::Worker,
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "fleet",
    about: "4 processes with 16 tasks each acquire and release the same name.",
    run: |stage| Box::pin(run(stage)),
};

const PROCESSES: usize = 4;

/// The shares of the processes, the largest first.
const SHARES: [&str; PROCESSES] =
    ["largest share", "second share", "third share", "smallest share"];

pub(crate) const TASKS: usize = 16;

/// The results of a fleet.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) grants_per_second: f64,
    /// The share of each process in percent, the largest first.
    shares: Vec<f64>,
    commands_a_grant: f64,
}

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let subjects = stage.subjects(&[Ability::Waiting]);
    let mut fleets = Vec::new();
    for subject in &subjects {
        stage.step(&format!("{} starts", subject.name()));
        fleets.push((*subject, start(*subject, &server, PROCESSES).await?));
    }
    // A process may have the lock for a while before another gets it: longer than elsewhere.
    let span = Span {
        measured: stage.plan.either(Duration::from_millis(800), Duration::from_secs(10)),
        ..stage.plan.span()
    };
    let mut samples = Samples::new();
    for round in 0..stage.plan.rounds() {
        for (subject, workers) in &mut fleets {
            stage.turn(*subject, round);
            let (seen, loads) = contend(*subject, workers, &server, TASKS, span).await?;
            loads.iter().for_each(|load| stage.failures(*subject, load));
            samples.add(*subject, seen);
        }
        rotate(&mut fleets);
    }
    stage.compare(&samples, "grants", "1/s", |seen| seen.grants_per_second)?;
    stage.values(&samples, "commands a grant", "", |seen| seen.commands_a_grant)?;
    for (place, metric) in SHARES.iter().enumerate() {
        stage.values(&samples, metric, "%", |seen| seen.shares[place])?;
    }
    stage.note(format!("{PROCESSES} processes, by their parts of all grants of a round"));
    Ok(())
}

/// Starts the processes of a subject, all at once.
pub(crate) async fn start(
    subject: Subject,
    server: &Server,
    processes: usize,
) -> Result<Vec<Worker>> {
    let mut starting = JoinSet::new();
    for _ in 0..processes {
        let url = server.url();
        starting.spawn(async move { Worker::start(subject, &url, LEASE).await });
    }
    starting.join_all().await.into_iter().collect()
}

/// Makes all processes contend for one name at the same time.
pub(crate) async fn contend(
    subject: Subject,
    workers: &mut Vec<Worker>,
    server: &Server,
    tasks: usize,
    span: Span,
) -> Result<(Seen, Vec<Load>)> {
    let before = server.calls().await?;
    let mut running = JoinSet::new();
    for mut worker in workers.drain(..) {
        running.spawn(async move {
            let load = worker.load(Names::One("fleet".into()), tasks, span).await;
            (worker, load)
        });
    }
    let mut loads = Vec::new();
    for (worker, load) in running.join_all().await {
        workers.push(worker);
        loads.push(load?);
    }
    let commands = server.calls().await?.since(&before).of(subject.commands());
    let grants: Vec<u64> = loads.iter().map(Load::total).collect();
    let seen = Seen {
        grants_per_second: loads.iter().map(Load::pairs_per_second).sum(),
        shares: shares(&grants),
        commands_a_grant: ratio(
            float(commands),
            float(loads.iter().map(|load| load.all_pairs).sum()),
        ),
    };
    Ok((seen, loads))
}
