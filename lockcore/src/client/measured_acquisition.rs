//! [`MeasuredAcquisition`]: an acquisition, for the metrics.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{
    acquisition::Acquisition,
    ledger::Urgency,
    measure::{AcquireEnd, ClientMetrics},
    meters::ModeMeters,
    outcome::Entrance,
    timed::{OutputReport, TimeReport, Timed},
};
use crate::{LockError, time::Moment};

/// The result of an acquisition, as far as it is measured.
pub(super) trait Entered {
    /// How the owner got in. `None` if the acquisition was refused.
    fn how(&self) -> Option<Entrance>;
}

impl<T: Entered> Entered for Option<T> {
    fn how(&self) -> Option<Entrance> {
        self.as_ref().and_then(T::how)
    }
}

/// An acquisition whose time is measured.
#[derive(Clone, Copy)]
pub(super) struct MeasuredAcquisition<'a>(&'a Acquisition);

impl<'a> MeasuredAcquisition<'a> {
    pub(super) fn new(acquisition: &'a Acquisition) -> Self {
        Self(acquisition)
    }

    /// Measures the future of the acquisition.
    pub(super) fn during<F>(self, acquiring: F) -> Timed<F, Self> {
        Timed::new(acquiring, self)
    }

    /// The counts of a waiter that comes `now`.
    pub(super) fn waiter(self, now: Moment) -> WaiterMetrics<'a> {
        let is_anew = self.0.beginning.or(now) < now;
        WaiterMetrics { acquisition: self, is_anew, is_waiting: false, is_woken: false }
    }

    fn metrics(&self) -> &'a ClientMetrics {
        &self.0.client.measure
    }

    fn enter(&self, entry: impl FnOnce(&ModeMeters) -> Urgency) {
        let Acquisition { name, mode, .. } = self.0;
        self.metrics().enter(name, *mode, entry);
    }

    /// How long it has taken until `now`.
    fn took(&self, now: impl FnOnce() -> Moment) -> Duration {
        let beginning = self.0.beginning.get();
        beginning.map_or(Duration::ZERO, |beginning| now().since(beginning))
    }

    fn ended(&self, end: AcquireEnd, has_waited: bool) {
        let took = match has_waited {
            true => self.took(|| self.0.client.clock.now()),
            false => Duration::ZERO,
        };
        self.enter(|meters| meters.entry(end, took));
    }
}

impl TimeReport for MeasuredAcquisition<'_> {
    /// An acquisition that did not come to its lane before enters a hold that others have.
    fn waits(&mut self) {
        let Acquisition { client, beginning, .. } = self.0;
        if beginning.get().is_none() {
            beginning.or(client.clock.now());
        }
    }

    fn dropped(&self) {
        self.ended(AcquireEnd::Cancelled, true);
    }
}

impl<T: Entered> OutputReport<Result<T, LockError>> for MeasuredAcquisition<'_> {
    fn done(&self, acquired: &Result<T, LockError>, has_waited: bool) {
        let end = match acquired.as_ref().map(T::how) {
            // The acquisition was measured at the beginning of its hold.
            Ok(Some(Entrance::Granted | Entrance::HandedOver)) => return,
            Ok(Some(Entrance::Nested)) => AcquireEnd::Nested,
            Ok(None) => AcquireEnd::Refused,
            Err(LockError::Timeout { .. }) => AcquireEnd::Timeout,
            Err(_) => AcquireEnd::Error,
        };
        self.ended(end, has_waited);
    }
}

/// The time when an acquisition first came to its lane, in nanoseconds from the origin of the clock
/// plus one, or zero before that. Only its own task uses it.
#[derive(Debug, Default)]
pub(crate) struct Beginning(AtomicU64);

impl Beginning {
    /// The beginning, which is set to `now` if there was none.
    fn or(&self, now: Moment) -> Moment {
        self.get().unwrap_or_else(|| {
            let nanos = u64::try_from(now.since(Moment::ORIGIN).as_nanos()).unwrap_or(u64::MAX);
            self.0.store(nanos.saturating_add(1), Ordering::Relaxed);
            now
        })
    }

    fn get(&self) -> Option<Moment> {
        let nanos = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Moment::ORIGIN.after(Duration::from_nanos(nanos)))
    }
}

/// The counts of a waiter, until this value is dropped.
pub(super) struct WaiterMetrics<'a> {
    acquisition: MeasuredAcquisition<'a>,
    /// Set if the acquisition has begun before, and starts over.
    is_anew: bool,
    is_waiting: bool,
    is_woken: bool,
}

impl fmt::Debug for WaiterMetrics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterMetrics")
            .field("is_waiting", &self.is_waiting)
            .finish_non_exhaustive()
    }
}

impl WaiterMetrics<'_> {
    /// The waiter waits, perhaps not for the first time.
    pub(super) fn waits(&mut self) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.acquisition.enter(ModeMeters::waits);
        }
    }

    /// The backend reported that the lock may be free.
    pub(super) fn woken(&mut self) {
        self.is_woken = true;
    }

    /// The waiter was refused again, perhaps after it was woken.
    pub(super) fn refused(&mut self) {
        self.asked(false);
    }

    fn asked(&mut self, got_in: bool) {
        if std::mem::take(&mut self.is_woken) {
            self.acquisition.metrics().wakeup(got_in);
        }
    }

    /// The waiter got in, with the first guard of a hold.
    pub(super) fn begins(&mut self, how: Entrance, has_waited: bool, now: Moment) {
        self.asked(true);
        let took = match has_waited || self.is_anew {
            true => self.acquisition.took(|| now),
            false => Duration::ZERO,
        };
        let has_waited = std::mem::take(&mut self.is_waiting);
        self.acquisition.enter(|meters| {
            if has_waited {
                meters.waits_no_more();
            }
            meters.entry(how.into(), took)
        });
    }
}

impl Drop for WaiterMetrics<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.acquisition.enter(ModeMeters::waits_no_more);
        }
    }
}
