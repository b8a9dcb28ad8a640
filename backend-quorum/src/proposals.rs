//! [`Proposals`]: the tokens that a client proposes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockcore::FencingToken;

/// Proposals are below this, as [`AcquireRequest::least_token`] demands.
///
/// [`AcquireRequest::least_token`]: lockcore::backend::AcquireRequest::least_token
const MOST: u64 = 1 << 52;

/// How far proposals are ahead of this client's clock, so that a member whose tokens follow its own
/// clock can accept them even if that clock is a little fast. This is far less than `rejoin_after`,
/// because a member that has lost its tokens begins again at its own clock.
const AHEAD: Duration = Duration::from_secs(5);

/// For how long, in microseconds, proposals follow each other rather than the clock. If nobody else
/// has issued a token of a lock, its next one is the last one plus a few, which costs a member on
/// Redis the least. Another client that has the lock meanwhile usually has it for longer, so that the
/// next proposal is greater than its token.
const IN_TURN: u64 = 5_000;

/// The source of proposals: the last token that this client knows of and one, or the time in
/// microseconds five seconds from now if the last token is far behind that. Every member can accept
/// a proposal that is greater than all that it has issued, so that a majority has the token after
/// one round trip.
#[derive(Debug, Default)]
pub(crate) struct Proposals(AtomicU64);

impl Proposals {
    /// The first of `count` tokens. Each call returns later ones.
    pub(crate) fn next(&self, count: u32) -> FencingToken {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from((since + AHEAD).as_micros()).unwrap_or(u64::MAX);
        FencingToken::from(self.next_at(now, count))
    }

    fn next_at(&self, now: u64, count: u32) -> u64 {
        let first_after = |last: u64| match last.saturating_add(1) {
            next if next.saturating_add(IN_TURN) < now => now.min(MOST - 1),
            next => next.min(MOST - 1),
        };
        let last_of = |last| Some(first_after(last).saturating_add(others(count)));
        let (Ok(last) | Err(last)) =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last_of);
        first_after(last)
    }

    /// Notes that a member has issued `count` tokens, beginning with `first`. A token that is too
    /// great to be followed by proposals is ignored, so that it does not affect other names.
    pub(crate) fn learn(&self, first: FencingToken, count: u32) {
        let last = u64::from(last_of(first, count));
        if last < MOST {
            self.0.fetch_max(last, Ordering::Relaxed);
        }
    }
}

/// The last of `count` tokens.
pub(crate) fn last_of(first: FencingToken, count: u32) -> FencingToken {
    FencingToken::from(u64::from(first).saturating_add(others(count)))
}

fn others(count: u32) -> u64 {
    u64::from(count.max(1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_follow_the_clock_and_each_other() {
        let proposals = Proposals::default();
        assert_eq!(proposals.next_at(10_000, 1), 10_000);
        assert_eq!(proposals.next_at(10_000, 5), 10_001);
        assert_eq!(proposals.next_at(10_003, 1), 10_006, "10,005 was given away");
        assert_eq!(proposals.next_at(9_000, 1), 10_007, "the clock was set back");
        assert_eq!(proposals.next_at(10_008 + IN_TURN, 1), 10_008, "soon after the last one");
        assert_eq!(proposals.next_at(10_010 + IN_TURN, 1), 10_010 + IN_TURN);
        proposals.learn(FencingToken::from(20_000), 10);
        assert_eq!(proposals.next_at(15_000, 1), 20_010);
        proposals.learn(FencingToken::from(5), 1);
        proposals.learn(FencingToken::from(MOST), 1);
        assert_eq!(proposals.next_at(90_000, 1), 90_000);
    }
}
