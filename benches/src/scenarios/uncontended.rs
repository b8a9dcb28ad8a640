//! One task acquires and releases one name.

use crate::{
    error::Result,
    measure::{load::Load, server::Server},
    run::{LEASE, Samples, Scenario, Stage, rotate},
    subjects::{Ability, Names},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "uncontended",
    about: "One task acquires and releases one name, again and again.",
    run: |stage| Box::pin(run(stage)),
};

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let subjects = stage.subjects(&[Ability::Pairs]);
    let mut workers = stage.workers(&subjects, &server, LEASE).await?;
    let mut samples = Samples::new();
    for round in 0..stage.plan.rounds() {
        for worker in &mut workers {
            let load = stage.load(worker, round, Names::One("alone".into()), 1).await?;
            samples.add(worker.0, load);
        }
        rotate(&mut workers);
    }
    stage.compare(&samples, "pairs", "1/s", Load::pairs_per_second)
}
