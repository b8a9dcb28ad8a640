//! Lease arithmetic: which leases are valid, and how long a holder may rely on one.

use std::time::Duration;

use super::Moment;
use crate::{LockError, LockName};

pub(crate) const DEFAULT: Duration = Duration::from_secs(30);
pub(crate) const MIN: Duration = Duration::from_millis(1);
pub(crate) const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The lease that an acquisition asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lease {
    /// Renewed by the watchdog while a guard lives.
    Renewed(Duration),
    /// Never renewed.
    Fixed(Duration),
}

impl Lease {
    pub(crate) fn duration(self) -> Duration {
        match self {
            Self::Renewed(lease) | Self::Fixed(lease) => lease,
        }
    }
}

/// Refuses a lease that a backend could not keep. `shortest` is 1 ms or more: a zero lease would
/// delete a Redis key at once, and one that does not fit the server's arithmetic would keep it
/// forever.
pub(crate) fn check(
    lease: Duration,
    shortest: Duration,
    option: &'static str,
    lock: Option<&LockName>,
) -> Result<(), LockError> {
    let shortest = shortest.max(MIN);
    if (shortest..=MAX).contains(&lease) {
        return Ok(());
    }
    let keeper = if shortest > MIN { " with this backend" } else { "" };
    Err(LockError::InvalidOption {
        lock: lock.cloned(),
        option,
        reason: format!("a lease must be {shortest:?} to 365 days{keeper}, but is {lease:?}"),
    })
}

/// The moment until which the holder may rely on `lease`, which was requested at `sent`.
///
/// The server starts counting when the request arrives, which is never before it was sent. The
/// margin covers clocks that run at different rates (1 %, the figure that the Redlock libraries
/// use) and the rounding to milliseconds on both sides (2 ms).
pub(crate) fn deadline(sent: Moment, lease: Duration) -> Moment {
    sent.after(lease.saturating_sub(lease / 100 + Duration::from_millis(2)))
}

/// The time from sending a renewal, or the acquisition, to the next renewal.
pub(crate) fn renewal_period(lease: Duration) -> Duration {
    lease / 3
}

/// The latest moment at which a hold with `lease`, requested at `sent`, may be handed over: before
/// its first renewal is due, even if that is made a little early together with others.
pub(crate) fn last_handover(sent: Moment, lease: Duration) -> Moment {
    sent.after(lease / 4).min(deadline(sent, lease))
}

/// When a renewal that was sent at `sent`, and has failed now, is tried again. The pause is shorter
/// near the deadline, so that this does not pass while there is time for another try.
///
/// The pause counts from the sending. Whoever has waited for a connection or an answer goes on
/// waiting: the server may be back for a moment that is shorter than the pause.
pub(crate) fn renewal_retry(
    lease: Duration,
    sent: Moment,
    now: Moment,
    deadline: Moment,
) -> Moment {
    const SHORTEST: Duration = Duration::from_millis(5);
    let pause = (lease / 10).min(deadline.since(now) / 2).min(Duration::from_secs(1));
    sent.after(pause).max(now.after(SHORTEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn the_deadline_lies_before_the_end_of_the_lease_whatever_the_lease() {
        let sent = Clock::system().now();
        for lease in [MIN, Duration::from_millis(3), Duration::from_secs(1), DEFAULT, MAX] {
            let end = sent.after(lease);
            assert!(deadline(sent, lease) < end, "{lease:?}");
            assert!(end.since(deadline(sent, lease)) <= lease / 100 + Duration::from_millis(2));
        }
    }

    #[test]
    fn leases_outside_the_range_are_refused() {
        for lease in [MIN, MAX] {
            assert!(check(lease, Duration::ZERO, "lease", None).is_ok(), "{lease:?}");
        }
        assert!(check(MIN, MIN * 2, "lease", None).is_err());
        for lease in [
            Duration::ZERO,
            Duration::from_micros(999),
            MAX + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            assert!(check(lease, MIN, "lease", None).is_err(), "{lease:?}");
        }
    }
}
