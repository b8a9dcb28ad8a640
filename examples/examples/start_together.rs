//! Workers that warm up for different times and then start together, with two latches; and what to do when one of them never
//! becomes ready.
//!
//! ```text
//! cargo run --example start_together
//! cargo run --example start_together -- --redis redis://127.0.0.1:6379
//! ```

use std::{process::ExitCode, time::Duration};

use lockcore::{LockError, Locks};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// How long each worker needs to warm up.
const WARM_UP: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(150), Duration::from_millis(300)];
/// What a busy machine may take to wake them.
const GRACE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("start_together", start_together).await
}

async fn start_together(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "{} workers, each in a process of its own, start together; the latches are kept {store}",
        WARM_UP.len()
    ));
    let locks = store.client().await?.build()?;

    story.chapter("1. All become ready");
    let started = run_once(&story, &store, &locks, "monday", WARM_UP.len()).await?;
    let (first, last) = (started.iter().min().copied(), started.iter().max().copied());
    let (first, last) = first.zip(last).ok_or("somebody should have started")?;
    story.add(format_args!("the last one {} µs after the first", (last - first).as_micros()));
    claim(started.len() == WARM_UP.len(), "all have started")?;
    claim(last - first < GRACE, "they start together")?;

    story.chapter("2. One dies while it warms up");
    // Nobody holds a latch, and no lease ends by which it would be known: hence the time-out of whoever waits.
    let started = run_once(&story, &store, &locks, "tuesday", WARM_UP.len() - 1).await?;
    claim(started.len() == WARM_UP.len() - 1, "those who are ready start without it")?;
    Ok(locks.close().await?)
}

/// Starts workers, so many of which live to be ready, and returns when each of them began.
async fn run_once(
    story: &Story,
    store: &Store,
    locks: &Locks,
    day: &str,
    live: usize,
) -> Result<Vec<Instant>, Failure> {
    // A latch that has no count is open, so both are set before anybody can wait.
    let (ready, go) = (locks.latch(format!("{day}:ready")), locks.latch(format!("{day}:go")));
    ready.set_count(WARM_UP.len().try_into()?).await?;
    go.set_count(1).await?;

    let mut workers = JoinSet::new();
    for warm_up in WARM_UP.into_iter().take(live) {
        workers.spawn(work(store.client().await?.build()?, day.to_owned(), warm_up));
    }
    match ready.wait_timeout(GRACE + WARM_UP[2]).await {
        Ok(()) => story.tell("starter", "everybody is ready"),
        Err(LockError::LatchTimeout { .. }) => {
            let missing = ready.open().await?;
            story.tell("starter", format_args!("gives up on {missing} that did not become ready"));
            claim(missing as usize == WARM_UP.len() - live, "the count says how many are missing")?;
        }
        Err(error) => return Err(error.into()),
    }
    let sent = Instant::now();
    go.count_down().await?;

    let mut started = Vec::new();
    while let Some(worker) = workers.join_next().await {
        started.push(worker??);
    }
    claim(started.iter().all(|start| *start >= sent), "nobody starts early")?;
    story.tell("workers", format_args!("{} have started", started.len()));
    Ok(started)
}

/// One worker: warms up, says so, and starts when it is told to.
async fn work(locks: Locks, day: String, warm_up: Duration) -> Result<Instant, LockError> {
    sleep(warm_up).await;
    locks.latch(format!("{day}:ready")).count_down().await?;
    locks.latch(format!("{day}:go")).wait().await?;
    let started = Instant::now();
    locks.close().await?;
    Ok(started)
}
