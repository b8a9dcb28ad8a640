//! Many tasks of one process contend for one name.

use crate::{
    error::Result,
    measure::{
        load::Load,
        server::Server,
        stats::{float, jain, ratio},
    },
    run::{LEASE, Samples, Scenario, Stage, rotate},
    subjects::{Ability, Names},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "contended",
    about: "64 tasks of one process acquire and release the same name.",
    run: |stage| Box::pin(run(stage)),
};

const TASKS: usize = 64;

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let subjects = stage.subjects(&[Ability::Waiting]);
    let mut workers = stage.workers(&subjects, &server, LEASE).await?;
    let mut samples = Samples::new();
    for round in 0..stage.plan.rounds() {
        for worker in &mut workers {
            let load = stage.load(worker, round, Names::One("contended".into()), TASKS).await?;
            let p99 = load.wait(0.99)?;
            samples.add(worker.0, (load, p99));
        }
        rotate(&mut workers);
    }
    stage.compare(&samples, "pairs", "1/s", |(load, _)| load.pairs_per_second())?;
    stage.compare(&samples, "hand-overs", "1/s", |(load, _)| load.hand_overs_per_second())?;
    stage.values(&samples, "Jain's index", "", |(load, _)| jain(&load.pairs))?;
    stage.values(&samples, "p99 wait", "ms", |(_, p99)| p99 / 1e6)?;
    stage.values(&samples, "p99 wait in turns", "", |(load, p99)| turns(load, *p99))?;
    stage.note("a hand-over: a pair of another task than the pair before; who asks at intervals has most pairs in a row");
    stage.note(
        "a turn: as many hold cycles as there are tasks, what each would wait if they took turns",
    );
    Ok(())
}

fn turns(load: &Load, p99: f64) -> f64 {
    ratio(p99, load.hold_cycle() * float(load.pairs.len() as u64))
}
