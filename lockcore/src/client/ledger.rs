//! [`MetricsLedger`]: the measurements that were not reported to the recorder yet.
//!
//! A recorder takes about a tenth of a microsecond for each figure, an entry here a tenth of that.
//!
//! A flag says that there are entries to take. The thread that makes an entry looks at the flag
//! afterwards; the thread that takes the entries lowers the flag before. Neither may miss the
//! other, so all of these accesses are in one order (`SeqCst`), here and in
//! [`measure`](super::measure). What is made with the first entry is made before a fence, and
//! looked for after one.

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering::SeqCst, fence},
    },
    time::Duration,
};

/// The number of parts of a ledger. Several, so that threads seldom contend.
const PARTS: usize = 8;

/// The number of times at which a part is to be taken soon, so that the recorder does not get all
/// times of a second at once.
const MANY: usize = 8192;

/// Equal times are counted as so many when there are so many, because counting each would cost as
/// much as entering it.
const STEP: u32 = 64;

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
    parts: [LedgerPart<TIMES>; PARTS],
}

/// Aligned, so that processors do not contend for a cache line.
#[repr(align(128))]
struct LedgerPart<const TIMES: usize> {
    times: [LedgerTimes; TIMES],
    /// The number of times since they were taken last, in whole steps.
    steps: AtomicUsize,
    /// How often the gauge rose and fell.
    risen: AtomicI64,
    fallen: AtomicI64,
}

/// Times for a histogram, rounded to within 2 %. Each is counted under the number of its rounded
/// value, so the memory does not grow with the count: 3 KB, and 4 KB more for times above 2.1 s.
#[derive(Default)]
struct LedgerTimes {
    /// Set after an entry, so that others need not be looked through.
    has_entries: AtomicBool,
    short: OnceLock<Box<[AtomicU32; SHORT]>>,
    long: OnceLock<Box<[AtomicU32; ALL - SHORT]>>,
}

/// The counts in `cell`, which begin with zeros.
fn counts<const COUNT: usize>(cell: &OnceLock<Box<[AtomicU32; COUNT]>>) -> &[AtomicU32; COUNT] {
    cell.get().unwrap_or_else(|| {
        let counts = cell.get_or_init(|| Box::new([const { AtomicU32::new(0) }; COUNT]));
        // Before the flags that tell of the first entry are looked at.
        fence(SeqCst);
        counts
    })
}

impl LedgerTimes {
    /// Adds a time, and returns how many equal ones there are.
    fn add(&self, took: Duration) -> u32 {
        let number = number_of(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let count = match number.checked_sub(SHORT) {
            None => &counts(&self.short)[number],
            Some(number) => &counts(&self.long)[number],
        };
        let equal = count.fetch_add(1, SeqCst).wrapping_add(1);
        if !self.has_entries.load(SeqCst) {
            self.has_entries.store(true, SeqCst);
        }
        equal
    }

    /// Takes the rounded times, with their counts.
    fn take(&self) -> impl Iterator<Item = (Duration, usize)> {
        let has_entries = self.has_entries.swap(false, SeqCst);
        fence(SeqCst);
        let short = self.short.get().filter(|_| has_entries).into_iter();
        let long = self.long.get().filter(|_| has_entries).into_iter();
        let short = short.flat_map(|counts| (0..).zip(&**counts));
        let long = long.flat_map(|counts| (SHORT..).zip(&**counts));
        short.chain(long).filter(|(_, count)| count.load(SeqCst) > 0).map(|(number, count)| {
            (Duration::from_nanos(rounded(number)), count.swap(0, SeqCst) as usize)
        })
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
        let (risen, fallen) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { times, steps: AtomicUsize::new(0), risen, fallen }
    }
}

impl<const TIMES: usize> Default for MetricsLedger<TIMES> {
    fn default() -> Self {
        Self { parts: array::from_fn(|_| LedgerPart::default()) }
    }
}

impl<const TIMES: usize> MetricsLedger<TIMES> {
    fn own_part(&self) -> &LedgerPart<TIMES> {
        &self.parts[own_part()]
    }

    /// Enters a time for the histogram `at`.
    pub(super) fn time(&self, at: usize, took: Duration) -> Urgency {
        let part = self.own_part();
        if !part.times[at].add(took).is_multiple_of(STEP) {
            return Urgency::Usual;
        }
        match part.steps.fetch_add(STEP as usize, SeqCst) + STEP as usize {
            MANY => Urgency::Soon,
            _ => Urgency::Usual,
        }
    }

    pub(super) fn raise_gauge(&self) {
        self.own_part().risen.fetch_add(1, SeqCst);
    }

    /// The gauge was raised before, perhaps by another thread.
    pub(super) fn lower_gauge(&self) {
        self.own_part().fallen.fetch_add(1, SeqCst);
    }

    /// Takes the times for the histogram `at`. Whatever happened before one of them is seen by the
    /// next call: take ends first, and no end is reported without its beginning.
    pub(super) fn take_times(&self, at: usize) -> impl Iterator<Item = (Duration, usize)> {
        self.parts.iter().flat_map(move |part| {
            part.steps.store(0, SeqCst);
            part.times[at].take()
        })
    }

    /// Takes the change of the gauge.
    pub(super) fn take_gauge(&self) -> i64 {
        let fallen: i64 = self.parts.iter().map(|part| part.fallen.swap(0, SeqCst)).sum();
        let risen: i64 = self.parts.iter().map(|part| part.risen.swap(0, SeqCst)).sum();
        risen - fallen
    }
}

/// The part in which this thread makes its entries.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, SeqCst) % PARTS;
    }
    OWN.with(|own| *own)
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
        let (ledger, is_over) = (MetricsLedger::<2>::default(), AtomicUsize::new(0));
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
                is_over.store(1, SeqCst);
            });
            let (mut under_way, mut gauge) = (0, 0);
            loop {
                let is_last = is_over.load(SeqCst) == 1;
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
    fn many_times_are_urgent_once() {
        let spread = |number: usize| Duration::from_nanos(7 * (number % 100_000) as u64);
        for times in [|_| Duration::ZERO, spread] as [fn(usize) -> Duration; 2] {
            let ledger = MetricsLedger::<2>::default();
            let enter = |number| ledger.time(number % 2, times(number));
            let urgent = (0..10 * MANY).filter(|number| enter(*number) == Urgency::Soon);
            let urgent: Vec<_> = urgent.collect();
            // Those that do not fill a step are not counted.
            assert!(urgent.len() == 1 && (MANY - 1..5 * MANY).contains(&urgent[0]), "{urgent:?}");
            let taken: [usize; 2] =
                [0, 1].map(|at| ledger.take_times(at).map(|(_, count)| count).sum());
            assert_eq!(taken, [5 * MANY; 2]);
            assert_eq!(enter(0), Urgency::Usual);
        }
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
