//! Locks in the memory of one process.

use std::sync::Arc;

use crate::{
    error::Result,
    measure::{
        load::{Load, Lock, Span, load},
        samples::Samples,
        stats::{median, ratio},
    },
    run::{Scenario, Stage},
    subjects::{
        Subject,
        memory::{Floor, Least, Memory},
    },
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "memory",
    about: "1 task and 64 tasks acquire and release one name in the memory of their process.",
    run: |stage| Box::pin(run(stage)),
};

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    stage.note("the floor: a sharded map of tokio's mutexes; the others have no locks in memory");
    stage.note(format!(
        "{LEAST}: what a pair takes of any lock with leases, a queue, ids, tokens, a watchdog and exchangeable stores (`benches/src/subjects/memory.rs`)"
    ));
    let (memory, floor, least) = (Memory::new(), Floor::default(), Arc::new(Least::new("memory")));
    for (tasks, metric) in [(1, "pairs of 1 task"), (64, "pairs of 64 tasks")] {
        let (mut samples, mut least_pairs, mut of_least) = (Samples::new(), Vec::new(), Vec::new());
        for round in 0..stage.plan.rounds() {
            let span = stage.plan.span();
            stage.turn(Subject::Lockcore, round);
            let ours = pairs(|| memory.lock("memory"), tasks, span).await?;
            // It has no way for others to wait.
            if tasks == 1 {
                let theirs = pairs(|| least.clone(), tasks, span).await?.pairs_per_second();
                least_pairs.push(theirs);
                of_least.push(ratio(ours.pairs_per_second(), theirs));
            }
            samples.add(Subject::Lockcore, ours);
            stage.turn(Subject::Floor, round);
            samples.add(Subject::Floor, pairs(|| floor.lock("memory"), tasks, span).await?);
        }
        stage.compare(&samples, metric, "1/s", Load::pairs_per_second)?;
        if tasks == 1 {
            stage.value(LEAST, metric, median(&least_pairs), "1/s")?;
            stage.against(metric, median(&of_least), LEAST)?;
        }
    }
    Ok(())
}

const LEAST: &str = "the least";

/// Measures without the time of each pair, which would take as long as the pair.
async fn pairs<L: Lock>(lock: impl Fn() -> Arc<L>, tasks: usize, span: Span) -> Result<Load> {
    load::<false, L>((0..tasks).map(|_| lock()).collect(), span).await
}
