//! [`RecentTokens`]: the locks that a connection has recently acquired and released.

use std::{hash::BuildHasher, mem, sync::Arc};

use rustc_hash::{FxBuildHasher, FxHashMap};

/// The next token may follow a last one that is at most this many microseconds away from the
/// server's clock. Tokens follow the clock so that they rise even if the last one is lost, in a
/// failover for example, which takes longer than that.
pub(super) const MAX_AWAY: u64 = 50_000;

/// The locks that were recently acquired through a connection, and their last tokens.
///
/// A lock that was released through the same connection is most likely free. The next token of such
/// a lock need not be found by a script: see [`restore`](crate::restore). A connection to another
/// server, which may have lost the last tokens, knows of none.
#[derive(Debug, Default)]
pub(super) struct RecentTokens {
    young: FxHashMap<Arc<str>, RecentToken>,
    /// The locks that were acquired between one and two times [`MAX_AWAY`] before the last one.
    old: FxHashMap<Arc<str>, RecentToken>,
    /// The token that began `young`.
    begin: u64,
}

#[derive(Clone, Copy, Debug)]
struct RecentToken {
    last: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Held by an owner with this hash.
    Held(u64),
    Free,
    /// Another client had taken the lock, so it may well do that again.
    Refused,
    /// Acquired after a refusal. This hold does not count.
    Regained,
}

impl RecentTokens {
    /// Notes that `lock` was acquired by `owner`, and the last token of the hold.
    pub(super) fn acquired(&mut self, lock: &Arc<str>, owner: &str, last: u64) {
        if last.abs_diff(self.begin) > MAX_AWAY {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.begin = last;
        }
        let before = self.young.get(lock).or_else(|| self.old.get(lock));
        let state = match before.map(|token| token.state) {
            Some(State::Refused) => State::Regained,
            _ => State::Held(hash(owner)),
        };
        self.young.insert(lock.clone(), RecentToken { last, state });
    }

    /// Notes that the server has released the hold of `owner`.
    pub(super) fn released(&mut self, lock: &str, owner: &str) {
        let Self { young, old, .. } = self;
        if let Some(token) = young.get_mut(lock).or_else(|| old.get_mut(lock))
            && token.state == State::Held(hash(owner))
        {
            token.state = State::Free;
        }
    }

    /// Notes that `lock` was not free. It is not known until it has been acquired twice.
    pub(super) fn refused(&mut self, lock: &Arc<str>) {
        self.young.insert(lock.clone(), RecentToken { last: 0, state: State::Refused });
    }

    /// Forgets `lock`, because it may be acquired by a request that is not noted.
    pub(super) fn forget(&mut self, lock: &str) {
        self.young.remove(lock);
        self.old.remove(lock);
    }

    /// Takes the last token of `lock`, if it was released. The lock is not known any more, until it
    /// is acquired.
    pub(super) fn take_free(&mut self, lock: &str) -> Option<u64> {
        for generation in [&mut self.young, &mut self.old] {
            if let Some(RecentToken { state: State::Free, last }) = generation.get(lock).copied() {
                generation.remove(lock);
                return Some(last);
            }
        }
        None
    }
}

fn hash(owner: &str) -> u64 {
    FxBuildHasher.hash_one(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(number: u64) -> Arc<str> {
        format!("lock:{number}").into()
    }

    #[test]
    fn a_lock_is_known_from_its_release_until_it_is_taken() {
        let mut recent = RecentTokens::default();
        recent.acquired(&lock(1), "a", 1_000_000);
        assert_eq!(recent.take_free("lock:1"), None, "it is held");
        recent.released("lock:1", "b");
        assert_eq!(recent.take_free("lock:1"), None, "it is held by another owner");
        recent.released("lock:1", "a");
        recent.released("lock:2", "a");
        assert_eq!(recent.take_free("lock:2"), None, "it was never acquired");
        assert_eq!(recent.take_free("lock:1"), Some(1_000_000));
        assert_eq!(recent.take_free("lock:1"), None);
        recent.released("lock:1", "a");
        assert_eq!(recent.take_free("lock:1"), None);
        recent.acquired(&lock(1), "a", 1_000_001);
        recent.released("lock:1", "a");
        recent.forget("lock:1");
        assert_eq!(recent.take_free("lock:1"), None);
    }

    #[test]
    fn a_lock_that_another_client_took_is_known_after_two_acquisitions() {
        let mut recent = RecentTokens::default();
        recent.refused(&lock(1));
        for (owner, expected) in [("a", None), ("b", Some(1_000_000))] {
            recent.acquired(&lock(1), owner, 1_000_000);
            recent.released("lock:1", owner);
            assert_eq!(recent.take_free("lock:1"), expected);
        }
    }

    #[test]
    fn only_the_locks_of_the_last_moments_are_kept() {
        const STEP: u64 = 100;
        let mut recent = RecentTokens::default();
        for number in 0..10_000 {
            recent.acquired(&lock(number), "a", 1_000_000 + STEP * number);
            recent.released(&lock(number), "a");
            let known = recent.young.len() + recent.old.len();
            assert!(known <= 1_004, "{known}");
            // All tokens that may be asked for are among them.
            let first = number.saturating_sub(MAX_AWAY / STEP);
            let [young, old] = [&recent.young, &recent.old];
            assert!(young.contains_key(&lock(first)) || old.contains_key(&lock(first)));
        }
        // The server's clock was set back.
        recent.acquired(&lock(0), "a", 5);
        recent.released("lock:0", "a");
        assert_eq!(recent.take_free("lock:0"), Some(5));
    }
}
