//! [`Chance`]: the source of every choice.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The next number of the SplitMix64 sequence: short, fast, and good enough for choices.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A sequence of choices. Clones draw from the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<Source>>);

#[derive(Debug)]
enum Source {
    /// Choices from a seed.
    Seeded(u64),
    /// No randomness: the next due task runs, except at these points, which are counted, where
    /// others run first for this many turns.
    Scheduled { delays: BTreeMap<usize, usize>, points: usize },
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Source::Seeded(seed))))
    }

    pub(crate) fn scheduled(delays: BTreeMap<usize, usize>) -> Self {
        Self(Arc::new(Mutex::new(Source::Scheduled { delays, points: 0 })))
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        match &mut *self.source() {
            Source::Seeded(state) => {
                usize::try_from(next(state) % u64::try_from(bound).unwrap()).unwrap()
            }
            Source::Scheduled { .. } => 0,
        }
    }

    /// The number of turns left to others at this point. The `intensity` goes from 0, none, to 4,
    /// some at each point.
    pub(crate) fn turns(&self, intensity: usize) -> usize {
        if let Source::Scheduled { delays, points } = &mut *self.source() {
            *points += 1;
            return delays.get(&(*points - 1)).copied().unwrap_or(0);
        }
        if self.below(4) < intensity { self.within(1..4) } else { 0 }
    }

    /// The delay of a message, if it has one.
    pub(crate) fn latency(&self, intensity: usize) -> Option<Duration> {
        if let Source::Scheduled { .. } = &*self.source() {
            return None;
        }
        (intensity > 0 && self.once_in(4)).then(|| self.millis(1..8))
    }

    /// The number of points so far at which turns could have been left to others.
    pub(crate) fn points(&self) -> usize {
        match &*self.source() {
            Source::Seeded(_) => 0,
            Source::Scheduled { points, .. } => *points,
        }
    }

    pub(crate) fn within(&self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    /// Returns `true` once in `times`.
    pub(crate) fn once_in(&self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn millis(&self, range: Range<usize>) -> Duration {
        Duration::from_millis(self.within(range) as u64)
    }

    pub(crate) fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}
