//! [`ClientMetrics`]: the metrics of a client.
//!
//! A recorder is code of the user: nothing here is called while a lane is locked, and a panic of
//! the recorder ends here. Each metric is registered when it is used for the first time, and its
//! handle is kept, so that nothing is looked up after that. Metrics that alerts count from zero are
//! registered when the client is created: the first value of a series is no increase.
//!
//! Frequent events are entered into a ledger. The background task has them reported to the recorder
//! within a second, on a thread for blocking work if it has one. Where no background task runs, the
//! thread that makes an entry reports it.
//!
//! A flag tells the background task of entries. The thread that makes an entry raises it
//! afterwards, unless it is up; who takes the entries lowers it before. To keep the entry cheap,
//! the thread does not wait until others see it. So an entry may come too late for a look whose
//! flag was still up: after each look that has lowered the flag, there is another one, a second
//! later. The last handle looks once more.

use std::{
    array, fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError, RwLock, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use metrics::{Counter, Histogram};
use rustc_hash::FxBuildHasher;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Notify,
    task::spawn_blocking,
    time::timeout,
};

use super::{
    foreign::foreign,
    ledger::Urgency,
    measured_call::{AnswerEnd, MeasuredCall},
    meters::{
        CallMeters, ModeMeters, NameGroup, OPERATIONS, RENEWALS, counter, describe, histogram,
    },
    outcome::{BackendCall, Entrance, RenewalEnd},
    timed::Timed,
    within::Within,
};
use crate::{LockName, LossReason, Mode};

pub(crate) use super::measured_call::MeasuredAnswer;

/// The most groups of names that are measured separately. All further groups are counted as one.
const MOST_GROUPS: usize = 100;

/// The most reports that a thread makes in a row because others leave theirs to it.
const MOST_ROUNDS: usize = 100;

/// How long a report waits for a thread.
const PATIENCE: Duration = Duration::from_secs(1);

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
pub(crate) struct ClientMetrics(Arc<Measures>);

struct Measures {
    grouping: Grouping,
    /// For the names without a group.
    all: NameGroup,
    groups: RwLock<HashMap<&'static str, Arc<NameGroup>, FxBuildHasher>>,
    calls: [Box<CallMeters>; OPERATIONS.len()],
    renewals: [Counter; RENEWALS.len()],
    margin: Histogram,
    /// Useful wake-ups and spurious ones.
    wakeups: [Counter; 2],
    /// Wakes the background task.
    wake: Box<dyn Fn() + Send + Sync>,
    /// Set while the background task runs.
    is_up: Arc<AtomicBool>,
    /// Set if there are entries that the recorder was not told of.
    has_entries: AtomicBool,
    /// Set if there are many of these entries.
    is_urgent: AtomicBool,
    /// Set if some may have come too late for the last look.
    look_again: AtomicBool,
    /// Held by the thread that reports.
    reporting: Mutex<()>,
    /// Set if that thread has to report once more.
    again: AtomicBool,
    /// Signals the end of a report.
    ended: Notify,
}

impl fmt::Debug for ClientMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientMetrics").field("grouping", &self.0.grouping).finish_non_exhaustive()
    }
}

impl ClientMetrics {
    /// Makes the metrics. The background task reports to the recorder while it `is_up`, soon after
    /// it was woken.
    pub(super) fn new(
        grouping: Grouping,
        wake: impl Fn() + Send + Sync + 'static,
        is_up: &Arc<AtomicBool>,
    ) -> Self {
        foreign(describe);
        let renewals =
            RENEWALS.map(|outcome| counter("lockcore_renewals_total", &[("outcome", outcome)]));
        let wakeups = ["useful", "spurious"]
            .map(|outcome| counter("lockcore_wakeups_total", &[("outcome", outcome)]));
        let all = NameGroup::new(None);
        if grouping.0.is_none() {
            all.lost();
        }
        Self(Arc::new(Measures {
            grouping,
            all,
            groups: RwLock::default(),
            calls: array::from_fn(|at| Box::new(CallMeters::of(at))),
            renewals,
            margin: histogram("lockcore_deadline_margin_ratio", &[]),
            wakeups,
            wake: Box::new(wake),
            is_up: is_up.clone(),
            has_entries: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
            look_again: AtomicBool::new(false),
            reporting: Mutex::default(),
            again: AtomicBool::new(false),
            ended: Notify::new(),
        }))
    }

    /// Runs `measure` on the metrics of a name.
    fn of(&self, name: &LockName, measure: impl FnOnce(&NameGroup)) {
        let Some(grouping) = &self.0.grouping.0 else { return measure(&self.0.all) };
        let mut group = None;
        foreign(|| group = Some(self.group(grouping(name))));
        if let Some(group) = group {
            measure(&group);
        }
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
        let mut groups = self.0.groups.write().unwrap_or_else(PoisonError::into_inner);
        // Other threads may have added groups meanwhile.
        if groups.len() >= MOST_GROUPS && label != OTHER && !groups.contains_key(label) {
            drop(groups);
            return self.group(OTHER);
        }
        let group = groups.entry(label).or_insert_with(|| Arc::new(NameGroup::new(Some(label))));
        let group = group.clone();
        // Before the recorder's code, which may use locks of this group.
        drop(groups);
        group.lost();
        group
    }

    /// Makes an entry for the metrics of a name.
    pub(super) fn enter(
        &self,
        name: &LockName,
        mode: Mode,
        entry: impl FnOnce(&ModeMeters) -> Urgency,
    ) {
        self.of(name, |group| self.entered(entry(group.mode(mode))));
    }

    /// An entry was made, which has to be reported to the recorder.
    fn entered(&self, urgency: Urgency) {
        let Measures { wake, is_up, has_entries, is_urgent, .. } = &*self.0;
        if !is_up.load(Ordering::SeqCst) {
            self.publish();
            return;
        }
        let flag = if urgency == Urgency::Soon { is_urgent } else { has_entries };
        if !flag.load(Ordering::SeqCst) && !flag.swap(true, Ordering::SeqCst) {
            wake();
            // It may have ended without having seen the flag.
            if !is_up.load(Ordering::SeqCst) {
                self.publish();
            }
        }
    }

    /// Returns `true` if there may be entries to report within a second.
    pub(super) fn has_entries(&self) -> bool {
        let Measures { has_entries, look_again, .. } = &*self.0;
        has_entries.load(Ordering::SeqCst) || look_again.load(Ordering::SeqCst)
    }

    /// As [`has_entries`](Self::has_entries), for the look of each second.
    pub(super) fn is_due(&self) -> bool {
        let look_again = self.0.look_again.swap(false, Ordering::SeqCst);
        look_again || self.has_entries()
    }

    /// Returns `true` if there are so many entries that they are to be reported now.
    pub(super) fn is_urgent(&self) -> bool {
        self.0.is_urgent.load(Ordering::SeqCst)
    }

    /// Reports the entries to the recorder. If another thread does, that looks once more.
    pub(super) fn publish(&self) {
        self.0.publish();
    }

    /// As [`publish`](Self::publish), on a thread for blocking work: a slow recorder must not hold
    /// up the thread of a task, which others may need, renewals among them. On a runtime with one
    /// thread it runs on that one, so that programs which are deterministic there stay so.
    pub(super) async fn publish_apart(self) {
        self.apart().await;
    }

    /// As [`publish_apart`](Self::publish_apart), and waits for a report of another thread.
    pub(super) async fn publish_all(&self) {
        loop {
            // Made first, so that it does not miss the end.
            let ended = self.0.ended.notified();
            // Within a report, the recorder waits for this.
            if self.apart().await || Within::is_reporting() {
                return;
            }
            ended.await;
        }
    }

    /// Reports on a thread for blocking work, or on this one if the runtime has just one thread or
    /// ends, or if none can be started, or all are in use for longer than [`PATIENCE`]. Returns
    /// `false` if another thread reports, or this one already.
    async fn apart(&self) -> bool {
        let runtime = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        if matches!(runtime, Err(_) | Ok(RuntimeFlavor::CurrentThread)) {
            return self.0.publish();
        }
        let (measures, is_begun) = (self.0.clone(), Arc::new(AtomicBool::new(false)));
        let begins = move || !is_begun.swap(true, Ordering::SeqCst);
        let begins_apart = begins.clone();
        // Tokio panics if no thread can be started.
        let Ok(mut report) = catch_unwind(AssertUnwindSafe(|| {
            spawn_blocking(move || begins_apart() && measures.publish())
        })) else {
            return self.0.publish();
        };
        let reported = timeout(PATIENCE, &mut report).await;
        if begins() {
            return self.0.publish();
        }
        match reported {
            Ok(reported) => reported.unwrap_or(true),
            Err(_) => report.await.unwrap_or(true),
        }
    }

    fn ended_so(&self, name: &LockName, mode: Mode, end: AcquireEnd, took: Duration) {
        self.enter(name, mode, |meters| meters.entry(end, took));
    }

    /// Measures a call of the backend.
    pub(super) fn call<F>(&self, operation: BackendCall, call: F) -> Timed<F, MeasuredCall<'_>> {
        Timed::new(call, MeasuredCall::new(self, operation))
    }

    pub(super) fn answered(&self, operation: BackendCall, end: AnswerEnd, took: Duration) {
        let meters = &self.0.calls[operation as usize];
        self.entered(meters.answered(end, took));
    }

    /// An owner that is inside entered once more, without a request.
    pub(super) fn nested(&self, name: &LockName, mode: Mode) {
        self.ended_so(name, mode, AcquireEnd::Nested, Duration::ZERO);
    }

    /// A hold got its first guard.
    pub(super) fn began(&self, name: &LockName, mode: Mode, how: Entrance, took: Duration) {
        self.ended_so(name, mode, how.into(), took);
    }

    /// The last guard of a hold is gone.
    pub(super) fn released(&self, name: &LockName, mode: Mode, held_for: Duration) {
        self.enter(name, mode, |meters| meters.end(0, held_for));
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
                foreign(|| lost[reason].increment(1));
            }
        });
        self.enter(name, mode, |meters| meters.end(end, held_for));
    }

    /// A renewal was answered, for one hold.
    pub(super) fn renewal(&self, renewal: RenewalEnd) {
        let counter = &self.0.renewals[renewal as usize];
        foreign(|| counter.increment(1));
    }

    /// A waiter was woken and asked again.
    pub(super) fn wakeup(&self, got_in: bool) {
        let [useful, spurious] = &self.0.wakeups;
        let counter = if got_in { useful } else { spurious };
        foreign(|| counter.increment(1));
    }

    /// Records what was left of a lease when its renewal was answered.
    pub(super) fn margin(&self, left: Duration, lease: Duration) {
        let ratio = left.as_secs_f64() / lease.as_secs_f64().max(f64::MIN_POSITIVE);
        foreign(|| self.0.margin.record(ratio.clamp(0.0, 1.0)));
    }
}

impl Measures {
    /// Reports the entries to the recorder. One thread at a time does: another one could report the
    /// end of a hold before its beginning. Returns `false` if another thread does, or this one
    /// already. The other one looks once more afterwards, up to [`MOST_ROUNDS`] times.
    fn publish(&self) -> bool {
        let Self { again, reporting, ended, .. } = self;
        let Some(_within) = Within::report() else {
            // The recorder uses locks. A report at once would be followed by another one.
            self.postpone();
            return false;
        };
        again.store(true, Ordering::SeqCst);
        for round in 0..MOST_ROUNDS {
            let one = match reporting.try_lock() {
                Ok(one) => one,
                Err(TryLockError::Poisoned(one)) => one.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    self.postpone();
                    return round > 0;
                }
            };
            if again.swap(false, Ordering::SeqCst) {
                self.report_entries();
            }
            drop(one);
            ended.notify_waiters();
            // Others that came meanwhile have left it to this thread.
            if !again.load(Ordering::SeqCst) {
                break;
            }
        }
        true
    }

    /// Makes urgent entries due with the next look, which they may have come too early for.
    fn postpone(&self) {
        let Self { is_urgent, has_entries, wake, .. } = self;
        is_urgent.store(false, Ordering::SeqCst);
        if !has_entries.swap(true, Ordering::SeqCst) {
            wake();
        }
    }

    fn report_entries(&self) {
        let Self { all, groups, calls, has_entries, is_urgent, look_again, wake, .. } = self;
        // Before the look, because an entry that this misses sets it again.
        let lowered = [has_entries, is_urgent].map(|flag| flag.swap(false, Ordering::SeqCst));
        if lowered.contains(&true) {
            look_again.store(true, Ordering::SeqCst);
            wake();
        }
        all.publish();
        // The recorder may use locks of a new group.
        let groups: Vec<_> = {
            let groups = groups.read().unwrap_or_else(PoisonError::into_inner);
            groups.values().cloned().collect()
        };
        groups.iter().for_each(|group| group.publish());
        calls.iter().for_each(|call| call.publish());
    }
}

impl Drop for Measures {
    fn drop(&mut self) {
        self.report_entries();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread};

    use metrics::{Gauge, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::{super::meters::ANSWERS, *};

    /// Keeps the keys that are registered, and the names of those that are recorded.
    #[derive(Default)]
    struct Registered {
        keys: Mutex<Vec<Key>>,
        recorded: Arc<Recorded>,
    }

    #[derive(Default)]
    struct Recorded {
        names: Mutex<Vec<String>>,
        /// Runs when the first time is about to be recorded.
        before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    struct RecordedTimes(String, Arc<Recorded>);

    impl HistogramFn for RecordedTimes {
        fn record(&self, _: f64) {
            let Self(name, recorded) = self;
            let before = recorded.before.lock().unwrap().take();
            before.into_iter().for_each(|before| before());
            recorded.names.lock().unwrap().push(name.clone());
        }
    }

    impl Registered {
        fn add(&self, key: &Key) {
            self.keys.lock().unwrap().push(key.clone());
        }

        fn times(&self) -> usize {
            self.recorded.names.lock().unwrap().len()
        }
    }

    impl Recorder for Registered {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.add(key);
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            self.add(key);
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.add(key);
            Arc::new(RecordedTimes(key.name().to_owned(), self.recorded.clone())).into()
        }
    }

    #[test]
    fn what_alerts_count_from_zero_is_registered_with_the_client() {
        let registered = Registered::default();
        metrics::with_local_recorder(&registered, || {
            ClientMetrics::new(Grouping::default(), || {}, &Arc::default())
        });
        let keys = registered.keys.into_inner().unwrap();
        let calls = OPERATIONS.iter().flat_map(|operation| {
            ANSWERS.map(|outcome| {
                Key::from_parts(
                    "lockcore_backend_seconds",
                    &[("operation", *operation), ("outcome", outcome)],
                )
            })
        });
        let failed = Key::from_parts("lockcore_renewals_total", &[("outcome", "failed")]);
        let lost = Key::from_parts("lockcore_lost_total", &[("reason", "lease_ended")]);
        for key in calls.chain([failed, lost]) {
            assert!(keys.contains(&key), "{key}");
        }
    }

    /// The metrics of a client whose background task runs, an entry, and how often that was woken.
    fn entered(registered: &Registered) -> (ClientMetrics, LockName, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let wake = {
            let wakes = wakes.clone();
            move || _ = wakes.fetch_add(1, Ordering::SeqCst)
        };
        let metrics = ClientMetrics::new(Grouping::default(), wake, &Arc::new(true.into()));
        let name = LockName::new("a").unwrap();
        metrics::with_local_recorder(registered, || metrics.nested(&name, Mode::Exclusive));
        (metrics, name, wakes)
    }

    #[test]
    fn an_entry_that_comes_too_late_for_a_look_is_seen_by_the_next_one() {
        let registered = Registered::default();
        let (metrics, name, wakes) = entered(&registered);
        assert_eq!(wakes.load(Ordering::SeqCst), 1);
        assert!(metrics.is_due());
        metrics.publish();
        // The thread of this one had seen that the flag was up.
        metrics.of(&name, |group| {
            let meters = group.mode(Mode::Exclusive);
            meters.entry(AcquireEnd::Nested, Duration::ZERO);
        });
        assert_eq!((registered.times(), wakes.load(Ordering::SeqCst)), (1, 2));
        assert!(metrics.has_entries());
        assert!(metrics.is_due());
        metrics.publish();
        assert_eq!((registered.times(), wakes.load(Ordering::SeqCst)), (2, 2));
        assert!(!metrics.has_entries() && !metrics.is_due());
    }

    #[test]
    fn one_thread_at_a_time_reports_for_all() {
        let registered = Registered::default();
        let (metrics, name, _) = entered(&registered);
        let other = {
            let metrics = metrics.clone();
            move || {
                metrics.released(&name, Mode::Exclusive, Duration::ZERO);
                assert!(!metrics.0.publish());
            }
        };
        let before = move || thread::spawn(other).join().unwrap();
        *registered.recorded.before.lock().unwrap() = Some(Box::new(before));
        assert!(metrics.0.publish());
        let names = registered.recorded.names.lock().unwrap();
        assert_eq!(*names, ["lockcore_acquire_seconds", "lockcore_hold_seconds"]);
    }

    /// The recorder may use locks, more than once.
    #[test]
    fn a_thread_does_not_report_within_its_report() {
        let registered = Registered::default();
        let (metrics, ..) = entered(&registered);
        let within = metrics.clone();
        let before = move || (0..2).for_each(|_| within.publish());
        *registered.recorded.before.lock().unwrap() = Some(Box::new(before));
        metrics.publish();
        assert_eq!(registered.times(), 1);
        assert!(metrics.0.has_entries.load(Ordering::SeqCst));
    }

    /// The background task would try again without end.
    #[test]
    fn an_urgent_report_beside_another_one_is_due_with_the_next_look() {
        let registered = Registered::default();
        let (metrics, ..) = entered(&registered);
        metrics.0.is_urgent.store(true, Ordering::SeqCst);
        metrics.0.has_entries.store(false, Ordering::SeqCst);
        let other = metrics.0.reporting.lock().unwrap();
        assert!(!metrics.0.publish());
        assert_eq!(registered.times(), 0);
        assert!(!metrics.is_urgent() && metrics.is_due());
        drop(other);
        assert!(metrics.0.publish());
        assert_eq!(registered.times(), 1);
    }

    #[test]
    fn the_last_handle_reports_what_is_left() {
        let registered = Registered::default();
        let (metrics, ..) = entered(&registered);
        let other = metrics.clone();
        drop(metrics);
        assert_eq!(registered.times(), 0);
        drop(other);
        assert_eq!(registered.times(), 1);
    }
}
