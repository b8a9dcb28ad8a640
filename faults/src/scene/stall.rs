//! [`Stall`]: what this machine is late by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore_testkit::span;
use tokio::task::JoinHandle;

/// Measures by how much this process was late itself: the machine's part in what clients were late by.
#[derive(Debug)]
pub(super) struct Stall {
    longest: Arc<AtomicU64>,
    measuring: JoinHandle<()>,
}

impl Stall {
    pub(super) fn start() -> Self {
        let longest: Arc<AtomicU64> = Arc::default();
        let measuring = tokio::spawn({
            let longest = longest.clone();
            async move {
                loop {
                    let nap = Duration::from_millis(5);
                    let start = Instant::now();
                    tokio::time::sleep(nap).await;
                    longest.fetch_max(span(start.elapsed().saturating_sub(nap)), Ordering::Relaxed);
                }
            }
        });
        Self { longest, measuring }
    }

    pub(super) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.measuring.abort();
    }
}
