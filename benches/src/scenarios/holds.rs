//! Very many holds that are renewed.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

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
    name: "holds",
    about: "One process keeps 10,000 holds with a lease of 9 s, which is renewed every third of it.",
    run: |stage| Box::pin(run(stage)),
};

const HOLDS: usize = 10_000;
const LEASE: Duration = Duration::from_secs(9);
const TICK: Duration = Duration::from_secs(3);

/// A hold with less than this remaining should have been renewed half a tick ago.
const LATE: Duration = Duration::from_millis(4500);

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let time = stage.plan.either(4, 20) * TICK;
    let mut subjects = stage.subjects(&[Ability::Renewal]);
    if stage.plan.is_quick {
        for subject in subjects
            .iter()
            .filter(|subject| ![Subject::Lockcore, Subject::Redisson].contains(subject))
        {
            stage.left_out(*subject, "only in a full run");
        }
        subjects.retain(|subject| [Subject::Lockcore, Subject::Redisson].contains(subject));
    }
    stage.note(format!(
        "one round of {} s; late: less than {} s of the lease left, looked at each second",
        time.as_secs(),
        LATE.as_secs_f64()
    ));
    let mut of_ours = 0.0;
    for subject in subjects {
        stage.step(subject.name());
        let kept = keep(stage, subject, time).await;
        let Some(used) = stage.done(subject, kept)? else { continue };
        match subject {
            Subject::Lockcore => of_ours = used,
            Subject::Redisson => {
                stage.less_than(subject, "client CPU", of_ours, Some(used))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a subject keep its holds for that time. Returns the processor time of its process, in
/// percent.
async fn keep(stage: &mut Stage<'_>, subject: Subject, time: Duration) -> Result<f64> {
    let server = Server::start().await?;
    let mut worker = Worker::start(subject, &server.url(), LEASE).await?;
    worker.carry_out(Order::Hold { prefix: "held".into(), from: 0, count: HOLDS }).await?;
    let keys: Vec<String> =
        (0..HOLDS).map(|number| subject.key(&format!("held-{number}"))).collect();
    let (before, used, begun) =
        (server.calls().await?, processor_time(worker.pid()?)?, Instant::now());
    let mut late = HashSet::new();
    while begun.elapsed() < time {
        sleep(Duration::from_secs(1)).await;
        let left = server.left(&keys).await?;
        let limit = i64::try_from(LATE.as_millis())?;
        late.extend(
            left.iter().enumerate().filter(|(_, left)| **left < limit).map(|(number, _)| number),
        );
    }
    let calls = server.calls().await?.since(&before).of(subject.commands());
    let (used, took) = (processor_time(worker.pid()?)? - used, begun.elapsed().as_secs_f64());
    let used = ratio(used.as_secs_f64() * 100.0, took);
    let name = subject.name();
    stage.value(name, "calls a tick", ratio(float(calls), took / TICK.as_secs_f64()), "")?;
    stage.value(name, "client CPU", used, "% of a core")?;
    stage.value(name, "late renewals", float(late.len() as u64), "")?;
    worker.kill().await?;
    Ok(used)
}
