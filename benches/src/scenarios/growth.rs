//! The growth of the cost with tasks, names and processes.

use std::time::Duration;

use crate::{
    error::Result,
    measure::{load::Span, server::Server, stats::median},
    run::{LEASE, Scenario, Stage},
    scenarios::fleet,
    subjects::{Names, Subject},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "growth",
    about: "Pairs a second by the number of tasks, on a name each and on one name, and of processes with 16 tasks on one name.",
    run: |stage| Box::pin(run(stage)),
};

const TASKS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const PROCESSES: [usize; 4] = [1, 2, 4, 8];

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let [warm_up, measured] = stage.plan.either([50, 150], [300, 1000]).map(Duration::from_millis);
    let span = Span { warm_up, measured };
    let lines = [
        (Subject::Lockcore, "own names", Names::Each("grown".into())),
        (Subject::Floor, "own names", Names::Each("grown".into())),
        (Subject::Rslock, "own names", Names::Each("grown".into())),
        (Subject::Lockcore, "one name", Names::One("grown".into())),
        (Subject::RslockFast, "one name", Names::One("grown".into())),
    ];
    for (subject, what, names) in lines {
        for (_, mut worker) in stage.workers(&[subject], &server, LEASE).await? {
            for tasks in TASKS {
                let subject = format!("{}, {what}", subject.name());
                stage.step(&format!("{subject}, {tasks} tasks"));
                let mut rounds = Vec::new();
                for _ in 0..stage.plan.rounds() {
                    rounds.push(worker.load(names.clone(), tasks, span).await?.pairs_per_second());
                }
                stage.value(subject, format!("{tasks} tasks"), median(&rounds), "1/s")?;
            }
        }
    }
    for subject in [Subject::Lockcore, Subject::RslockFast] {
        for processes in PROCESSES {
            stage.step(&format!("{}, {processes} processes", subject.name()));
            let mut workers = fleet::start(subject, &server, processes).await?;
            let mut rounds = Vec::new();
            for _ in 0..stage.plan.rounds() {
                let (seen, _) =
                    fleet::contend(subject, &mut workers, &server, fleet::TASKS, span).await?;
                rounds.push(seen.grants_per_second);
            }
            let metric = format!("{processes} processes");
            stage.value(
                format!("{}, one name, by processes", subject.name()),
                metric,
                median(&rounds),
                "1/s",
            )?;
        }
    }
    Ok(())
}
