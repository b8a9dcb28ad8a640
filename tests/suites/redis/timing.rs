//! Times that a test measures, on a machine that may be busy with something else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Measures five times. The median must be less than `limit`, and each time less than 2 s more.
pub(crate) async fn mostly_within(
    limit: Duration,
    what: &str,
    mut measure: impl AsyncFnMut() -> Duration,
) {
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(measure().await);
    }
    times.sort_unstable();
    let is_prompt = times[2] < limit && times[4] < limit + Duration::from_secs(2);
    assert!(is_prompt, "{what}: not within {limit:?}, but {times:?}");
}

/// The delays of the machine itself while a test measures a time: what sleeps of 10 ms on a separate
/// thread took beyond 20 ms.
pub(crate) struct Lateness {
    sum: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Lateness {
    /// Measures from now on until this is dropped.
    pub(crate) fn measure() -> Self {
        const TICK: Duration = Duration::from_millis(10);
        let (sum, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let is_over = Arc::new(AtomicBool::new(false));
        thread::spawn({
            let (sum, most, is_over) = (sum.clone(), most.clone(), is_over.clone());
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    thread::sleep(TICK);
                    let late = start.elapsed().saturating_sub(2 * TICK);
                    let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                    sum.fetch_add(late, Ordering::Relaxed);
                    most.fetch_max(late, Ordering::Relaxed);
                }
            }
        });
        Self { sum, most, is_over }
    }

    /// The sum of the delays so far.
    pub(crate) fn so_far(&self) -> Duration {
        Duration::from_micros(self.sum.load(Ordering::Relaxed))
    }

    /// The longest delay so far.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.most.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
