//! A task re-enters its own hold.

use crate::{
    error::Result,
    measure::{
        server::Server,
        stats::{Times, float},
    },
    run::{LEASE, Scenario, Stage},
    subjects::{Ability, Subject},
    worker::Order,
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "nested",
    about: "A task acquires and releases, inside a hold, the lock that it holds.",
    run: |stage| Box::pin(run(stage)),
};

const PAIRS: u32 = 100;

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let mut times = Vec::new();
    for subject in stage.subjects(&[Ability::Nesting]) {
        for (subject, mut worker) in stage.workers(&[subject], &server, LEASE).await? {
            // The hold itself takes three commands, and scripts that the server does not know take
            // one more. The first run is the warm-up.
            let samples =
                if subject == Subject::Redisson { 20 } else { stage.plan.either(2_000, 10_000) };
            let order = Order::Nest { samples, pairs: PAIRS };
            worker.stamps(order.clone()).await?;
            let before = server.calls().await?;
            let stamps = worker.stamps(order).await?;
            let commands = server.calls().await?.since(&before).of(subject.commands());
            let p50 = Times::of(stamps)?.quantile(0.5) / 1e3;
            stage.value(subject.name(), "p50 of a pair", p50, "us")?;
            let of_the_hold = u64::from(subject == Subject::Lockcore) * 3;
            stage.value(
                subject.name(),
                "commands",
                float(commands.saturating_sub(of_the_hold)),
                "",
            )?;
            times.push((subject, p50));
        }
    }
    stage.note(
        "the commands are those of all pairs together, without the three of the hold around them; the record of the client, \
         which is written every 10 s, may be among them",
    );
    let of = |subject| times.iter().find(|(of, _)| *of == subject).map(|(_, p50)| *p50);
    stage.less_than(
        Subject::Redisson,
        "p50 of a pair",
        of(Subject::Lockcore).unwrap_or(0.0),
        of(Subject::Redisson),
    )
}
