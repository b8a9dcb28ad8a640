//! Many tasks, each with a name of its own.

use crate::{
    error::Result,
    measure::{load::Load, server::Server},
    run::{LEASE, Samples, Scenario, Stage, rotate},
    subjects::{Ability, Names},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "distinct",
    about: "64 and 512 tasks of one process, each of which acquires and releases a name of its own.",
    run: |stage| Box::pin(run(stage)),
};

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let subjects = stage.subjects(&[Ability::Pairs]);
    let mut workers = stage.workers(&subjects, &server, LEASE).await?;
    for tasks in [64, 512] {
        let mut samples = Samples::new();
        for round in 0..stage.plan.rounds() {
            for worker in &mut workers {
                let names = Names::Each("distinct".into());
                let load = stage.load(worker, round, names, tasks).await?;
                samples.add(worker.0, load);
            }
            rotate(&mut workers);
        }
        stage.compare(
            &samples,
            &format!("pairs of {tasks} tasks"),
            "1/s",
            Load::pairs_per_second,
        )?;
    }
    Ok(())
}
