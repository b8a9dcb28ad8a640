//! Many tasks of one process contend for one name.

use crate::{
    error::Result,
    measure::{
        load::Load,
        samples::Samples,
        server::Server,
        stats::{float, jain, ratio},
    },
    run::{LEASE, Scenario, Stage, rotate},
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
    let (mut samples, mut waits) = (Samples::new(), Samples::new());
    for round in 0..stage.plan.rounds() {
        for worker in &mut workers {
            let names = Names::One("contended".into());
            let served = stage.served(worker, &server, round, names, TASKS).await?;
            waits.add(worker.0, (turns(&served.load)?, served.load.wait(0.99)?));
            samples.add(worker.0, served);
        }
        rotate(&mut workers);
    }
    stage.compare_with_best(&samples, "pairs", |served| served.load.pairs_per_second())?;
    stage.compare(&samples, "hand-overs", "1/s", |served| served.load.hand_overs_per_second())?;
    stage.values(&samples, "Jain's index", "", |served| jain(&served.load.pairs))?;
    stage.values(&waits, "p99 wait", "ms", |(_, p99)| p99 / 1e6)?;
    stage.values(&waits, "p99 wait in turns", "", |(turns, _)| *turns)?;
    stage.server_time(&samples, "server time a pair")?;
    stage.note("a hand-over: a pair of another task than the pair before; who asks at intervals has most pairs in a row");
    stage.note(
        "a turn: as many hold cycles as there are tasks, what each would wait if they took turns",
    );
    Ok(())
}

/// The wait that 99 of 100 do not exceed, in turns.
fn turns(load: &Load) -> Result<f64> {
    Ok(ratio(load.wait(0.99)?, load.hold_cycle() * float(load.pairs.len() as u64)))
}
