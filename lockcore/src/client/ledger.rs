//! [`MetricsLedger`]: the measurements that were not reported to the recorder yet.
//!
//! A recorder takes about a tenth of a microsecond for each figure, an entry here a tenth of that.

use std::{
    array, mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The number of parts of a ledger. Several, so that threads seldom contend.
const PARTS: usize = 8;

/// The number of entries at which a part is to be taken soon, so that the recorder does not get all
/// the entries of a second at once.
const MANY: usize = 8192;

/// The number of entries that is too large, which means that nobody takes them.
const TOO_MANY: usize = 16 * MANY;

/// How soon the entries of a ledger have to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Within a second.
    Usual,
    /// As soon as the background task has time.
    Soon,
    /// By the thread that made the last entry.
    Now,
}

/// LedgerEntries in some parts: each thread makes its own in one of these.
pub(super) struct MetricsLedger<const TIMES: usize, const GAUGES: usize> {
    parts: [LedgerPart<TIMES, GAUGES>; PARTS],
}

/// Aligned, so that processors do not contend for a cache line.
#[repr(align(128))]
struct LedgerPart<const TIMES: usize, const GAUGES: usize>(Mutex<LedgerEntries<TIMES, GAUGES>>);

/// The measurements for some histograms and gauges.
pub(super) struct LedgerEntries<const TIMES: usize, const GAUGES: usize> {
    pub(super) times: [LedgerTimes; TIMES],
    /// The changes of the gauges.
    pub(super) gauges: [i64; GAUGES],
    count: usize,
}

/// LedgerTimes for a histogram.
#[derive(Default)]
pub(super) struct LedgerTimes {
    /// The number of times that are zero: most acquisitions wait for nothing.
    pub(super) zeros: usize,
    /// In nanoseconds.
    others: Vec<u64>,
}

impl LedgerTimes {
    pub(super) fn add(&mut self, took: Duration) {
        match u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) {
            0 => self.zeros += 1,
            nanos => self.others.push(nanos),
        }
    }

    /// All but the zeros.
    pub(super) fn others(&self) -> impl Iterator<Item = Duration> {
        self.others.iter().copied().map(Duration::from_nanos)
    }
}

impl<const TIMES: usize, const GAUGES: usize> Default for LedgerEntries<TIMES, GAUGES> {
    fn default() -> Self {
        Self { times: array::from_fn(|_| LedgerTimes::default()), gauges: [0; GAUGES], count: 0 }
    }
}

impl<const TIMES: usize, const GAUGES: usize> Default for MetricsLedger<TIMES, GAUGES> {
    fn default() -> Self {
        Self { parts: array::from_fn(|_| LedgerPart(Mutex::default())) }
    }
}

impl<const TIMES: usize, const GAUGES: usize> LedgerPart<TIMES, GAUGES> {
    fn lock(&self) -> MutexGuard<'_, LedgerEntries<TIMES, GAUGES>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const TIMES: usize, const GAUGES: usize> MetricsLedger<TIMES, GAUGES> {
    /// Makes an entry.
    pub(super) fn enter(&self, entry: impl FnOnce(&mut LedgerEntries<TIMES, GAUGES>)) -> Urgency {
        let mut part = self.parts[own_part()].lock();
        entry(&mut part);
        part.count += 1;
        match part.count {
            MANY => Urgency::Soon,
            TOO_MANY.. => Urgency::Now,
            _ => Urgency::Usual,
        }
    }

    /// Takes all entries, as of one moment: for something that began on one thread and ended on
    /// another, the end is never taken without the beginning.
    pub(super) fn take(&self) -> [LedgerEntries<TIMES, GAUGES>; PARTS] {
        let mut parts = self.parts.each_ref().map(LedgerPart::lock);
        parts.each_mut().map(|part| mem::take(&mut **part))
    }
}

/// The part in which this thread makes its entries.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(took: Duration) -> impl Fn(&mut LedgerEntries<1, 1>) {
        move |entries| entries.times[0].add(took)
    }

    #[test]
    fn entries_of_all_threads_are_taken_once() {
        let ledger = MetricsLedger::<1, 1>::default();
        std::thread::scope(|scope| {
            for took in 0..20 {
                let ledger = &ledger;
                scope.spawn(move || {
                    ledger.enter(time(Duration::from_secs(took)));
                    ledger.enter(|entries| entries.gauges[0] += 1);
                });
            }
        });
        let taken = ledger.take();
        let zeros: usize = taken.iter().map(|entries| entries.times[0].zeros).sum();
        let others: Duration = taken.iter().flat_map(|entries| entries.times[0].others()).sum();
        assert_eq!((zeros, others), (1, Duration::from_secs(190)));
        assert_eq!(taken.iter().map(|entries| entries.gauges[0]).sum::<i64>(), 20);
        assert!(ledger.take().iter().all(|entries| entries.count == 0));
    }

    #[test]
    fn many_entries_are_urgent_once_and_too_many_always() {
        let ledger = MetricsLedger::<1, 1>::default();
        let urgencies: Vec<_> =
            (0..TOO_MANY + 1).map(|_| ledger.enter(time(Duration::ZERO))).collect();
        let soon = urgencies.iter().filter(|urgency| **urgency == Urgency::Soon);
        assert_eq!(soon.count(), 1);
        assert_eq!(urgencies[TOO_MANY - 2..], [Urgency::Usual, Urgency::Now, Urgency::Now]);
        ledger.take();
        assert_eq!(ledger.enter(time(Duration::ZERO)), Urgency::Usual);
    }
}
