//! [`MetricsLedger`]: the measurements that were not reported to the recorder yet.
//!
//! A recorder takes about a tenth of a microsecond for each figure, an entry here a hundredth of
//! that: it is a store to memory that no other thread writes. The counts only rise. Whoever takes
//! entries takes the difference to what was taken before.
//!
//! An entry is stored with `Release` and taken with `Acquire`: the thread that takes it also sees
//! everything that happened before it. Entries have no order with the flags that tell of them: see
//! [`measure`](super::measure).

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

/// The number of threads at a time that have a part of each ledger for themselves. Further threads
/// share one.
const OWN_PARTS: usize = 128;

/// The part of the further threads.
const SHARED_PART: usize = OWN_PARTS;

const PARTS: usize = OWN_PARTS + 1;

/// The number of times in a part, for a histogram, after which they are to be taken soon, so that
/// the recorder does not get all times of a second at once.
const MANY: u32 = 8192;

/// The number of bits that are kept of a time, below the first one.
const KEPT_BITS: u32 = 5;

/// The number of rounded times below 2.1 s, and of all.
const SHORT: usize = 864;
const ALL: usize = 1920;

/// How soon the entries of a ledger have to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Within a second.
    Usual,
    /// As soon as the background task has time.
    Soon,
}

/// The measurements for some histograms and a gauge, in several parts. Each thread makes its
/// entries in one of them.
pub(super) struct MetricsLedger<const TIMES: usize> {
    parts: [OnceLock<Box<LedgerPart<TIMES>>>; PARTS],
}

/// Aligned, so that processors do not contend for a cache line.
#[repr(align(128))]
struct LedgerPart<const TIMES: usize> {
    times: [LedgerTimes; TIMES],
    /// How often the gauge rose and fell.
    risen: LedgerCount,
    fallen: LedgerCount,
}

/// A count, and how much of it was taken.
#[derive(Default)]
struct LedgerCount {
    entered: AtomicU32,
    taken: AtomicU32,
}

impl LedgerCount {
    /// Adds one, and returns the count.
    fn add(&self, writer: Writer) -> u32 {
        writer.add_one(&self.entered)
    }

    /// Takes what was added since the last time.
    fn take(&self) -> u32 {
        take(&self.entered, &self.taken)
    }
}

/// Takes the difference between `entered` and `taken`. Several threads may do so at once.
fn take(entered: &AtomicU32, taken: &AtomicU32) -> u32 {
    let mut before = taken.load(Acquire);
    loop {
        // Read after `before`, so it is no less. Both may have wrapped.
        let now = entered.load(Acquire);
        if now == before {
            return 0;
        }
        match taken.compare_exchange(before, now, Release, Acquire) {
            Ok(_) => return now.wrapping_sub(before),
            Err(changed) => before = changed,
        }
    }
}

/// Times for a histogram, rounded to within 2 %. Each is counted under the number of its rounded
/// value, so the memory does not grow with the count: 7 KB, and 8 KB more for times above 2.1 s.
#[derive(Default)]
struct LedgerTimes {
    /// The number of times, raised after those below, so that they need not be looked through.
    all: LedgerCount,
    short: OnceLock<Box<LedgerCounts<SHORT>>>,
    long: OnceLock<Box<LedgerCounts<{ ALL - SHORT }>>>,
}

/// Many counts, and how much of each was taken. Apart, because only the thread whose part it is
/// writes the first ones.
struct LedgerCounts<const COUNT: usize> {
    entered: [AtomicU32; COUNT],
    taken: [AtomicU32; COUNT],
}

impl<const COUNT: usize> Default for LedgerCounts<COUNT> {
    fn default() -> Self {
        let [entered, taken] = [const { [const { AtomicU32::new(0) }; COUNT] }; 2];
        Self { entered, taken }
    }
}

impl<const COUNT: usize> LedgerCounts<COUNT> {
    fn take(&self) -> impl Iterator<Item = u32> {
        self.entered.iter().zip(&self.taken).map(|(entered, taken)| take(entered, taken))
    }
}

impl LedgerTimes {
    fn add(&self, took: Duration, writer: Writer) -> Urgency {
        let number = number_of(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let count = match number.checked_sub(SHORT) {
            None => &self.short.get_or_init(Box::default).entered[number],
            Some(number) => &self.long.get_or_init(Box::default).entered[number],
        };
        writer.add_one(count);
        match self.all.add(writer).is_multiple_of(MANY) {
            true => Urgency::Soon,
            false => Urgency::Usual,
        }
    }

    /// Takes the rounded times, with their counts.
    fn take(&self) -> impl Iterator<Item = (Duration, usize)> {
        let has_entries = self.all.take() > 0;
        let short = self.short.get().filter(|_| has_entries).into_iter();
        let long = self.long.get().filter(|_| has_entries).into_iter();
        let short = short.flat_map(|counts| (0..).zip(counts.take()));
        let long = long.flat_map(|counts| (SHORT..).zip(counts.take()));
        let entered = short.chain(long).filter(|(_, count)| *count > 0);
        entered.map(|(number, count)| (Duration::from_nanos(rounded(number)), count as usize))
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

impl<const TIMES: usize> Default for LedgerPart<TIMES> {
    fn default() -> Self {
        let times = array::from_fn(|_| LedgerTimes::default());
        Self { times, risen: LedgerCount::default(), fallen: LedgerCount::default() }
    }
}

impl<const TIMES: usize> Default for MetricsLedger<TIMES> {
    fn default() -> Self {
        Self { parts: [const { OnceLock::new() }; PARTS] }
    }
}

impl<const TIMES: usize> MetricsLedger<TIMES> {
    fn own_part(&self) -> (&LedgerPart<TIMES>, Writer) {
        let writer = Writer::of_this_thread();
        (self.parts[writer.part].get_or_init(Box::default), writer)
    }

    fn parts(&self) -> impl Iterator<Item = &LedgerPart<TIMES>> {
        self.parts.iter().filter_map(OnceLock::get).map(Box::as_ref)
    }

    /// Enters a time for the histogram `at`.
    pub(super) fn time(&self, at: usize, took: Duration) -> Urgency {
        let (part, writer) = self.own_part();
        part.times[at].add(took, writer)
    }

    pub(super) fn raise_gauge(&self) {
        let (part, writer) = self.own_part();
        part.risen.add(writer);
    }

    /// The gauge was raised before, perhaps by another thread.
    pub(super) fn lower_gauge(&self) {
        let (part, writer) = self.own_part();
        part.fallen.add(writer);
    }

    /// Takes the times for the histogram `at`. Whatever happened before one of them is seen by the
    /// next call: take ends first, and no end is reported without its beginning.
    pub(super) fn take_times(&self, at: usize) -> impl Iterator<Item = (Duration, usize)> {
        self.parts().flat_map(move |part| part.times[at].take())
    }

    /// Takes the change of the gauge.
    pub(super) fn take_gauge(&self) -> i64 {
        let fallen: i64 = self.parts().map(|part| i64::from(part.fallen.take())).sum();
        let risen: i64 = self.parts().map(|part| i64::from(part.risen.take())).sum();
        risen - fallen
    }
}

/// Says in which part a thread makes its entries.
#[derive(Clone, Copy)]
struct Writer {
    part: usize,
}

/// Set for each part that a thread has for itself.
static IS_OWNED: [AtomicBool; OWN_PARTS] = [const { AtomicBool::new(false) }; OWN_PARTS];

/// The part of a thread, until the thread ends.
struct OwnPart(Writer);

thread_local! {
    static OWN_PART: OwnPart = OwnPart::claim();
}

impl OwnPart {
    fn claim() -> Self {
        // `Acquire`: the counts go on from those of the thread that had the part before.
        let free = IS_OWNED.iter().position(|is_owned| !is_owned.swap(true, Acquire));
        Self(Writer { part: free.unwrap_or(SHARED_PART) })
    }
}

impl Drop for OwnPart {
    fn drop(&mut self) {
        if let Some(is_owned) = IS_OWNED.get(self.0.part) {
            is_owned.store(false, Release);
        }
    }
}

impl Writer {
    /// A thread that is about to end has no part for itself any more.
    fn of_this_thread() -> Self {
        OWN_PART.try_with(|own| own.0).unwrap_or(Self { part: SHARED_PART })
    }

    /// Adds one to `count`, which is in the part of this thread. Returns the sum.
    fn add_one(self, count: &AtomicU32) -> u32 {
        if self.part == SHARED_PART {
            return count.fetch_add(1, Release).wrapping_add(1);
        }
        // No other thread writes it.
        let sum = count.load(Relaxed).wrapping_add(1);
        count.store(sum, Release);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_all_threads_are_taken_once() {
        let ledger = MetricsLedger::<2>::default();
        std::thread::scope(|scope| {
            for took in 0..20 {
                let ledger = &ledger;
                scope.spawn(move || {
                    ledger.time(1, Duration::from_secs(took));
                    ledger.raise_gauge();
                });
            }
        });
        ledger.lower_gauge();
        let (count, sum) = ledger.take_times(1).fold((0, 0.0), |(count, sum), (time, times)| {
            (count + times, sum + time.as_secs_f64() * times as f64)
        });
        assert_eq!(count, 20);
        assert!((186.2..=193.8).contains(&sum), "{sum}");
        assert_eq!(ledger.take_gauge(), 19);
        assert_eq!((ledger.take_times(0).count(), ledger.take_times(1).count()), (0, 0));
        assert_eq!(ledger.take_gauge(), 0);
    }

    #[test]
    fn no_end_is_taken_without_its_beginning() {
        const BEGINNING: usize = 0;
        const END: usize = 1;
        let (ledger, is_over) = (MetricsLedger::<2>::default(), AtomicBool::new(false));
        let count = |at| ledger.take_times(at).map(|(_, count)| count).sum::<usize>();
        std::thread::scope(|scope| {
            let (first, second) = std::sync::mpsc::sync_channel(16);
            let ledger = &ledger;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    ledger.time(BEGINNING, Duration::ZERO);
                    ledger.raise_gauge();
                    first.send(()).unwrap();
                }
            });
            scope.spawn(|| {
                for () in second {
                    ledger.time(END, Duration::ZERO);
                    ledger.lower_gauge();
                }
                is_over.store(true, Release);
            });
            let (mut under_way, mut gauge) = (0, 0);
            loop {
                let is_last = is_over.load(Acquire);
                let ended = count(END);
                under_way += count(BEGINNING);
                under_way = under_way.checked_sub(ended).unwrap();
                gauge += ledger.take_gauge();
                assert!(gauge >= 0, "{gauge}");
                if is_last {
                    break;
                }
            }
            assert_eq!((under_way, gauge), (0, 0));
        });
    }

    #[test]
    fn times_are_urgent_when_there_are_many() {
        const EACH: usize = 5 * MANY as usize;
        let spread = |number: usize| Duration::from_nanos(7 * (number % 100_000) as u64);
        for times in [|_| Duration::ZERO, spread] as [fn(usize) -> Duration; 2] {
            let ledger = MetricsLedger::<2>::default();
            let enter = |number| ledger.time(number % 2, times(number));
            let urgent = (0..2 * EACH).filter(|number| enter(*number) == Urgency::Soon);
            let counts: Vec<_> = urgent.map(|number| number / 2 + 1).collect();
            let many: Vec<_> = (1..=5).flat_map(|times| [times * MANY as usize; 2]).collect();
            assert_eq!(counts, many);
            let taken: [usize; 2] =
                [0, 1].map(|at| ledger.take_times(at).map(|(_, count)| count).sum());
            assert_eq!(taken, [EACH; 2]);
        }
    }

    #[test]
    fn threads_beyond_the_parts_share_one() {
        let ledger = MetricsLedger::<1>::default();
        let enter = || {
            for took in 0..1000 {
                ledger.time(0, Duration::from_nanos(took));
                ledger.raise_gauge();
            }
        };
        for _ in 0..2 * PARTS {
            std::thread::scope(|scope| _ = scope.spawn(enter));
        }
        // Other tests have threads, too.
        assert!(ledger.parts().count() < PARTS / 2);
        let all = std::sync::Barrier::new(2 * PARTS);
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    enter();
                    all.wait();
                });
            }
        });
        let count: usize = ledger.take_times(0).map(|(_, count)| count).sum();
        assert_eq!((count, ledger.take_gauge()), (4000 * PARTS, 4000 * PARTS as i64));
        assert!(ledger.parts[SHARED_PART].get().is_some());
    }

    #[test]
    fn counts_may_wrap() {
        let count = LedgerCount::default();
        for counted in [&count.entered, &count.taken] {
            counted.store(u32::MAX, Relaxed);
        }
        assert_eq!(count.add(Writer::of_this_thread()), 0);
        assert_eq!(count.add(Writer::of_this_thread()), 1);
        assert_eq!((count.take(), count.take()), (2, 0));
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
            assert!(number < ALL, "{nanos}");
            let difference = rounded(number).abs_diff(nanos);
            assert!(difference <= nanos / 50, "{nanos} becomes {}", rounded(number));
        }
        assert!((1..100_000_u64).all(|nanos| number_of(nanos) - number_of(nanos - 1) <= 1));
    }
}
