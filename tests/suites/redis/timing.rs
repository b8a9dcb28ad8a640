//! Times that a test measures, on a machine that may be busy with something else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Measures until something takes less than `limit`, five times at most: the machine may be busy
/// with something else, but not each time.
pub(crate) async fn once_within(
    limit: Duration,
    what: &str,
    mut measure: impl AsyncFnMut() -> Duration,
) {
    let mut times = Vec::new();
    while times.len() < 5 {
        let time = measure().await;
        if time < limit {
            return;
        }
        times.push(time);
    }
    panic!("{what}: not within {limit:?}, but {times:?}");
}

/// The delays of the machine itself while a test measures a time: what sleeps of 10 ms take too
/// long, on a thread of their own.
pub(crate) struct Lateness {
    micros: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Lateness {
    /// Measures from now on until this is dropped.
    pub(crate) fn measure() -> Self {
        const TICK: Duration = Duration::from_millis(10);
        let (micros, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        thread::spawn({
            let (micros, is_over) = (Arc::clone(&micros), Arc::clone(&is_over));
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    thread::sleep(TICK);
                    let late = start.elapsed().saturating_sub(2 * TICK);
                    let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                    micros.fetch_add(late, Ordering::Relaxed);
                }
            }
        });
        Self { micros, is_over }
    }

    /// The delays so far.
    pub(crate) fn so_far(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
