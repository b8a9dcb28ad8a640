//! [`Measure`]: the metrics of a client.
//!
//! A recorder is code of the user: nothing here is called while a lane is locked, and a panic of
//! the recorder ends here. Each metric is registered when it is used for the first time, and its
//! handle is kept, so that nothing is looked up after that. Those that alerts count from zero are
//! registered with the client.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use hashbrown::HashMap;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Unit};
use rustc_hash::FxBuildHasher;

use super::{
    foreign::foreign,
    outcome::{How, Operation, Renewal},
    timed::{Report, ReportOf, Timed},
};
use crate::{
    BackendError, LockError, LockName, LossReason, Mode,
    backend::{AcquireOutcome, ReleaseOutcome, RenewOutcome, Wakeups},
    state::LockState,
};

/// How many groups of names are measured apart. The names of all further ones are one group.
const MOST_GROUPS: usize = 100;

/// The group of the names whose own would be one too many.
const OTHER: &str = "other";

const MODES: [&str; 5] = ["exclusive", "fair", "read", "write", "permit"];
const ENTRIES: [&str; 7] =
    ["granted", "handed_over", "nested", "refused", "timeout", "error", "cancelled"];
const ENDS: [&str; 3] = ["released", "lost", "closed"];
const REASONS: [&str; 3] = ["lease_ended", "gone", "closed"];
const RENEWALS: [&str; 3] = ["renewed", "gone", "failed"];
const OPERATIONS: [&str; 6] =
    ["acquire", "release", "renew", "subscribe", "inspect", "force_release"];
const ANSWERS: [&str; 5] = ["ok", "refused", "not_held", "error", "unanswered"];

static METADATA: Metadata<'static> =
    Metadata::new("lockcore", Level::INFO, Some("lockcore::metrics"));

/// The way in which an acquisition ended. The number is the place in [`ENTRIES`].
#[derive(Clone, Copy)]
pub(super) enum Entry {
    Granted = 0,
    HandedOver = 1,
    Nested = 2,
    Refused = 3,
    Timeout = 4,
    Error = 5,
    Cancelled = 6,
}

impl From<How> for Entry {
    fn from(how: How) -> Self {
        match how {
            How::Granted => Self::Granted,
            How::HandedOver => Self::HandedOver,
            How::Nested => Self::Nested,
        }
    }
}

/// The result of an acquisition, of which nothing else matters here.
pub(super) trait Entered {
    /// How its owner got in. `None` if it was refused.
    fn how(&self) -> Option<How>;
}

impl<T: Entered> Entered for Option<T> {
    fn how(&self) -> Option<How> {
        self.as_ref().and_then(T::how)
    }
}

/// What the backend answered. The number is the place in [`ANSWERS`].
#[derive(Clone, Copy)]
pub(crate) enum Answered {
    Ok = 0,
    Refused = 1,
    NotHeld = 2,
    Error = 3,
    Unanswered = 4,
}

/// An answer of the backend.
pub(crate) trait Answer {
    fn answered(&self) -> Answered {
        Answered::Ok
    }
}

impl Answer for AcquireOutcome {
    fn answered(&self) -> Answered {
        match self.token() {
            Some(_) => Answered::Ok,
            None => Answered::Refused,
        }
    }
}

impl Answer for ReleaseOutcome {
    fn answered(&self) -> Answered {
        match self {
            Self::NotHeld => Answered::NotHeld,
            _ => Answered::Ok,
        }
    }
}

impl Answer for Vec<RenewOutcome> {}
impl Answer for Box<dyn Wakeups> {}
impl Answer for LockState {}
impl Answer for bool {}

type GroupOf = dyn Fn(&LockName) -> &'static str + Send + Sync;

/// The groups of names that are measured apart, if there are any.
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
pub(crate) struct Measure(Arc<Meters>);

struct Meters {
    grouping: Grouping,
    /// The names without a group.
    all: Group,
    groups: RwLock<HashMap<&'static str, Arc<Group>, FxBuildHasher>>,
    calls: [OnceLock<[Histogram; ANSWERS.len()]>; OPERATIONS.len()],
    renewals: [Counter; RENEWALS.len()],
    margin: Histogram,
    /// The useful ones and the spurious ones.
    wakeups: [Counter; 2],
}

/// The metrics of a group of names.
struct Group {
    label: Option<&'static str>,
    modes: [OnceLock<Meter>; MODES.len()],
    lost: OnceLock<[Counter; REASONS.len()]>,
}

/// The metrics of a mode.
struct Meter {
    acquire: [Histogram; ENTRIES.len()],
    hold: [Histogram; ENDS.len()],
    waiting: Gauge,
    held: Gauge,
}

impl fmt::Debug for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measure").field("grouping", &self.0.grouping).finish_non_exhaustive()
    }
}

/// Runs code of the recorder that makes a handle: one that does nothing, if that panics.
fn made<T>(make: impl FnOnce() -> T, noop: fn() -> T) -> T {
    let mut made = None;
    foreign(|| made = Some(make()));
    made.unwrap_or_else(noop)
}

fn key(name: &'static str, labels: &[(&'static str, &'static str)]) -> Key {
    let labels = labels.iter().map(|(key, value)| Label::from_static_parts(key, value));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

fn counter(name: &'static str, labels: &[(&'static str, &'static str)]) -> Counter {
    let register = || {
        metrics::with_recorder(|recorder| recorder.register_counter(&key(name, labels), &METADATA))
    };
    made(register, Counter::noop)
}

fn gauge(name: &'static str, labels: &[(&'static str, &'static str)]) -> Gauge {
    let register = || {
        metrics::with_recorder(|recorder| recorder.register_gauge(&key(name, labels), &METADATA))
    };
    made(register, Gauge::noop)
}

fn histogram(name: &'static str, labels: &[(&'static str, &'static str)]) -> Histogram {
    let register = || {
        metrics::with_recorder(|recorder| {
            recorder.register_histogram(&key(name, labels), &METADATA)
        })
    };
    made(register, Histogram::noop)
}

/// The value in `cell`, made if need be: not while others wait for it, since the recorder makes it.
fn kept<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> Option<&T> {
    if cell.get().is_none() {
        // Another thread may have been faster, with the same.
        let _ = cell.set(make());
    }
    cell.get()
}

/// Tells the recorder what the metrics mean.
fn describe() {
    let describe: [(&'static str, Unit, &'static str); 2] = [
        ("lockcore_waiting", Unit::Count, "Acquisitions that wait for a lock that is not free."),
        ("lockcore_held", Unit::Count, "Holds that have guards."),
    ];
    for (name, unit, text) in describe {
        metrics::describe_gauge!(name, unit, text);
    }
    let describe: [(&'static str, Unit, &'static str); 3] = [
        ("lockcore_lost_total", Unit::Count, "Holds that were lost."),
        ("lockcore_renewals_total", Unit::Count, "Answers to renewals, for each hold."),
        ("lockcore_wakeups_total", Unit::Count, "Wake-ups of waiters by the backend."),
    ];
    for (name, unit, text) in describe {
        metrics::describe_counter!(name, unit, text);
    }
    let describe: [(&'static str, Unit, &'static str); 4] = [
        ("lockcore_acquire_seconds", Unit::Seconds, "How long acquisitions took."),
        ("lockcore_hold_seconds", Unit::Seconds, "How long locks were held."),
        (
            "lockcore_deadline_margin_ratio",
            Unit::Count,
            "What was left of a lease when its renewal was answered, from 0 to 1.",
        ),
        ("lockcore_backend_seconds", Unit::Seconds, "How long answers of the backend took."),
    ];
    for (name, unit, text) in describe {
        metrics::describe_histogram!(name, unit, text);
    }
}

impl Group {
    fn new(label: Option<&'static str>) -> Self {
        Self { label, modes: Default::default(), lost: OnceLock::new() }
    }

    /// The labels, and that of the group.
    fn labels(&self, labels: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let group = self.label.map(|label| ("group", label));
        labels.iter().copied().chain(group).collect()
    }

    fn lost(&self) -> Option<&[Counter; REASONS.len()]> {
        kept(&self.lost, || {
            REASONS
                .map(|reason| counter("lockcore_lost_total", &self.labels(&[("reason", reason)])))
        })
    }

    fn meter(&self, mode: Mode) -> Option<&Meter> {
        let at = match mode {
            Mode::Exclusive => 0,
            Mode::Fair => 1,
            Mode::Read => 2,
            Mode::Write => 3,
            Mode::Permit { .. } => 4,
        };
        kept(&self.modes[at], || self.register(MODES[at]))
    }

    fn register(&self, mode: &'static str) -> Meter {
        let with = |outcome| self.labels(&[("mode", mode), ("outcome", outcome)]);
        let alone = self.labels(&[("mode", mode)]);
        Meter {
            acquire: ENTRIES.map(|entry| histogram("lockcore_acquire_seconds", &with(entry))),
            hold: ENDS.map(|end| histogram("lockcore_hold_seconds", &with(end))),
            waiting: gauge("lockcore_waiting", &alone),
            held: gauge("lockcore_held", &alone),
        }
    }
}

impl Measure {
    pub(super) fn new(grouping: Grouping) -> Self {
        foreign(describe);
        let renewals =
            RENEWALS.map(|outcome| counter("lockcore_renewals_total", &[("outcome", outcome)]));
        let wakeups = ["useful", "spurious"]
            .map(|outcome| counter("lockcore_wakeups_total", &[("outcome", outcome)]));
        let all = Group::new(None);
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

    /// Does something with the metrics of a name.
    fn of(&self, name: &LockName, measure: impl FnOnce(&Group)) {
        let Some(grouping) = &self.0.grouping.0 else { return foreign(|| measure(&self.0.all)) };
        foreign(|| measure(&self.group(grouping(name))));
    }

    fn group(&self, label: &'static str) -> Arc<Group> {
        let groups = self.0.groups.read().unwrap_or_else(PoisonError::into_inner);
        let (known, count) = (groups.get(label).cloned(), groups.len());
        drop(groups);
        if let Some(known) = known {
            return known;
        }
        if count >= MOST_GROUPS && label != OTHER {
            return self.group(OTHER);
        }
        let made = Arc::new(Group::new(Some(label)));
        made.lost();
        let mut groups = self.0.groups.write().unwrap_or_else(PoisonError::into_inner);
        groups.entry(label).or_insert(made).clone()
    }

    fn meter(&self, name: &LockName, mode: Mode, measure: impl FnOnce(&Meter)) {
        self.of(name, |group| {
            if let Some(meter) = group.meter(mode) {
                measure(meter);
            }
        });
    }

    fn entered(&self, name: &LockName, mode: Mode, entry: Entry, took: Duration) {
        self.meter(name, mode, |meter| meter.acquire[entry as usize].record(took));
    }

    /// Measures an acquisition.
    pub(super) fn acquiring<'a, F>(
        &'a self,
        name: &'a LockName,
        mode: Mode,
        acquisition: F,
    ) -> Timed<F, Acquiring<'a>> {
        Timed::new(acquisition, Acquiring { measure: self, name, mode })
    }

    /// Measures a call of the backend.
    pub(super) fn call<F>(&self, operation: Operation, call: F) -> Timed<F, Call<'_>> {
        Timed::new(call, Call { measure: self, operation })
    }

    /// An owner that is inside entered once more, at once.
    pub(super) fn nested(&self, name: &LockName, mode: Mode) {
        self.entered(name, mode, Entry::Nested, Duration::ZERO);
    }

    /// A hold has its first guard.
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
    pub(super) fn renewal(&self, renewal: Renewal) {
        let counter = &self.0.renewals[renewal as usize];
        foreign(|| counter.increment(1));
    }

    /// What was left of a lease when its renewal was answered.
    pub(super) fn margin(&self, left: Duration, lease: Duration) {
        let ratio = left.as_secs_f64() / lease.as_secs_f64().max(f64::MIN_POSITIVE);
        foreign(|| self.0.margin.record(ratio.clamp(0.0, 1.0)));
    }
}

/// An acquisition that is measured.
pub(super) struct Acquiring<'a> {
    measure: &'a Measure,
    name: &'a LockName,
    mode: Mode,
}

impl Report for Acquiring<'_> {
    fn dropped(&self, took: Duration) {
        self.measure.entered(self.name, self.mode, Entry::Cancelled, took);
    }
}

impl<T: Entered> ReportOf<Result<T, LockError>> for Acquiring<'_> {
    fn done(&self, acquired: &Result<T, LockError>, took: Duration) {
        let entry = match acquired {
            Ok(acquired) => acquired.how().map_or(Entry::Refused, Entry::from),
            Err(LockError::Timeout { .. }) => Entry::Timeout,
            Err(_) => Entry::Error,
        };
        self.measure.entered(self.name, self.mode, entry, took);
    }
}

/// A call of the backend that is measured.
pub(super) struct Call<'a> {
    measure: &'a Measure,
    operation: Operation,
}

impl Call<'_> {
    fn answered(&self, answered: Answered, took: Duration) {
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

impl Report for Call<'_> {
    fn dropped(&self, took: Duration) {
        self.answered(Answered::Unanswered, took);
    }
}

impl<T: Answer> ReportOf<Result<T, BackendError>> for Call<'_> {
    fn done(&self, answer: &Result<T, BackendError>, took: Duration) {
        let answered = answer.as_ref().map_or(Answered::Error, T::answered);
        self.answered(answered, took);
    }
}

/// What is counted of a waiter, from its first wait until this is dropped.
#[derive(Default)]
pub(super) struct Waiter {
    waiting: Option<Gauge>,
    is_woken: bool,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("is_woken", &self.is_woken).finish_non_exhaustive()
    }
}

impl Waiter {
    /// It waits, perhaps not for the first time.
    pub(super) fn waits(&mut self, measure: &Measure, name: &LockName, mode: Mode) {
        if self.waiting.is_none() {
            measure.meter(name, mode, |meter| {
                meter.waiting.increment(1.0);
                self.waiting = Some(meter.waiting.clone());
            });
        }
    }

    /// The backend told that the lock may be free.
    pub(super) fn woken(&mut self) {
        self.is_woken = true;
    }

    /// It got in, or was refused again, perhaps after it was woken.
    pub(super) fn asked(&mut self, measure: &Measure, got_in: bool) {
        if std::mem::take(&mut self.is_woken) {
            let [useful, spurious] = &measure.0.wakeups;
            let counter = if got_in { useful } else { spurious };
            foreign(|| counter.increment(1));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            foreign(|| waiting.decrement(1.0));
        }
    }
}
