//! [`Entry`]: a name, and its changes from look to look.

use std::time::{Duration, Instant};

use crate::report::Report;

/// A renewed hold has a larger share of its lease left than this, because clients renew every third
/// of the lease. Less means that nobody renews it.
const EBBING: f64 = 0.6;

/// A name that is in use, since it was first seen.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) report: Report,
    /// When it was last looked at.
    looked_at: Instant,
    /// When its present first holder was first seen.
    held_since: Option<Instant>,
    /// `true` if that holder came while the name was watched, so that the time is exact.
    came: bool,
    waiting_since: Option<Instant>,
    /// The longest rest of the lease that was seen with these holders since its last renewal.
    longest_left: f64,
}

/// The changes of a name between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// New holders.
    pub(crate) grants: u64,
    /// Holders whose lease ran out.
    pub(crate) ran_out: u64,
}

impl Entry {
    /// A name that is seen for the first time. It `came` if an earlier look would have seen it.
    pub(crate) fn new(report: Report, now: Instant, came: bool) -> Self {
        Self {
            held_since: report.held.then_some(now),
            waiting_since: (report.waiters > 0).then_some(now),
            longest_left: report.lease_left_seconds.unwrap_or(0.0),
            report,
            looked_at: now,
            came,
        }
    }

    /// Takes the next look at it.
    pub(crate) fn update(&mut self, report: Report, now: Instant) -> Change {
        if report.error.is_some() {
            // The last known state stays, because the holders may be the same afterwards.
            self.report.error = report.error;
            return Change::default();
        }
        if self.report.error.is_some() && self.report.kind.is_none() {
            // It was never read, so its holders may be old ones.
            *self = Self::new(report, now, false);
            return Change::default();
        }
        let is_old = |owner: &str| self.report.holders.iter().any(|holder| holder.owner == owner);
        let grants = report.holders.iter().filter(|holder| !is_old(&holder.owner)).count() as u64;
        let stays = report.holders.iter().any(|holder| is_old(&holder.owner));
        let ran_out = if stays { 0 } else { self.ran_out(now) };
        let left = report.lease_left_seconds.unwrap_or(0.0);
        if stays {
            // A renewal may give less than the first lease, as with `--at-least` of `lockctl run`.
            if left > self.report.lease_left_seconds.unwrap_or(0.0) {
                self.longest_left = left;
            }
        } else {
            self.longest_left = left;
            self.held_since = report.held.then_some(now);
            self.came = true;
        }
        self.waiting_since =
            if report.waiters > 0 { self.waiting_since.or(Some(now)) } else { None };
        self.report = report;
        self.looked_at = now;
        Change { grants, ran_out }
    }

    /// The number of leases that ran out, if these holders are all gone. A hold that was renewed
    /// until the last look was released, and so was one that ended before its lease.
    pub(crate) fn ran_out(&self, now: Instant) -> u64 {
        match self.report.lease_left_seconds {
            Some(left) if left < self.longest_left * EBBING && self.left(now).is_zero() => {
                self.report.holders.len() as u64
            }
            _ => 0,
        }
    }

    /// The rest of the lease, as far as the last look tells.
    fn left(&self, now: Instant) -> Duration {
        let left = self.report.lease_left_seconds.unwrap_or(0.0);
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        left.saturating_sub(now.saturating_duration_since(self.looked_at))
    }

    /// The rest of the lease, and its share. [`None`] if there is no lease.
    pub(crate) fn lease(&self, now: Instant) -> Option<(Duration, f64)> {
        self.report.lease_left_seconds?;
        let left = self.left(now);
        Some((left, left.as_secs_f64() / self.longest_left.max(f64::MIN_POSITIVE)))
    }

    /// For how long the holder has been seen, and whether it may have been there before.
    pub(crate) fn held_for(&self, now: Instant) -> Option<(Duration, bool)> {
        self.held_since.map(|since| (now.saturating_duration_since(since), !self.came))
    }

    /// How long anybody has been waiting, according to the records or to earlier looks.
    pub(crate) fn waited_for(&self, now: Instant) -> Option<Duration> {
        let seen = self.waiting_since.map(|since| now.saturating_duration_since(since))?;
        let told = self.report.waiting.first().map_or(0.0, |longest| longest.seconds);
        let told = Duration::try_from_secs_f64(told).unwrap_or_default();
        Some(seen.max(told + now.saturating_duration_since(self.looked_at)))
    }
}

#[cfg(test)]
mod tests {
    use lockcore::{BackendError, BackendErrorKind, Holder, LockState, Mode};

    use super::*;

    fn look(owners: &[&str], left: f64, waiters: &[&str]) -> Report {
        let holders: Vec<_> =
            owners.iter().map(|owner| Holder::new(*owner, Mode::Exclusive, 1)).collect();
        let waiters = waiters.iter().map(|waiter| (*waiter).to_owned()).collect();
        let state = LockState::held(holders, Some(Duration::from_secs_f64(left)));
        Report::new("a", &state.with_waiters(waiters), None)
    }

    #[test]
    fn a_new_holder_is_a_grant_and_the_same_one_is_not() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut entry = Entry::new(look(&["x:1"], 30.0, &[]), now, false);
        assert_eq!(entry.update(look(&["x:1"], 25.0, &[]), after(5)), Change::default());
        assert_eq!(entry.held_for(after(5)), Some((Duration::from_secs(5), true)));
        let change = entry.update(look(&["y:1"], 30.0, &["z:1"]), after(6));
        assert_eq!(change, Change { grants: 1, ran_out: 0 });
        assert_eq!(entry.held_for(after(9)), Some((Duration::from_secs(3), false)));
        assert_eq!(entry.waited_for(after(9)), Some(Duration::from_secs(3)));
        entry.update(look(&["y:1"], 30.0, &["w:1"]), after(10));
        assert_eq!(entry.waited_for(after(10)), Some(Duration::from_secs(4)));
        entry.update(look(&[], 0.0, &[]), after(11));
        assert_eq!((entry.waited_for(after(11)), entry.held_for(after(11))), (None, None));
    }

    #[test]
    fn a_lease_that_nobody_renewed_ran_out() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut entry = Entry::new(look(&["x:1"], 30.0, &[]), now, false);
        entry.update(look(&["x:1"], 10.0, &[]), after(20));
        assert_eq!(entry.ran_out(after(25)), 0, "it was released: 5 s are left");
        assert_eq!(entry.ran_out(after(31)), 1);
        let (left, share) = entry.lease(after(25)).unwrap();
        assert_eq!((left, (share * 6.0).round()), (Duration::from_secs(5), 1.0));
        entry.update(look(&["x:1"], 29.0, &[]), after(21));
        assert_eq!(entry.ran_out(after(99)), 0, "it was renewed");
    }

    #[test]
    fn a_name_that_is_unreadable_once_keeps_its_holders() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let error = BackendError::new(BackendErrorKind::Permission, "no right");
        let unreadable = || Report::unreadable("a", &error);
        let mut entry = Entry::new(look(&["x:1"], 30.0, &["y:1"]), now, true);
        assert_eq!(entry.update(unreadable(), after(2)), Change::default());
        assert!(entry.report.error.is_some());
        assert_eq!(entry.update(look(&["x:1"], 28.0, &["y:1"]), after(4)), Change::default());
        assert!(entry.report.error.is_none());
        assert_eq!(entry.held_for(after(4)), Some((Duration::from_secs(4), false)));
        assert_eq!(entry.waited_for(after(4)), Some(Duration::from_secs(4)));
        let mut entry = Entry::new(unreadable(), now, true);
        assert_eq!(entry.update(look(&["x:1"], 30.0, &[]), after(2)), Change::default());
        assert_eq!(entry.held_for(after(2)), Some((Duration::ZERO, true)));
    }

    #[test]
    fn a_renewal_may_be_shorter_than_the_first_lease() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut entry = Entry::new(look(&["x:1"], 600.0, &[]), now, true);
        entry.update(look(&["x:1"], 21.0, &[]), after(579));
        entry.update(look(&["x:1"], 30.0, &[]), after(580));
        entry.update(look(&["x:1"], 20.0, &[]), after(590));
        assert!(entry.lease(after(590)).unwrap().1 > EBBING);
        assert_eq!(entry.ran_out(after(620)), 0, "it was renewed until the last look");
    }
}
