//! Many tasks, each with its own name.

use crate::{
    error::Result,
    measure::{samples::Samples, server::Server},
    run::{LEASE, Scenario, Stage, rotate},
    scenarios::of_tasks,
    subjects::{Ability, Names},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "distinct",
    about: "1 to 1,024 tasks of one process, each of which acquires and releases a name of its own.",
    run: |stage| Box::pin(run(stage)),
};

const TASKS: [usize; 6] = [1, 4, 16, 64, 256, 1024];

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let subjects = stage.subjects(&[Ability::Pairs]);
    let mut workers = stage.workers(&subjects, &server, LEASE).await?;
    let mut measured = Vec::new();
    for tasks in TASKS {
        let mut samples = Samples::new();
        for round in 0..stage.plan.rounds() {
            for worker in &mut workers {
                let names = Names::Each("distinct".into());
                let served = stage.served(worker, &server, round, names, tasks).await?;
                samples.add(worker.0, served);
            }
            rotate(&mut workers);
        }
        measured.push((of_tasks(tasks), samples));
    }
    for (tasks, samples) in &measured {
        let metric = format!("pairs {tasks}");
        stage.compare_with_best(samples, &metric, |served| served.load.pairs_per_second())?;
    }
    for (tasks, samples) in &measured {
        stage.server_time(samples, &format!("server time {tasks}"))?;
    }
    Ok(())
}
