//! A holder is killed, and others wait for its locks.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    error::{Result, failure},
    measure::{samples::Samples, server::Server, stats::Times},
    run::{Scenario, Stage},
    subjects::{Ability, Subject},
    worker::{Order, Worker},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "takeover",
    about: "A process that holds 50 names is killed: from the end of each lease to the grant in another process that waits.",
    run: |stage| Box::pin(run(stage)),
};

const NAMES: usize = 50;
const LEASE: Duration = Duration::from_secs(1);

/// The time until all tasks wait. Leases that are not renewed must not end meanwhile.
const SETTLING: Duration = Duration::from_millis(300);

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut samples = Samples::new();
    let subjects = stage.subjects(&[Ability::Waiting]);
    for round in 0..stage.plan.either(2, 5) {
        for subject in &subjects {
            stage.step(&format!("{}, round {}", subject.name(), round + 1));
            let taken = take_over(*subject).await;
            for late in stage.done(*subject, taken)?.unwrap_or_default() {
                samples.add(*subject, late);
            }
        }
    }
    stage.note(format!(
        "over all {} grants of the run; the server's time of expiry is in whole milliseconds",
        samples.of(Subject::Lockcore).len()
    ));
    let mut p99s = Vec::new();
    for subject in samples.subjects() {
        let times = Times::of(samples.of(subject).iter().copied())?;
        let [p50, p99] = [0.5, 0.99].map(|part| times.quantile(part) / 1e6);
        stage.value(subject.name(), "p99 after the lease", p99, "ms")?;
        stage.value(subject.name(), "p50 after the lease", p50, "ms")?;
        p99s.push((subject, p99));
    }
    let of = |subject| p99s.iter().find(|(of, _)| *of == subject).map(|(_, p99)| *p99);
    stage.less_than(
        Subject::Redisson,
        "p99 after the lease",
        of(Subject::Lockcore).unwrap_or(0.0),
        of(Subject::Redisson),
    )
}

/// The time from the end of the lease to the next grant of each name, in nanoseconds.
async fn take_over(subject: Subject) -> Result<Vec<u64>> {
    let server = Server::start().await?;
    let mut waiter = Worker::start(subject, &server.url(), LEASE).await?;
    let mut holder = Worker::start(subject, &server.url(), LEASE).await?;
    holder.carry_out(Order::Hold { prefix: "taken".into(), from: 0, count: NAMES }).await?;
    waiter.carry_out(Order::Await { prefix: "taken".into(), count: NAMES }).await?;
    sleep(SETTLING).await;
    holder.kill().await?;
    let keys: Vec<String> =
        (0..NAMES).map(|number| subject.key(&format!("taken-{number}"))).collect();
    let ends = server.ends(&keys).await?;
    let grants = waiter.stamps(Order::Grants).await?;
    if grants.len() != NAMES || ends.iter().any(|end| *end < 0) {
        return Err(failure(format!("{}: not all names were held and granted", subject.name())));
    }
    let late =
        |(end, granted): (&i64, &u64)| Ok(granted.saturating_sub(u64::try_from(*end)? * 1_000_000));
    ends.iter().zip(&grants).map(late).collect()
}
