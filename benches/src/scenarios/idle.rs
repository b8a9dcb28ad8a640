//! Very many tasks wait, and nothing happens.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    error::Result,
    measure::{
        process::processor_time,
        server::Server,
        stats::{float, ratio},
    },
    run::{Scenario, Stage},
    subjects::{Ability, Subject},
    worker::{Order, Worker},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "idle",
    about: "10,000 tasks of one process wait for 100 names that another process holds.",
    run: |stage| Box::pin(run(stage)),
};

const TASKS: usize = 10_000;
const NAMES: usize = 100;

/// The names are held for longer than this takes, so that nothing is renewed meanwhile.
const LEASE: Duration = Duration::from_secs(600);

/// The time until all tasks wait.
const SETTLING: Duration = Duration::from_secs(2);

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let time = stage.plan.either(Duration::from_secs(5), Duration::from_secs(20));
    let mut subjects = stage.subjects(&[Ability::Waiting]);
    if stage.plan.is_quick {
        let in_quick = [Subject::Lockcore, Subject::Rslock, Subject::Redisson];
        for subject in subjects.iter().filter(|subject| !in_quick.contains(subject)) {
            stage.left_out(*subject, "only in a full run");
        }
        subjects.retain(|subject| in_quick.contains(subject));
    }
    stage.note(format!("one round of {} s", time.as_secs()));
    for subject in subjects {
        stage.step(subject.name());
        let idled = idle(stage, subject, time).await;
        stage.done(subject, idled)?;
    }
    Ok(())
}

/// Makes a subject's tasks wait for that time.
async fn idle(stage: &mut Stage<'_>, subject: Subject, time: Duration) -> Result<()> {
    let server = Server::start().await?;
    let mut holder = Worker::start(subject, &server.url(), LEASE).await?;
    holder.carry_out(Order::Hold { prefix: "idle".into(), from: 0, count: NAMES }).await?;
    let mut waiter = Worker::start(subject, &server.url(), LEASE).await?;
    waiter.carry_out(Order::Wait { prefix: "idle".into(), names: NAMES, count: TASKS }).await?;
    sleep(SETTLING).await;
    let (before, used, begun) =
        (server.calls().await?, processor_time(waiter.pid()?)?, Instant::now());
    sleep(time).await;
    let calls = server.calls().await?.since(&before);
    let (used, took) = (processor_time(waiter.pid()?)? - used, begun.elapsed().as_secs_f64());
    let commands = calls.of(subject.commands());
    stage.value(subject.name(), "commands", ratio(float(commands), took), "1/s")?;
    stage.value(
        subject.name(),
        "with those inside scripts",
        ratio(float(calls.all()), took),
        "1/s",
    )?;
    stage.value(
        subject.name(),
        "client CPU",
        ratio(used.as_secs_f64() * 100.0, took),
        "% of a core",
    )?;
    for worker in [waiter, holder] {
        worker.kill().await?;
    }
    Ok(())
}
