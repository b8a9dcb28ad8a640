//! [`Stall`]: the delay of this machine itself.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockcore_testkit::{monotonic, span};
use tokio::task::JoinHandle;

/// How long each nap is meant to take.
const NAP: Duration = Duration::from_millis(5);

/// The usual delay of a timer. It does not count, because it would add up.
const TIMER: Duration = Duration::from_millis(2);

/// Measures the delay of this process: the machine's part in the delays of clients.
#[derive(Debug)]
pub(crate) struct Stall {
    /// When this process should have run again, and when it did. Locked for short critical sections
    /// without awaits.
    late: Arc<Mutex<Vec<(u64, u64)>>>,
    measuring: JoinHandle<()>,
}

impl Stall {
    pub(crate) fn start() -> Self {
        let late: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
        let measuring = tokio::spawn({
            let late = late.clone();
            async move {
                loop {
                    let due = monotonic() + span(NAP);
                    tokio::time::sleep(NAP).await;
                    let ran = monotonic();
                    if ran > due + span(TIMER) {
                        late.lock().unwrap_or_else(PoisonError::into_inner).push((due, ran));
                    }
                }
            }
        });
        Self { late, measuring }
    }

    pub(crate) fn longest(&self) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = late.iter().map(|(due, ran)| ran.saturating_sub(*due)).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    /// The total delay of this process between two moments.
    pub(super) fn within(&self, from: u64, to: u64) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |(due, ran): &(u64, u64)| (*ran).min(to).saturating_sub((*due).max(from));
        Duration::from_nanos(late.iter().map(part).sum())
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.measuring.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lateness_is_counted_as_far_as_it_lies_between_two_moments() {
        let stall = Stall::start();
        let late = [(100, 150), (200, 200), (300, 400)];
        stall.late.lock().unwrap_or_else(PoisonError::into_inner).extend(late);
        assert_eq!(stall.within(120, 350), Duration::from_nanos(30 + 50));
        assert_eq!(stall.within(150, 300), Duration::ZERO);
    }
}
