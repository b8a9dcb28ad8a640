//! [`Chance`]: where every choice comes from.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The next number of the sequence called SplitMix64: short, fast, and good enough to choose with.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A sequence of choices that a seed decides. Clones draw from the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<u64>>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// A number below `bound`, which is above 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(next(&mut state) % u64::try_from(bound).unwrap()).unwrap()
    }

    pub(crate) fn within(&self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    /// True once in `times`.
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
