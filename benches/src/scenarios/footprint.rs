//! The memory for each hold, each waiter and each unused name.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    error::Result,
    measure::{process::memory, server::Server, stats::float},
    run::{Scenario, Stage},
    subjects::{Ability, Subject},
    worker::{Order, Worker},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "footprint",
    about: "What the memory of a process grows by for each hold, each waiter and each name that was used.",
    run: |stage| Box::pin(run(stage)),
};

/// This many first ones are not counted, to leave out one-time allocations.
const BEFORE: usize = 10_000;

/// The number of those that are counted.
const COUNTED: usize = 40_000;

/// The number of names with waiters.
const NAMES: usize = 100;

const LEASE: Duration = Duration::from_secs(600);

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    stage.note(format!(
        "anonymous memory (RssAnon) of a process of its own after {BEFORE} and after {COUNTED} more, the difference divided by \
         {COUNTED}; a hold with the guard that the user keeps, a waiter with its task and its future, on {NAMES} names; less than a \
         byte each is none: the kernel counts pages of 4 KiB"
    ));
    for subject in stage.subjects(&[Ability::Footprint]) {
        stage.step(&format!("{}, holds", subject.name()));
        let hold = |from, count| Order::Hold { prefix: "held".into(), from, count };
        let bytes = grown(subject, hold(0, BEFORE), hold(BEFORE, COUNTED), None).await?;
        stage.value(subject.name(), "a hold", bytes, "B")?;
        if subject != Subject::Lockcore {
            continue;
        }
        stage.step(&format!("{}, waiters", subject.name()));
        let wait = |count| Order::Wait { prefix: "kept".into(), names: NAMES, count };
        let kept = Order::Hold { prefix: "kept".into(), from: 0, count: NAMES };
        let bytes = grown(subject, wait(BEFORE), wait(COUNTED), Some(kept)).await?;
        stage.value(subject.name(), "a waiter", bytes, "B")?;
        stage.step(&format!("{}, names", subject.name()));
        let visit = |from, count| Order::Visit { prefix: "seen".into(), from, count };
        let bytes = grown(subject, visit(0, BEFORE), visit(BEFORE, COUNTED), None).await?;
        stage.value(subject.name(), "an idle name", bytes, "B")?;
    }
    stage.note("waiters and idle names of lockcore only: 50,000 tasks that ask at intervals would measure the server");
    Ok(())
}

/// The growth of the process in bytes for each item of the second order, while another process
/// carries out the third.
async fn grown(subject: Subject, first: Order, second: Order, other: Option<Order>) -> Result<f64> {
    let server = Server::start().await?;
    let mut holder = Worker::start(subject, &server.url(), LEASE).await?;
    if let Some(order) = other {
        holder.carry_out(order).await?;
    }
    let mut worker = Worker::start(subject, &server.url(), LEASE).await?;
    worker.carry_out(first).await?;
    let before = settled(&worker).await?;
    worker.carry_out(second).await?;
    let after = settled(&worker).await?;
    for worker in [worker, holder] {
        worker.kill().await?;
    }
    Ok((float(after.saturating_sub(before)) / float(COUNTED as u64)).trunc())
}

/// The memory of a process once its tasks have begun to wait.
async fn settled(worker: &Worker) -> Result<u64> {
    sleep(Duration::from_secs(1)).await;
    memory(worker.pid()?)
}
