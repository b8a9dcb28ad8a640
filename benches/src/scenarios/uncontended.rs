//! One task acquires and releases one name.

use crate::{
    error::Result,
    measure::{samples::Samples, server::Server},
    run::{LEASE, Scenario, Stage, rotate},
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
            let names = Names::One("alone".into());
            let served = stage.served(worker, &server, round, names, 1).await?;
            samples.add(worker.0, served);
        }
        rotate(&mut workers);
    }
    stage.compare_with_best(&samples, "pairs", |served| served.load.pairs_per_second())?;
    stage.server_time(&samples, "server time a pair")
}
