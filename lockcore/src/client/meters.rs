//! [`NameGroup`] and [`CallMeters`]: ledgers, the handles of their metrics, and the reports to the
//! recorder.
//!
//! A recorder is code of the user. A panic in it ends here, and the handle that it failed to make
//! does nothing.

use std::{array, sync::OnceLock, time::Duration};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Unit};

use super::{
    foreign::foreign,
    ledger::{MetricsLedger, Urgency},
    measure::AcquireEnd,
    measured_call::AnswerEnd,
};
use crate::Mode;

pub(super) const MODES: [&str; 5] = ["exclusive", "fair", "read", "write", "permit"];
pub(super) const ENTRIES: [&str; 7] =
    ["granted", "handed_over", "nested", "refused", "timeout", "error", "cancelled"];
pub(super) const ENDS: [&str; 3] = ["released", "lost", "closed"];
pub(super) const REASONS: [&str; 3] = ["lease_ended", "gone", "closed"];
pub(super) const RENEWALS: [&str; 3] = ["renewed", "gone", "failed"];
pub(super) const OPERATIONS: [&str; 6] =
    ["acquire", "release", "renew", "subscribe", "inspect", "force_release"];
pub(super) const ANSWERS: [&str; 5] = ["ok", "refused", "not_held", "error", "unanswered"];

static METADATA: Metadata<'static> =
    Metadata::new("lockcore", Level::INFO, Some("lockcore::metrics"));

/// The metrics of a group of names.
pub(super) struct NameGroup {
    label: Option<&'static str>,
    modes: [OnceLock<Box<ModeMeters>>; MODES.len()],
    lost: OnceLock<[Counter; REASONS.len()]>,
}

/// The metrics of a mode. The times are those of [`ENTRIES`], and those of [`ENDS`] from [`HOLD`]
/// on. The gauge of the ledger is the number of waiters.
#[derive(Default)]
pub(super) struct ModeMeters {
    ledger: MetricsLedger<TIMES>,
    /// Nothing is reported until they are registered.
    handles: OnceLock<ModeHandles>,
}

struct ModeHandles {
    histograms: [Histogram; TIMES],
    waiting: Gauge,
    held: Gauge,
}

const TIMES: usize = ENTRIES.len() + ENDS.len();
const HOLD: usize = ENTRIES.len();

/// The metrics of a call of the backend, for each of [`ANSWERS`].
pub(super) struct CallMeters {
    ledger: MetricsLedger<{ ANSWERS.len() }>,
    histograms: [Histogram; ANSWERS.len()],
}

/// Reports the times to the recorder, and returns how many there were for each histogram. They are
/// all taken before that: the recorder takes its time.
fn report<const TIMES: usize>(
    ledger: &MetricsLedger<TIMES>,
    histograms: &[Histogram; TIMES],
) -> [usize; TIMES] {
    let mut taken = array::from_fn::<Vec<_>, TIMES, _>(|_| Vec::new());
    for (at, taken) in taken.iter_mut().enumerate().rev() {
        taken.extend(ledger.take_times(at));
    }
    for (times, histogram) in taken.iter().zip(histograms) {
        for (took, count) in times {
            foreign(|| histogram.record_many(*took, *count));
        }
    }
    taken.map(|times| times.iter().map(|(_, count)| count).sum())
}

impl CallMeters {
    /// `at` is the index of the operation in [`OPERATIONS`].
    pub(super) fn of(at: usize) -> Self {
        let histogram = |outcome| {
            let labels = [("operation", OPERATIONS[at]), ("outcome", outcome)];
            histogram("lockcore_backend_seconds", &labels)
        };
        Self { ledger: MetricsLedger::default(), histograms: ANSWERS.map(histogram) }
    }

    /// A call was answered.
    pub(super) fn answered(&self, answer: AnswerEnd, took: Duration) -> Urgency {
        self.ledger.time(answer as usize, took)
    }

    /// Reports the entries to the recorder.
    pub(super) fn publish(&self) {
        report(&self.ledger, &self.histograms);
    }
}

impl ModeMeters {
    /// An acquisition has ended so, without a hold of its own or with one.
    pub(super) fn entry(&self, entry: AcquireEnd, took: Duration) -> Urgency {
        self.ledger.time(entry as usize, took)
    }

    /// A hold has ended. `end` is an index in [`ENDS`].
    pub(super) fn end(&self, end: usize, held_for: Duration) -> Urgency {
        self.ledger.time(HOLD + end, held_for)
    }

    pub(super) fn waits(&self) -> Urgency {
        self.ledger.raise_gauge();
        Urgency::Usual
    }

    pub(super) fn waits_no_more(&self) -> Urgency {
        self.ledger.lower_gauge();
        Urgency::Usual
    }

    /// Reports the entries to the recorder.
    fn publish(&self) {
        let Some(ModeHandles { histograms, waiting, held }) = self.handles.get() else { return };
        let waits = self.ledger.take_gauge();
        let counts = report(&self.ledger, histograms);
        let begun = counts[AcquireEnd::Granted as usize] + counts[AcquireEnd::HandedOver as usize];
        let ended: usize = counts[HOLD..].iter().sum();
        change(held, begun as f64 - ended as f64);
        change(waiting, waits as f64);
    }
}

/// Reported as a change and not as a value, because other clients use the same gauge.
fn change(gauge: &Gauge, by: f64) {
    if by > 0.0 {
        foreign(|| gauge.increment(by));
    } else if by < 0.0 {
        foreign(|| gauge.decrement(-by));
    }
}

/// Runs the recorder's code that makes a handle. If the code panics, the handle does nothing.
fn made<T>(make: impl FnOnce() -> T, noop: fn() -> T) -> T {
    let mut made = None;
    foreign(|| made = Some(make()));
    made.unwrap_or_else(noop)
}

fn key(name: &'static str, labels: &[(&'static str, &'static str)]) -> Key {
    let labels = labels.iter().map(|(key, value)| Label::from_static_parts(key, value));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

pub(super) fn counter(name: &'static str, labels: &[(&'static str, &'static str)]) -> Counter {
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

pub(super) fn histogram(name: &'static str, labels: &[(&'static str, &'static str)]) -> Histogram {
    let register = || {
        metrics::with_recorder(|recorder| {
            recorder.register_histogram(&key(name, labels), &METADATA)
        })
    };
    made(register, Histogram::noop)
}

/// Tells the recorder what the metrics mean.
pub(super) fn describe() {
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

impl NameGroup {
    pub(super) fn new(label: Option<&'static str>) -> Self {
        Self { label, modes: Default::default(), lost: OnceLock::new() }
    }

    /// The labels, and the label of the group.
    fn labels(&self, labels: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let group = self.label.map(|label| ("group", label));
        labels.iter().copied().chain(group).collect()
    }

    /// The counters of lost holds. They are registered while no thread waits for them, because that
    /// is the recorder's code.
    pub(super) fn lost(&self) -> Option<&[Counter; REASONS.len()]> {
        if self.lost.get().is_none() {
            let lost = REASONS
                .map(|reason| counter("lockcore_lost_total", &self.labels(&[("reason", reason)])));
            // Another thread may have set the same value first.
            let _ = self.lost.set(lost);
        }
        self.lost.get()
    }

    /// The metrics of a mode. They are registered when it is used first. Whoever uses it meanwhile,
    /// such as the recorder's own code, makes entries that are reported later.
    pub(super) fn mode(&self, mode: Mode) -> &ModeMeters {
        let at = match mode {
            Mode::Exclusive => 0,
            Mode::Fair => 1,
            Mode::Read => 2,
            Mode::Write => 3,
            Mode::Permit { .. } => 4,
        };
        let mut is_first = false;
        let meters = self.modes[at].get_or_init(|| {
            is_first = true;
            Box::default()
        });
        if is_first {
            let _ = meters.handles.set(self.register(MODES[at]));
        }
        meters
    }

    /// Reports the entries to the recorder.
    pub(super) fn publish(&self) {
        self.modes.iter().filter_map(OnceLock::get).for_each(|meters| meters.publish());
    }

    fn register(&self, mode: &'static str) -> ModeHandles {
        let with = |outcome| self.labels(&[("mode", mode), ("outcome", outcome)]);
        let alone = self.labels(&[("mode", mode)]);
        let histograms = array::from_fn(|at| match ENTRIES.get(at) {
            Some(entry) => histogram("lockcore_acquire_seconds", &with(entry)),
            None => histogram("lockcore_hold_seconds", &with(ENDS[at - HOLD])),
        });
        let [waiting, held] = ["lockcore_waiting", "lockcore_held"].map(|name| gauge(name, &alone));
        ModeHandles { histograms, waiting, held }
    }
}
