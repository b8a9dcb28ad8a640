//! [`Stall`]: the delay of this machine itself, and the steps of its clock.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore_testkit::{monotonic, span, wall_clock};
use tokio::task::JoinHandle;

/// How long each nap is meant to take.
const NAP: Duration = Duration::from_millis(5);

/// The usual delay of a timer. It does not count, because it would add up.
const TIMER: Duration = Duration::from_millis(2);

/// Measures the delay of this process: the machine's part in the delays of clients.
///
/// The wall clock, by which servers end leases, is compared with the monotonic one, by which
/// clients do. A machine that was suspended sets it forward, and this takes the same time from a
/// lease as a delay.
#[derive(Debug)]
pub(crate) struct Stall {
    measured: Arc<Mutex<Measured>>,
    measuring: JoinHandle<()>,
}

/// The measurements so far. Their mutex is held for short critical sections without awaits.
#[derive(Debug, Default)]
struct Measured {
    /// When this process should have run again, and when it did.
    late: Vec<(u64, u64)>,
    /// When the wall clock was set, and by how many ns.
    steps: Vec<(u64, u64)>,
}

impl Measured {
    fn longest(&self) -> u64 {
        let late = self.late.iter().map(|(due, ran)| ran.saturating_sub(*due));
        late.chain(self.steps.iter().map(|(_, by)| *by)).max().unwrap_or(0)
    }

    fn within(&self, from: u64, to: u64) -> u64 {
        let late = self.late.iter();
        let late = late.map(|(due, ran)| (*ran).min(to).saturating_sub((*due).max(from)));
        let steps = self.steps.iter().filter(|(at, _)| (from..=to).contains(at));
        late.chain(steps.map(|(_, by)| *by)).sum()
    }
}

/// How far the wall clock is ahead of the monotonic one.
fn ahead() -> u64 {
    wall_clock().saturating_sub(monotonic())
}

impl Stall {
    pub(crate) fn start() -> Self {
        let measured: Arc<Mutex<Measured>> = Arc::default();
        let measuring = tokio::spawn({
            let measured = measured.clone();
            async move {
                let mut known = ahead();
                loop {
                    let due = monotonic() + span(NAP);
                    tokio::time::sleep(NAP).await;
                    let (ran, now) = (monotonic(), ahead());
                    let by = now.abs_diff(std::mem::replace(&mut known, now));
                    let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
                    if ran > due + span(TIMER) {
                        measured.late.push((due, ran));
                    }
                    if by > span(TIMER) {
                        measured.steps.push((ran, by));
                    }
                }
            }
        });
        Self { measured, measuring }
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.measured().longest())
    }

    /// The total delay of this process between two moments, and what its clock was set by.
    pub(super) fn within(&self, from: u64, to: u64) -> Duration {
        Duration::from_nanos(self.measured().within(from, to))
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn what_lies_between_two_moments_counts() {
        let late = vec![(100, 150), (200, 200), (300, 400)];
        let measured = Measured { late, steps: vec![(110, 500), (250, 7)] };
        assert_eq!(measured.within(120, 350), 30 + 50 + 7);
        assert_eq!(measured.within(150, 240), 0);
        assert_eq!(measured.longest(), 500);
    }
}
