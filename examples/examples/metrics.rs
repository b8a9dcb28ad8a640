//! Metrics for Prometheus: a few workers that use locks, and the figures of that over HTTP.
//!
//! ```text
//! cargo run --example metrics
//! METRICS_ADDRESS=127.0.0.1:9464 cargo run --example metrics -- --redis redis://127.0.0.1:6379
//! ```
//!
//! Without `METRICS_ADDRESS` it shows after two seconds what a scrape would get, and ends. With it, it serves
//! `http://127.0.0.1:9464/metrics` until it is stopped. `observability/` has a board and alert rules for it.

use std::{env, net::SocketAddr, process::ExitCode, time::Duration};

use lockcore::{LockError, LockName, Locks};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Short, so that there is something to see soon: the default is 30 s.
const LEASE: Duration = Duration::from_millis(900);

/// From a nested acquisition to a lock that somebody keeps for minutes.
const SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

/// A renewal that is answered in time leaves two thirds of the lease.
const RATIOS: [f64; 7] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

#[tokio::main]
async fn main() -> ExitCode {
    with_store("metrics", metrics).await
}

async fn metrics(store: Store) -> Result<(), Failure> {
    let address = env::var("METRICS_ADDRESS").ok();
    let address = address.map(|address| address.parse::<SocketAddr>()).transpose()?;
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_ratio".into()), &RATIOS)?;
    match address {
        Some(address) => {
            // Before the clients are made: they publish to the recorder that they find.
            recorder.with_http_listener(address).install()?;
            println!("serving http://{address}/metrics");
            let mut work = work(&store).await?;
            while work.join_next().await.is_some() {}
            Ok(())
        }
        None => {
            let rendered = recorder.install_recorder()?;
            let work = work(&store).await?;
            sleep(Duration::from_secs(2)).await;
            drop(work);
            show(&store, &rendered.render())
        }
    }
}

/// Prints some of what a scrape gets.
fn show(store: &Store, text: &str) -> Result<(), Failure> {
    let story = Story::begin(format_args!("Metrics; the locks are kept {store}"));
    let shown =
        ["lockcore_held{", "lockcore_waiting{", "lockcore_lost_total{", "lockcore_renewals_total{"];
    for line in text.lines().filter(|line| shown.iter().any(|name| line.starts_with(name))) {
        story.line(line);
    }
    for outcome in ["granted", "handed_over", "nested", "refused", "timeout", "cancelled"] {
        let is_there = text.lines().any(|line| {
            line.starts_with("lockcore_acquire_seconds_count")
                && line.contains(&format!("outcome=\"{outcome}\""))
                && !line.ends_with(" 0")
        });
        claim(is_there, &format!("some acquisitions are {outcome}"))?;
    }
    story.line("Set METRICS_ADDRESS to serve all of it to Prometheus.");
    Ok(())
}

/// The part of a name that is a label: of these, there are only three.
fn group(name: &LockName) -> &'static str {
    match name.as_str().rsplit(':').nth(1) {
        Some("order") => "order",
        Some("report") => "report",
        _ => "other",
    }
}

/// Starts the workers of three clients, as three processes would be.
async fn work(store: &Store) -> Result<JoinSet<()>, Failure> {
    let mut work = JoinSet::new();
    for _ in 0..2 {
        let locks = store.client().await?.lease(LEASE).metrics_group(group).build()?;
        for _ in 0..2 {
            work.spawn(repeat(locks.clone(), orders));
        }
        work.spawn(repeat(locks.clone(), reports));
        work.spawn(repeat(locks.clone(), slots));
        work.spawn(repeat(locks, losses));
    }
    let leader = store.client().await?.lease(LEASE).metrics_group(group).build()?;
    work.spawn(repeat(leader, leadership));
    Ok(work)
}

/// Does something again and again, also while the store fails.
async fn repeat(locks: Locks, work: impl AsyncFn(&Locks) -> Result<(), LockError>) {
    loop {
        if work(&locks).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// An order is changed by one at a time, and the code nests.
async fn orders(locks: &Locks) -> Result<(), LockError> {
    let lock = locks.lock("order:42");
    lock.run(async |_| {
        sleep(Duration::from_millis(5)).await;
        lock.acquire().await?.release().await
    })
    .await??;
    sleep(Duration::from_millis(5)).await;
    Ok(())
}

/// Some give up when it takes too long, and some are cut off.
async fn reports(locks: &Locks) -> Result<(), LockError> {
    let report = locks.lock("report:daily");
    let Some(guard) = report.try_acquire().await? else {
        match report.acquire_timeout(Duration::from_millis(20)).await {
            Ok(guard) => guard.release().await?,
            Err(LockError::Timeout { .. }) => {}
            Err(error) => return Err(error),
        }
        // Dropped at the end of the time.
        if let Ok(guard) = timeout(Duration::from_millis(10), report.acquire()).await {
            guard?.release().await?;
        }
        return Ok(());
    };
    // Long enough to be renewed.
    sleep(LEASE / 2).await;
    guard.release().await
}

/// Somebody is the leader for as long as possible.
async fn leadership(locks: &Locks) -> Result<(), LockError> {
    let leader = locks.lock("leader").acquire().await?;
    leader.lost().await;
    Ok(())
}

/// The other kinds of locks.
async fn slots(locks: &Locks) -> Result<(), LockError> {
    let slots = locks.semaphore("slots", 2).acquire().await?;
    let queue = locks.fair_lock("queue").acquire().await?;
    let settings = locks.rw_lock("settings");
    settings.read().acquire().await?.release().await?;
    settings.write().acquire().await?.release().await?;
    sleep(Duration::from_millis(2)).await;
    queue.release().await?;
    slots.release().await
}

/// A lease that ends too early, and now and then somebody who frees a lock by force.
async fn losses(locks: &Locks) -> Result<(), LockError> {
    let short = locks.lock("report:short").lease(Duration::from_millis(50)).acquire().await?;
    sleep(Duration::from_millis(100)).await;
    drop(short);
    let forced = locks.lock("report:forced").acquire().await?;
    locks.lock("report:forced").force_release().await?;
    sleep(Duration::from_millis(900)).await;
    forced.release().await
}
