//! [`Portrait`]: the relevant parts of a state, so that equivalent states are the same.
//!
//! It is made by the derived `Hash` of everything in the state, so nothing can be forgotten.
//! Numbers that only rise, such as tickets, are drawn by their order among their kind; moments by
//! their distance in ticks. Time passes in whole ticks, so a moment between two ticks comes with
//! the second one.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::rules::TICK;
use crate::time::Moment;

/// Numbers that only rise are recognized by their upper bits, from here on: each kind begins at a
/// multiple.
pub(super) const BITS: u32 = 40;

/// The first numbers of the kinds that the lane does not give out itself.
pub(super) const FIRST_TOKEN: u64 = 4 << BITS;
pub(super) const FIRST_ID: u64 = 5 << BITS;

/// When a world begins, in ticks after the origin of the clock: moments are the greatest numbers.
pub(super) const FIRST_TICK: u32 = 1 << 20;
const FIRST_MOMENT: u64 = 1 << 50;

const TICK_NANOS: i64 = TICK.as_nanos() as i64;

/// Moments that are farther away are all the same: every lease is over, every memory has faded.
const LONG_AGO: i64 = -3;
const FAR: i64 = 20;

/// A word of a portrait.
#[derive(Clone, Copy)]
enum Word {
    Plain(u64),
    /// It may be one of those that only rise, or a moment.
    Number(u64),
}

#[derive(Default)]
pub(super) struct Portrait {
    words: Vec<Word>,
    /// The beginnings of the parts whose order does not matter.
    parts: Vec<usize>,
}

impl Portrait {
    /// Draws things whose order does not matter, last of all.
    pub(super) fn unordered(&mut self, things: &[impl Hash]) {
        for thing in things {
            self.parts.push(self.words.len());
            thing.hash(self);
        }
    }

    /// A number that is the same for all equivalent states.
    pub(super) fn fingerprint(&self, now: Moment) -> u64 {
        let now = now.since(Moment::ORIGIN).as_nanos() as i64 + 1;
        let words = self.normalized(now);
        let mut hasher = FxHasher::default();
        let Some(first) = self.parts.first() else {
            words.hash(&mut hasher);
            return hasher.finish();
        };
        let ends = self.parts.iter().skip(1).copied().chain([words.len()]);
        let mut parts: Vec<&[u64]> =
            self.parts.iter().zip(ends).map(|(start, end)| &words[*start..end]).collect();
        parts.sort_unstable();
        (&words[..*first], parts).hash(&mut hasher);
        hasher.finish()
    }

    /// In loops, not with iterators: this is most of what a search does, and tests are built
    /// without optimizations.
    fn normalized(&self, now: i64) -> Vec<u64> {
        let (mut known, mut ids) = (Vec::with_capacity(16), Vec::with_capacity(8));
        for word in &self.words {
            match *word {
                Word::Number(id) if (FIRST_ID..FIRST_MOMENT).contains(&id) => {
                    if !ids.contains(&id) {
                        ids.push(id);
                    }
                }
                Word::Number(number) if number < FIRST_ID && !known.contains(&number) => {
                    known.push(number);
                }
                Word::Plain(_) | Word::Number(_) => {}
            }
        }
        let mut words = Vec::with_capacity(self.words.len());
        for word in &self.words {
            words.push(match *word {
                Word::Plain(word) => word,
                Word::Number(moment) if moment >= FIRST_MOMENT => ticks_until(moment, now),
                // For ids, it only matters which are equal.
                Word::Number(id) if id >= FIRST_ID => place(id, &ids),
                Word::Number(number) => rank(number, &known),
            });
        }
        words
    }
}

fn place(id: u64, ids: &[u64]) -> u64 {
    ids.iter().position(|other| *other == id).map_or(u64::MAX, |at| at as u64)
}

/// The number of smaller ones of its kind.
fn rank(number: u64, known: &[u64]) -> u64 {
    let mut rank = 0;
    for other in known {
        rank += u64::from(*other < number && *other >> BITS == number >> BITS);
    }
    rank
}

/// The number of ticks until a moment has come, relative to `now`.
fn ticks_until(moment: u64, now: i64) -> u64 {
    let ahead = moment.min(i64::MAX as u64) as i64 - now;
    let ticks = if ahead > 0 { (ahead - 1) / TICK_NANOS + 1 } else { -(-ahead / TICK_NANOS) };
    ticks.clamp(LONG_AGO, FAR) as u64
}

impl Hasher for Portrait {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_ne_bytes(word);
            // A list of numbers comes as bytes.
            let is_number = (1 << BITS..FIRST_MOMENT).contains(&word);
            self.words.push(if is_number { Word::Number(word) } else { Word::Plain(word) });
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.words.push(Word::Number(number));
    }

    fn write_u32(&mut self, word: u32) {
        // That of a `Duration`, behind its seconds.
        if let Some(last) = self.words.last_mut()
            && let Word::Number(seconds) = *last
            && seconds < 1 << BITS
        {
            *last = Word::Plain(seconds);
        }
        self.words.push(Word::Plain(word.into()));
    }

    fn write_u8(&mut self, word: u8) {
        self.words.push(Word::Plain(word.into()));
    }

    fn write_usize(&mut self, word: usize) {
        self.words.push(Word::Plain(word as u64));
    }

    fn write_isize(&mut self, word: isize) {
        self.words.push(Word::Plain(word as u64));
    }

    fn finish(&self) -> u64 {
        unreachable!("a portrait is finished with the time")
    }
}
