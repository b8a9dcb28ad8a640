//! Two processes hand one lock back and forth.

use std::time::{Duration, Instant};

use lockcore_testkit::span;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::{
    error::Result,
    measure::{
        samples::Samples,
        server::Server,
        stats::{Times, median, ratio},
    },
    run::{LEASE, Scenario, Stage, rotate},
    subjects::{Ability, Subject},
    worker::{Order, Worker},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "pingpong",
    about: "Two processes hand one lock to and fro: from the call of a release in one to the grant in the other.",
    run: |stage| Box::pin(run(stage)),
};

const NAME: &str = "pingpong";

/// The name of the fair lock's figure, which a release grants to the next waiter in the queue.
const FAIR: &str = "p50 of a fair lock";

/// The observations of one round, in nanoseconds.
#[derive(Debug)]
struct Seen {
    p50: f64,
    p99: f64,
    ping: f64,
}

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let mut pairs = Vec::new();
    let mut subjects = stage.subjects(&[Ability::Waiting]);
    subjects.insert(1, Subject::LockcoreFair);
    for subject in subjects {
        let workers = stage.workers(&[subject, subject], &server, LEASE).await?;
        pairs.push((subject, workers));
    }
    let ping = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let time = stage.plan.either(Duration::from_millis(700), Duration::from_secs(3));
    let mut samples = Samples::new();
    for round in 0..stage.plan.rounds() {
        for (subject, workers) in &mut pairs {
            stage.turn(*subject, round);
            if let [(_, one), (_, other)] = workers.as_mut_slice() {
                samples.add(*subject, hand_over(one, other, &ping, time).await?);
            }
        }
        rotate(&mut pairs);
    }
    stage.values(&samples, "p50", "us", |seen| seen.p50 / 1e3)?;
    stage.values(&samples, "p99", "us", |seen| seen.p99 / 1e3)?;
    stage.values(&samples, "PING", "us", |seen| seen.ping / 1e3)?;
    for (subject, metric) in [(Subject::Lockcore, "p50"), (Subject::LockcoreFair, FAIR)] {
        let in_pings = samples.of(subject).iter().map(|seen| ratio(seen.p50, seen.ping));
        stage.against(metric, median(&in_pings.collect::<Vec<_>>()), "PING")?;
    }
    let of = |subject| samples.median(subject, |seen: &Seen| seen.p50);
    for peer in [Subject::Redisson, Subject::Rueidislock] {
        let theirs = samples.subjects().contains(&peer).then(|| of(peer));
        stage.less_than(peer, "p50", of(Subject::Lockcore), theirs)?;
    }
    Ok(())
}

/// Each process in turn waits for the lock until the other releases it after a while. All processes
/// share one clock.
async fn hand_over(
    one: &mut Worker,
    other: &mut Worker,
    ping: &MultiplexedConnection,
    time: Duration,
) -> Result<Seen> {
    let mut pings = Vec::new();
    let times = hand_overs(one, other, time, async |pause| {
        pings.push(tokio::spawn(ping_after(pause, ping.clone())).await??);
        Ok(())
    });
    let (times, pings) = (Times::of(times.await?)?, Times::of(pings)?);
    Ok(Seen { p50: times.quantile(0.5), p99: times.quantile(0.99), ping: pings.quantile(0.5) })
}

/// The times of hand-overs back and forth, in nanoseconds. `after_each` is told how long the holder
/// had waited.
pub(super) async fn hand_overs(
    one: &mut Worker,
    other: &mut Worker,
    time: Duration,
    mut after_each: impl AsyncFnMut(Duration) -> Result<()>,
) -> Result<Vec<u64>> {
    let (mut holder, mut waiter) = (one, other);
    holder.stamp(Order::Acquire(NAME.into())).await?;
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let pause = pause(times.len());
        let release = async {
            sleep(pause).await;
            holder.stamp(Order::Release).await
        };
        let (had, released) = tokio::join!(waiter.stamp(Order::Acquire(NAME.into())), release);
        times.push(had?.saturating_sub(released?));
        (holder, waiter) = (waiter, holder);
        after_each(pause).await?;
    }
    holder.stamp(Order::Release).await?;
    Ok(times)
}

/// The time of a PING. A task sends it, as it does a release, after the machine was as idle as
/// before a release: the longer that was, the longer it takes to wake up.
async fn ping_after(pause: Duration, mut ping: MultiplexedConnection) -> Result<u64> {
    sleep(pause).await;
    let asked = Instant::now();
    let _pong: String = redis::cmd("PING").query_async(&mut ping).await?;
    Ok(span(asked.elapsed()))
}

/// Long enough for the other process to wait, and out of step with subjects that poll at intervals.
fn pause(turn: usize) -> Duration {
    Duration::from_millis(4 + (turn as u64 * 7) % 10)
}
