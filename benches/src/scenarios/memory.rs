//! Locks in the memory of one process.

use std::sync::Arc;

use crate::{
    error::Result,
    measure::load::{Load, Lock, Span, load},
    run::{Samples, Scenario, Stage},
    subjects::{
        Subject,
        memory::{Floor, Memory},
    },
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "memory",
    about: "1 task and 64 tasks acquire and release one name in the memory of their process.",
    run: |stage| Box::pin(run(stage)),
};

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    stage.note("the floor: a sharded map of tokio's mutexes; the others have no locks in memory");
    let (memory, floor) = (Memory::new(), Floor::default());
    for (tasks, metric) in [(1, "pairs of 1 task"), (64, "pairs of 64 tasks")] {
        let mut samples = Samples::new();
        for round in 0..stage.plan.rounds() {
            let span = stage.plan.span();
            stage.turn(Subject::Lockcore, round);
            samples.add(Subject::Lockcore, pairs(|| memory.lock("memory"), tasks, span).await?);
            stage.turn(Subject::Floor, round);
            samples.add(Subject::Floor, pairs(|| floor.lock("memory"), tasks, span).await?);
        }
        stage.compare(&samples, metric, "1/s", Load::pairs_per_second)?;
    }
    Ok(())
}

/// Without taking the time of each: that takes as long as a pair.
async fn pairs<L: Lock>(lock: impl Fn() -> Arc<L>, tasks: usize, span: Span) -> Result<Load> {
    load::<false, L>((0..tasks).map(|_| lock()).collect(), span).await
}
