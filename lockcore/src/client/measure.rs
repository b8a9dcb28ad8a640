//! [`ClientMetrics`]: the metrics of a client.
//!
//! A recorder is code of the user: nothing here is called while a lane is locked, and a panic of
//! the recorder ends here. Each metric is registered when it is used for the first time, and its
//! handle is kept, so that nothing is looked up after that. Metrics that alerts count from zero are
//! registered when the client is created: the first value of a series is no increase.
//!
//! Frequent events are entered into a ledger. The background task has them reported to the recorder
//! within a second, on a thread that may be blocked. Where no background task runs, the thread that
//! makes an entry reports it.
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
        Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use metrics::{Counter, Histogram};
use rustc_hash::FxBuildHasher;
use tokio::{task::spawn_blocking, time::timeout};

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
        let made = Arc::new(NameGroup::new(Some(label)));
        made.lost();
        let mut groups = self.0.groups.write().unwrap_or_else(PoisonError::into_inner);
        // Other threads may have added groups meanwhile, this one included.
        if groups.len() >= MOST_GROUPS && label != OTHER && !groups.contains_key(label) {
            drop(groups);
            return self.group(OTHER);
        }
        let group = groups.entry(label).or_insert_with(|| made.clone()).clone();
        // The handles of a group that came second are code of the user, so they are dropped outside
        // of the lock.
        drop(groups);
        drop(made);
        group
    }

    /// Makes an entry for the metrics of a name.
    pub(super) fn enter(
        &self,
        name: &LockName,
        mode: Mode,
        entry: impl FnOnce(&ModeMeters) -> Urgency,
    ) {
        self.of(name, |group| {
            if let Some(meters) = group.mode(mode) {
                self.entered(entry(meters));
            }
        });
    }

    /// An entry was made, which has to be reported to the recorder.
    fn entered(&self, urgency: Urgency) {
        let Measures { wake, is_up, has_entries, is_urgent, .. } = &*self.0;
        if !is_up.load(Ordering::SeqCst) {
            return self.publish();
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

    /// Reports the entries to the recorder, once no other thread does.
    pub(super) fn publish(&self) {
        self.0.publish(|reporting| Some(reporting.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// As [`publish`](Self::publish), on a thread that may be blocked: that of a task must not wait
    /// for a slow recorder, because others may be needed on it, renewals among them.
    pub(super) async fn publish_apart(&self) {
        self.apart(Self::publish).await;
    }

    /// As [`publish_apart`](Self::publish_apart), unless another thread reports. Then the entries
    /// are due at the next look.
    pub(super) async fn try_publish_apart(self) {
        self.apart(Self::try_publish).await;
    }

    /// Runs `report` on a thread that may be blocked. If there is none, it runs on this one: none
    /// can be started, all are in use for longer than [`PATIENCE`], or the runtime ends.
    async fn apart(&self, report: fn(&Self)) {
        let (measure, has_begun) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let report_once = {
            let has_begun = has_begun.clone();
            move || {
                if !has_begun.swap(true, Ordering::SeqCst) {
                    report(&measure);
                }
            }
        };
        let apart = report_once.clone();
        // Tokio panics if no thread can be started.
        let Ok(mut apart) = catch_unwind(AssertUnwindSafe(|| spawn_blocking(apart))) else {
            return report_once();
        };
        if timeout(PATIENCE, &mut apart).await.is_err() && has_begun.load(Ordering::SeqCst) {
            let _ = apart.await;
        }
        report_once();
    }

    /// Reports the entries to the recorder, unless another thread does. Then they are due at the
    /// next look.
    fn try_publish(&self) {
        self.0.publish(|reporting| match reporting.try_lock() {
            Ok(one) => Some(one),
            Err(TryLockError::Poisoned(one)) => Some(one.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
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
        self.entered(meters.time(end as usize, took));
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
    /// Reports the entries to the recorder. `lock` makes sure that one thread at a time does:
    /// another one could report the end of a hold before its beginning.
    fn publish<'a>(&'a self, lock: impl FnOnce(&'a Mutex<()>) -> Option<MutexGuard<'a, ()>>) {
        let within = Within::report();
        let one = within.as_ref().and_then(|_| lock(&self.reporting));
        if one.is_some() {
            return self.publish_all();
        }
        self.is_urgent.store(false, Ordering::SeqCst);
        if !self.has_entries.swap(true, Ordering::SeqCst) {
            (self.wake)();
        }
    }

    fn publish_all(&self) {
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
        calls.iter().for_each(|call| _ = call.publish());
    }
}

impl Drop for Measures {
    fn drop(&mut self) {
        self.publish_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{atomic::AtomicUsize, mpsc},
        thread,
    };

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
            let meters = group.mode(Mode::Exclusive).unwrap();
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
    fn one_thread_at_a_time_reports() {
        let registered = Registered::default();
        let (metrics, name, _) = entered(&registered);
        let ((reported, is_reported), (ended, has_ended)) = (mpsc::channel(), mpsc::channel());
        let other = {
            let metrics = metrics.clone();
            move || {
                metrics.released(&name, Mode::Exclusive, Duration::ZERO);
                ended.send(()).unwrap();
                metrics.publish();
                reported.send(()).unwrap();
            }
        };
        let before = move || {
            thread::spawn(other);
            has_ended.recv().unwrap();
            // The other thread waits, and would not otherwise.
            let other = is_reported.recv_timeout(Duration::from_millis(100));
            assert_eq!(other, Err(mpsc::RecvTimeoutError::Timeout));
        };
        *registered.recorded.before.lock().unwrap() = Some(Box::new(before));
        metrics.publish();
        // After the other thread.
        metrics.publish();
        drop(metrics);
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
        assert!(metrics.is_due());
    }

    /// The background task would try again without end.
    #[test]
    fn an_urgent_report_beside_another_one_is_due_with_the_next_look() {
        let registered = Registered::default();
        let (metrics, ..) = entered(&registered);
        metrics.0.is_urgent.store(true, Ordering::SeqCst);
        let other = metrics.0.reporting.lock().unwrap();
        metrics.try_publish();
        assert_eq!(registered.times(), 0);
        assert!(!metrics.is_urgent() && metrics.is_due());
        drop(other);
        metrics.try_publish();
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
