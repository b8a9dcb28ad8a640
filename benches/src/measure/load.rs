//! Tasks that acquire and release as fast as they can.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore_testkit::span;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    error::Result,
    measure::stats::{Times, float, ratio},
};

/// A lock of any library.
pub(crate) trait Lock: Send + Sync + 'static {
    type Hold: Send + 'static;

    fn acquire(&self) -> impl Future<Output = Result<Self::Hold>> + Send;

    fn release(&self, hold: Self::Hold) -> impl Future<Output = Result<()>> + Send;
}

/// The duration of a measurement, and of the warm-up before it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// The results of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    /// The pairs of each task in the measured time.
    pub(crate) pairs: Vec<u64>,
    pub(crate) took: Duration,
    /// The times to acquire, in nanoseconds, with the number of each. Empty if they were not
    /// requested.
    pub(crate) waits: Vec<(u64, u64)>,
    /// The number of pairs, including those of the warm-up.
    pub(crate) all_pairs: u64,
    /// How often another task of this process had held the lock before, in the measured time.
    pub(crate) hand_overs: u64,
    /// The number of failed operations, and the first reason.
    pub(crate) failures: u64,
    pub(crate) reason: Option<String>,
}

impl Load {
    pub(crate) fn total(&self) -> u64 {
        self.pairs.iter().sum()
    }

    pub(crate) fn pairs_per_second(&self) -> f64 {
        ratio(float(self.total()), self.took.as_secs_f64())
    }

    pub(crate) fn hand_overs_per_second(&self) -> f64 {
        ratio(float(self.hand_overs), self.took.as_secs_f64())
    }

    /// The time from the start of one hold to the start of the next, in nanoseconds.
    pub(crate) fn hold_cycle(&self) -> f64 {
        ratio(self.took.as_secs_f64() * 1e9, float(self.total()))
    }

    /// The wait that this fraction of all waits does not exceed, in nanoseconds.
    pub(crate) fn wait(&self, part: f64) -> Result<f64> {
        Ok(Times::of_counts(self.waits.iter().copied())?.quantile(part))
    }
}

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const ENDING: u8 = 2;

/// Makes one task per lock acquire and release it repeatedly.
///
/// With `DETAILS` it measures the time of each acquisition and records the previous holder, which
/// costs as much as a pair in memory. If an operation fails, the task continues after a pause.
pub(crate) async fn load<const DETAILS: bool, L: Lock>(
    locks: Vec<Arc<L>>,
    span: Span,
) -> Result<Load> {
    let shared =
        Arc::new(Shared { phase: AtomicU8::new(WARMING_UP), last: AtomicUsize::new(usize::MAX) });
    let mut tasks = JoinSet::new();
    for (number, lock) in locks.into_iter().enumerate() {
        tasks.spawn(pairs::<DETAILS, L>(lock, number, shared.clone()));
    }
    pause(span.warm_up).await?;
    let begun = Instant::now();
    shared.phase.store(MEASURING, Ordering::Relaxed);
    pause(span.measured).await?;
    shared.phase.store(ENDING, Ordering::Relaxed);
    let took = begun.elapsed();
    let mut load = Load { took, ..Load::default() };
    let mut waits = Times::new()?;
    for task in tasks.join_all().await {
        load.pairs.push(task.measured);
        load.all_pairs += task.all;
        load.hand_overs += task.hand_overs;
        load.failures += task.failures;
        load.reason = load.reason.or(task.reason);
        waits.add(task.waits);
    }
    load.waits = waits.counts();
    Ok(load)
}

/// Waits on a separate thread, because tasks that are never idle would keep the runtime from
/// checking its timers.
async fn pause(time: Duration) -> Result<()> {
    Ok(tokio::task::spawn_blocking(move || thread::sleep(time)).await?)
}

/// The state that the tasks of a load share.
struct Shared {
    phase: AtomicU8,
    /// The last holder, if all tasks have the same lock.
    last: AtomicUsize,
}

/// The results of one task.
#[derive(Default)]
struct Pairs {
    measured: u64,
    all: u64,
    hand_overs: u64,
    waits: Vec<u64>,
    failures: u64,
    reason: Option<String>,
}

/// The pause after a failed operation.
const RESPITE: Duration = Duration::from_millis(1);

async fn pairs<const DETAILS: bool, L: Lock>(
    lock: Arc<L>,
    number: usize,
    shared: Arc<Shared>,
) -> Pairs {
    let mut pairs = Pairs::default();
    loop {
        let pair = pair::<DETAILS, L>(&lock, number, &shared).await;
        let phase = shared.phase.load(Ordering::Relaxed);
        match pair {
            Ok((waited, is_handed_over)) => {
                pairs.all += 1;
                if phase == MEASURING {
                    pairs.measured += 1;
                    pairs.hand_overs += u64::from(is_handed_over);
                    pairs.waits.extend(waited);
                }
            }
            Err(error) => {
                pairs.failures += 1;
                pairs.reason.get_or_insert_with(|| error.to_string());
                tokio::time::sleep(RESPITE).await;
            }
        }
        if phase == ENDING {
            return pairs;
        }
    }
}

/// Returns the wait, if it is measured, and whether another task held the lock before.
async fn pair<const DETAILS: bool, L: Lock>(
    lock: &L,
    number: usize,
    shared: &Shared,
) -> Result<(Option<u64>, bool)> {
    let asked = DETAILS.then(Instant::now);
    let hold = lock.acquire().await?;
    let waited = asked.map(|asked| span(asked.elapsed()));
    let is_handed_over = DETAILS && shared.last.swap(number, Ordering::Relaxed) != number;
    lock.release(hold).await?;
    Ok((waited, is_handed_over))
}

#[cfg(test)]
mod tests {
    use lockcore::{LockGuard, Locks};
    use lockcore_memory::MemoryBackend;

    use super::*;

    impl Lock for lockcore::Lock {
        type Hold = LockGuard;

        async fn acquire(&self) -> Result<LockGuard> {
            Ok(lockcore::Lock::acquire(self).await?)
        }

        async fn release(&self, hold: LockGuard) -> Result<()> {
            Ok(hold.release().await?)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_load_counts_what_each_task_does_in_the_time_measured() {
        let locks = Locks::new(MemoryBackend::new());
        let span = Span { warm_up: Duration::from_millis(10), measured: Duration::from_millis(50) };
        let tasks = (0..3).map(|_| Arc::new(locks.lock("busy"))).collect();
        let load = load::<true, _>(tasks, span).await.unwrap();
        assert_eq!(load.pairs.len(), 3);
        assert!(load.pairs.iter().all(|pairs| *pairs > 0) && load.all_pairs > load.total());
        assert_eq!(load.waits.iter().map(|(_, count)| count).sum::<u64>(), load.total());
        assert!(load.hand_overs > 0 && load.failures == 0);
        assert!(load.took >= span.measured && load.wait(0.99).unwrap() > 0.0);
    }
}
