//! [`ClientMetrics`]: the metrics of a client.
//!
//! A recorder is code of the user: nothing here is called while a lane is locked, and a panic of
//! the recorder ends here. Each metric is registered when it is used for the first time, and its
//! handle is kept, so that nothing is looked up after that. Metrics that alerts count from zero are
//! registered when the client is created.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use hashbrown::HashMap;
use metrics::{Counter, Gauge, Histogram};
use rustc_hash::FxBuildHasher;

use super::{
    foreign::foreign,
    meters::{
        ANSWERS, ModeMeters, NameGroup, OPERATIONS, RENEWALS, counter, describe, histogram, kept,
    },
    outcome::{BackendCall, Entrance, RenewalEnd},
    timed::{OutputReport, TimeReport, Timed},
};
use crate::{
    BackendError, LockError, LockName, LossReason, Mode,
    backend::{AcquireOutcome, ReleaseOutcome, RenewOutcome, Wakeups},
    state::LockState,
};

/// The most groups of names that are measured separately. All further groups are counted as one.
const MOST_GROUPS: usize = 100;

/// The group of all names beyond that number.
const OTHER: &str = "other";

/// How an acquisition ended. The number is the index in `ENTRIES`.
#[derive(Clone, Copy)]
pub(super) enum AcquireEnd {
    Granted = 0,
    HandedOver = 1,
    Nested = 2,
    Refused = 3,
    Timeout = 4,
    Error = 5,
    Cancelled = 6,
}

impl From<Entrance> for AcquireEnd {
    fn from(how: Entrance) -> Self {
        match how {
            Entrance::Granted => Self::Granted,
            Entrance::HandedOver => Self::HandedOver,
            Entrance::Nested => Self::Nested,
        }
    }
}

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

/// The backend's answer. The number is the index in `ANSWERS`.
#[derive(Clone, Copy)]
pub(crate) enum AnswerEnd {
    Ok = 0,
    Refused = 1,
    NotHeld = 2,
    Error = 3,
    Unanswered = 4,
}

/// An answer of the backend.
pub(crate) trait MeasuredAnswer {
    fn answered(&self) -> AnswerEnd {
        AnswerEnd::Ok
    }
}

impl MeasuredAnswer for AcquireOutcome {
    fn answered(&self) -> AnswerEnd {
        match self.token() {
            Some(_) => AnswerEnd::Ok,
            None => AnswerEnd::Refused,
        }
    }
}

impl MeasuredAnswer for ReleaseOutcome {
    fn answered(&self) -> AnswerEnd {
        match self {
            Self::NotHeld => AnswerEnd::NotHeld,
            _ => AnswerEnd::Ok,
        }
    }
}

impl MeasuredAnswer for Vec<RenewOutcome> {}
impl MeasuredAnswer for Box<dyn Wakeups> {}
impl MeasuredAnswer for LockState {}
impl MeasuredAnswer for bool {}

type GroupOf = dyn Fn(&LockName) -> &'static str + Send + Sync;

/// The groups of names that are measured separately, if there are any.
#[derive(Clone, Default)]
pub(crate) struct Grouping(Option<Arc<GroupOf>>);

impl Grouping {
    pub(crate) fn by(group: impl Fn(&LockName) -> &'static str + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(group)))
    }
}

impl fmt::Debug for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grouping").field(&self.0.is_some()).finish()
    }
}

/// The metrics of a client.
#[derive(Clone)]
pub(crate) struct ClientMetrics(Arc<Meters>);

struct Meters {
    grouping: Grouping,
    /// For the names without a group.
    all: NameGroup,
    groups: RwLock<HashMap<&'static str, Arc<NameGroup>, FxBuildHasher>>,
    calls: [OnceLock<[Histogram; ANSWERS.len()]>; OPERATIONS.len()],
    renewals: [Counter; RENEWALS.len()],
    margin: Histogram,
    /// Useful wake-ups and spurious ones.
    wakeups: [Counter; 2],
}

impl fmt::Debug for ClientMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientMetrics").field("grouping", &self.0.grouping).finish_non_exhaustive()
    }
}

impl ClientMetrics {
    pub(super) fn new(grouping: Grouping) -> Self {
        foreign(describe);
        let renewals =
            RENEWALS.map(|outcome| counter("lockcore_renewals_total", &[("outcome", outcome)]));
        let wakeups = ["useful", "spurious"]
            .map(|outcome| counter("lockcore_wakeups_total", &[("outcome", outcome)]));
        let all = NameGroup::new(None);
        if grouping.0.is_none() {
            all.lost();
        }
        Self(Arc::new(Meters {
            grouping,
            all,
            groups: RwLock::default(),
            calls: Default::default(),
            renewals,
            margin: histogram("lockcore_deadline_margin_ratio", &[]),
            wakeups,
        }))
    }

    /// Runs `measure` on the metrics of a name.
    fn of(&self, name: &LockName, measure: impl FnOnce(&NameGroup)) {
        let Some(grouping) = &self.0.grouping.0 else { return foreign(|| measure(&self.0.all)) };
        foreign(|| measure(&self.group(grouping(name))));
    }

    fn group(&self, label: &'static str) -> Arc<NameGroup> {
        let groups = self.0.groups.read().unwrap_or_else(PoisonError::into_inner);
        let (known, count) = (groups.get(label).cloned(), groups.len());
        drop(groups);
        if let Some(known) = known {
            return known;
        }
        if count >= MOST_GROUPS && label != OTHER {
            return self.group(OTHER);
        }
        let made = Arc::new(NameGroup::new(Some(label)));
        made.lost();
        let mut groups = self.0.groups.write().unwrap_or_else(PoisonError::into_inner);
        // Other threads may have added groups meanwhile, this one included.
        if groups.len() >= MOST_GROUPS && label != OTHER && !groups.contains_key(label) {
            drop(groups);
            return self.group(OTHER);
        }
        groups.entry(label).or_insert(made).clone()
    }

    fn meter(&self, name: &LockName, mode: Mode, measure: impl FnOnce(&ModeMeters)) {
        self.of(name, |group| {
            if let Some(meter) = group.meter(mode) {
                measure(meter);
            }
        });
    }

    fn entered(&self, name: &LockName, mode: Mode, entry: AcquireEnd, took: Duration) {
        self.meter(name, mode, |meter| meter.acquire[entry as usize].record(took));
    }

    /// Measures an acquisition.
    pub(super) fn acquiring<'a, F>(
        &'a self,
        name: &'a LockName,
        mode: Mode,
        acquisition: F,
    ) -> Timed<F, MeasuredAcquisition<'a>> {
        Timed::new(acquisition, MeasuredAcquisition { measure: self, name, mode })
    }

    /// Measures a call of the backend.
    pub(super) fn call<F>(&self, operation: BackendCall, call: F) -> Timed<F, MeasuredCall<'_>> {
        Timed::new(call, MeasuredCall { measure: self, operation })
    }

    /// An owner that is inside entered once more, without a request.
    pub(super) fn nested(&self, name: &LockName, mode: Mode) {
        self.entered(name, mode, AcquireEnd::Nested, Duration::ZERO);
    }

    /// A hold got its first guard.
    pub(super) fn began(&self, name: &LockName, mode: Mode) {
        self.meter(name, mode, |meter| meter.held.increment(1.0));
    }

    /// The last guard of a hold is gone.
    pub(super) fn released(&self, name: &LockName, mode: Mode, held_for: Duration) {
        self.ended(name, mode, 0, held_for);
    }

    /// A hold was lost, or closed with its client.
    pub(super) fn lost(&self, name: &LockName, mode: Mode, reason: LossReason, held_for: Duration) {
        let (end, reason) = match reason {
            LossReason::LeaseEnded => (1, 0),
            LossReason::Gone => (1, 1),
            LossReason::Closed => (2, 2),
        };
        self.of(name, |group| {
            if let Some(lost) = group.lost() {
                lost[reason].increment(1);
            }
        });
        self.ended(name, mode, end, held_for);
    }

    fn ended(&self, name: &LockName, mode: Mode, end: usize, held_for: Duration) {
        self.meter(name, mode, |meter| {
            meter.held.decrement(1.0);
            meter.hold[end].record(held_for);
        });
    }

    /// A renewal was answered, for one hold.
    pub(super) fn renewal(&self, renewal: RenewalEnd) {
        let counter = &self.0.renewals[renewal as usize];
        foreign(|| counter.increment(1));
    }

    /// Records what was left of a lease when its renewal was answered.
    pub(super) fn margin(&self, left: Duration, lease: Duration) {
        let ratio = left.as_secs_f64() / lease.as_secs_f64().max(f64::MIN_POSITIVE);
        foreign(|| self.0.margin.record(ratio.clamp(0.0, 1.0)));
    }
}

/// An acquisition whose time is measured.
pub(super) struct MeasuredAcquisition<'a> {
    measure: &'a ClientMetrics,
    name: &'a LockName,
    mode: Mode,
}

impl TimeReport for MeasuredAcquisition<'_> {
    fn dropped(&self, took: Duration) {
        self.measure.entered(self.name, self.mode, AcquireEnd::Cancelled, took);
    }
}

impl<T: Entered> OutputReport<Result<T, LockError>> for MeasuredAcquisition<'_> {
    fn done(&self, acquired: &Result<T, LockError>, took: Duration) {
        let entry = match acquired {
            Ok(acquired) => acquired.how().map_or(AcquireEnd::Refused, AcquireEnd::from),
            Err(LockError::Timeout { .. }) => AcquireEnd::Timeout,
            Err(_) => AcquireEnd::Error,
        };
        self.measure.entered(self.name, self.mode, entry, took);
    }
}

/// A call of the backend whose time is measured.
pub(super) struct MeasuredCall<'a> {
    measure: &'a ClientMetrics,
    operation: BackendCall,
}

impl MeasuredCall<'_> {
    fn answered(&self, answered: AnswerEnd, took: Duration) {
        let at = self.operation as usize;
        let register = || {
            ANSWERS.map(|outcome| {
                let labels = [("operation", OPERATIONS[at]), ("outcome", outcome)];
                histogram("lockcore_backend_seconds", &labels)
            })
        };
        foreign(|| {
            if let Some(call) = kept(&self.measure.0.calls[at], register) {
                call[answered as usize].record(took);
            }
        });
    }
}

impl TimeReport for MeasuredCall<'_> {
    fn dropped(&self, took: Duration) {
        self.answered(AnswerEnd::Unanswered, took);
    }
}

impl<T: MeasuredAnswer> OutputReport<Result<T, BackendError>> for MeasuredCall<'_> {
    fn done(&self, answer: &Result<T, BackendError>, took: Duration) {
        let answered = answer.as_ref().map_or(AnswerEnd::Error, T::answered);
        // The store was not asked, so there is no response time to record.
        if took.is_zero() && !matches!(answered, AnswerEnd::Error) {
            return;
        }
        self.answered(answered, took);
    }
}

/// The counts of a waiter, from its first wait until this value is dropped.
#[derive(Default)]
pub(super) struct WaiterMetrics {
    waiting: Option<Gauge>,
    is_woken: bool,
}

impl fmt::Debug for WaiterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterMetrics").field("is_woken", &self.is_woken).finish_non_exhaustive()
    }
}

impl WaiterMetrics {
    /// The waiter waits, perhaps not for the first time.
    pub(super) fn waits(&mut self, measure: &ClientMetrics, name: &LockName, mode: Mode) {
        if self.waiting.is_none() {
            measure.meter(name, mode, |meter| {
                meter.waiting.increment(1.0);
                self.waiting = Some(meter.waiting.clone());
            });
        }
    }

    /// The backend reported that the lock may be free.
    pub(super) fn woken(&mut self) {
        self.is_woken = true;
    }

    /// The waiter got in, or was refused again, perhaps after it was woken.
    pub(super) fn asked(&mut self, measure: &ClientMetrics, got_in: bool) {
        if std::mem::take(&mut self.is_woken) {
            let [useful, spurious] = &measure.0.wakeups;
            let counter = if got_in { useful } else { spurious };
            foreign(|| counter.increment(1));
        }
    }
}

impl Drop for WaiterMetrics {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            foreign(|| waiting.decrement(1.0));
        }
    }
}
