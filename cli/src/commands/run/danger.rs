//! [`Danger`]: when a command has to end, so that it is gone before the lease is. Pure.

use std::time::Duration;

use lockcore::LossReason;

/// The longest time between SIGTERM and SIGKILL if somebody else may hold the lock already.
const LONGEST_OVERLAP: Duration = Duration::from_secs(10);

/// The longest time between SIGTERM and SIGKILL is this fraction of the lease.
const SHARE: u32 = 3;

/// The advice about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Do nothing before this time has passed.
    Wait(Duration),
    /// The renewals have failed for so long that the command has to be asked to end now.
    End,
}

/// The division of the last part of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Danger {
    /// The time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// The time between SIGKILL and the deadline, by which the processes have to be gone.
    pub(super) margin: Duration,
}

impl Danger {
    /// Divides a lease that is renewed every third of it. `kill_after` is the desired time after
    /// SIGTERM.
    ///
    /// A renewal comes when two thirds are left. With a third for the command and a tenth for its
    /// end, more than a fifth remains for renewals that failed to be repeated.
    pub(super) fn new(lease: Duration, kill_after: Option<Duration>) -> Self {
        let longest = lease / SHARE;
        Self {
            grace: kill_after.map_or(longest, |wish| wish.min(longest)),
            margin: (lease / 10).min(Duration::from_secs(2)),
        }
    }

    /// When the guard has to kill the processes if that was not done in time: after the end of
    /// `patience`, and before the deadline.
    pub(super) fn latest(&self, deadline: Duration) -> Duration {
        deadline.saturating_sub(self.margin / 2)
    }

    /// The shortest lease that leaves this time between SIGTERM and SIGKILL.
    pub(super) fn shortest_lease(kill_after: Duration) -> Duration {
        kill_after.saturating_mul(SHARE)
    }

    /// The advice if `left` is left until the deadline.
    pub(super) fn advice(&self, left: Duration) -> Advice {
        match left.checked_sub(self.grace + self.margin) {
            None | Some(Duration::ZERO) => Advice::End,
            Some(time) => Advice::Wait(time),
        }
    }

    /// The time from SIGTERM to SIGKILL, if `left` is left until the deadline. Without a reason,
    /// the hold is not lost yet.
    pub(super) fn patience(&self, reason: Option<LossReason>, left: Duration) -> Duration {
        let patience = self.grace.min(left.saturating_sub(self.margin));
        match reason {
            None => patience,
            Some(LossReason::Gone) => patience.min(LONGEST_OVERLAP),
            Some(_) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_end_comes_after_two_renewals_have_failed_and_before_the_deadline() {
        for lease in [secs(1), secs(3), secs(30), secs(3600)] {
            for kill_after in [None, Some(Duration::ZERO), Some(secs(1)), Some(lease * 2)] {
                let danger = Danger::new(lease, kill_after);
                // A renewal succeeds when two thirds are left, without the margin for the clocks.
                assert!(matches!(danger.advice(lease * 3 / 5), Advice::Wait(_)), "{danger:?}");
                let left = danger.grace + danger.margin;
                assert_eq!(danger.advice(left), Advice::End);
                assert!(danger.latest(left) > danger.patience(None, left), "{danger:?}");
                assert!(danger.latest(left) < left, "{danger:?}");
                assert!(
                    danger.patience(None, left) <= left - lease.min(secs(20)) / 10,
                    "{danger:?}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_waited_for_if_nothing_is_left() {
        let danger = Danger::new(secs(30), None);
        assert_eq!(danger.advice(Duration::ZERO), Advice::End);
        assert_eq!(danger.patience(None, Duration::ZERO), Duration::ZERO);
        assert_eq!(danger.patience(None, secs(5)), secs(3));
        // Whatever the assumed deadline was.
        assert_eq!(danger.patience(Some(LossReason::LeaseEnded), secs(30)), Duration::ZERO);
    }

    #[test]
    fn where_somebody_else_may_be_inside_a_long_lease_is_no_reason_to_wait() {
        let danger = Danger::new(secs(3600), None);
        assert_eq!(danger.patience(None, secs(3600)), secs(1200));
        assert_eq!(danger.patience(Some(LossReason::Gone), secs(3600)), secs(10));
        let danger = Danger::new(secs(3600), Some(secs(2)));
        assert_eq!(danger.patience(Some(LossReason::Gone), secs(3600)), secs(2));
    }
}
