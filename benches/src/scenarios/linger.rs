//! A client that keeps a lock for its task, and another client that wants it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore_testkit::span;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    error::Result,
    measure::{
        load::{Load, Lock, Span, load},
        server::Server,
        stats::{Times, median, ratio},
    },
    run::{LEASE, Scenario, Stage},
    subjects::{Subject, lockcore::Peer},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "linger",
    about: "One task acquires and releases one name, again and again, in a client that keeps the lock for it. Then another client asks for it, again and again.",
    run: |stage| Box::pin(run(stage)),
};

/// How long the client keeps the lock.
const LINGER: Duration = Duration::from_millis(20);

/// The name of the client that keeps no locks.
const WITHOUT: &str = "lockcore without linger";

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let server = Server::start().await?;
    let (keeping, plain) = (
        Peer::keeping(&server.url(), LEASE, LINGER).await?,
        Peer::connect(&server.url(), LEASE).await?,
    );
    let other = Peer::connect(&server.url(), LEASE).await?;
    let (mut kept, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let [mut waits, mut waits_without] = [(); 2].map(|()| Vec::new());
    let seen = stage.plan.either(100, 500);
    for round in 0..stage.plan.rounds() {
        stage.turn(Subject::Lockcore, round);
        let span = stage.plan.span();
        kept.push(pairs(&keeping, span).await?.pairs_per_second());
        without.push(pairs(&plain, span).await?.pairs_per_second());
        ratios.extend(kept.last().zip(without.last()).map(|(kept, plain)| ratio(*kept, *plain)));
        waits.push(wait_beside(&keeping, &other, seen).await?);
        waits_without.push(wait_beside(&plain, &other, seen).await?);
    }
    stage.value(Subject::Lockcore.name(), "pairs", median(&kept), "1/s")?;
    stage.value(WITHOUT, "pairs", median(&without), "1/s")?;
    stage.against("pairs", median(&ratios), WITHOUT)?;
    let metric = "p50 wait of another client";
    stage.value(Subject::Lockcore.name(), metric, median(&waits) / 1e3, "us")?;
    stage.value(WITHOUT, metric, median(&waits_without) / 1e3, "us")
}

/// The pairs of one task that returns to the lock at once.
async fn pairs(client: &Peer, span: Span) -> Result<Load> {
    load::<false, _>(vec![Arc::new(client.lock("kept"))], span).await
}

/// The wait of another client for the lock while a task of this one acquires it again and again:
/// the median in nanoseconds.
async fn wait_beside(client: &Peer, other: &Peer, times: usize) -> Result<f64> {
    let (lock, wanted) = (client.lock("shared"), other.lock("shared"));
    let task: JoinHandle<Result<()>> = tokio::spawn(async move {
        loop {
            let hold = lock.acquire().await?;
            lock.release(hold).await?;
        }
    });
    let mut waits = Vec::with_capacity(times);
    for _ in 0..times {
        sleep(Duration::from_millis(2)).await;
        let begun = Instant::now();
        let hold = wanted.acquire().await?;
        waits.push(span(begun.elapsed()));
        wanted.release(hold).await?;
    }
    task.abort();
    match task.await {
        Err(_) => Ok(Times::of(waits)?.quantile(0.5)),
        Ok(failed) => failed.map(|()| f64::NAN),
    }
}
