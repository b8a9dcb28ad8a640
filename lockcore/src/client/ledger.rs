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

/// The number of bits that are kept of a time, below the first one.
const KEPT_BITS: u32 = 5;

/// How soon the entries of a ledger have to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Within a second.
    Usual,
    /// As soon as the background task has time.
    Soon,
}

/// Entries in several parts. Each thread adds its own to one of them.
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

/// Times for a histogram, rounded to within 2 %. Each is counted under the number of its rounded
/// value, so the memory does not grow with the count: 3 KB for times of up to a second.
#[derive(Default)]
pub(super) struct LedgerTimes(Vec<u32>);

impl LedgerTimes {
    pub(super) fn add(&mut self, took: Duration) {
        let number = number_of(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if number >= self.0.len() {
            self.0.resize(number + 1, 0);
        }
        self.0[number] = self.0[number].saturating_add(1);
    }

    /// The rounded times, with their counts.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Duration, usize)> {
        let counted = self.0.iter().copied().enumerate().filter(|(_, count)| *count > 0);
        counted.map(|(number, count)| (Duration::from_nanos(rounded(number)), count as usize))
    }
}

/// The number of the rounded value of `nanos`: of all values up to 63, and of 32 in each further
/// range up to twice its beginning.
fn number_of(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.leading_zeros();
    let dropped = bits.saturating_sub(KEPT_BITS + 1);
    // The first of the bits that are kept is set, unless nothing is dropped. It counts on from the
    // ranges before.
    ((dropped as usize) << KEPT_BITS) + (nanos >> dropped) as usize
}

/// The middle of the values with this number.
fn rounded(number: usize) -> u64 {
    let dropped = (number >> KEPT_BITS).saturating_sub(1);
    let kept = number - (dropped << KEPT_BITS);
    let least = (kept as u64) << dropped;
    least + ((1 << dropped) >> 1)
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
        if part.count == MANY { Urgency::Soon } else { Urgency::Usual }
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
        let times = taken.iter().flat_map(|entries| entries.times[0].counts());
        let (count, sum) = times.fold((0, 0.0), |(count, sum), (time, times)| {
            (count + times, sum + time.as_secs_f64() * times as f64)
        });
        assert_eq!(count, 20);
        assert!((186.2..=193.8).contains(&sum), "{sum}");
        assert_eq!(taken.iter().map(|entries| entries.gauges[0]).sum::<i64>(), 20);
        assert!(ledger.take().iter().all(|entries| entries.count == 0));
    }

    #[test]
    fn many_entries_are_urgent_once() {
        let ledger = MetricsLedger::<1, 1>::default();
        let mut urgencies = (0..3 * MANY).map(|_| ledger.enter(time(Duration::ZERO)));
        assert_eq!(urgencies.position(|urgency| urgency == Urgency::Soon), Some(MANY - 1));
        assert!(urgencies.all(|urgency| urgency == Urgency::Usual));
        ledger.take();
        assert_eq!(ledger.enter(time(Duration::ZERO)), Urgency::Usual);
    }

    #[test]
    fn times_are_rounded_to_within_two_hundredths() {
        let ranges = (0..u64::BITS).map(|bit| 1 << bit);
        let around = ranges.flat_map(|start: u64| {
            let steps = [0, 1, 2, 3, start / 32, start / 31, start / 3, start / 2, start - 1];
            steps.map(|step| start.saturating_sub(1).saturating_add(step))
        });
        for nanos in around.chain(0..1000).chain([u64::MAX]) {
            let number = number_of(nanos);
            assert!(number < 32 * 61, "{nanos}");
            let difference = rounded(number).abs_diff(nanos);
            assert!(difference <= nanos / 50, "{nanos} becomes {}", rounded(number));
        }
        assert!((1..100_000_u64).all(|nanos| number_of(nanos) - number_of(nanos - 1) <= 1));
    }
}
