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

/// The source of proposals: the time in microseconds five seconds from now, or the last token that
/// this client knows of and one. Every member can accept a proposal that is greater than all that it has
/// issued, so that a majority has the token after one round trip.
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
        let first_after = |last: u64| last.saturating_add(1).max(now).min(MOST - 1);
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
        assert_eq!(proposals.next_at(1_000, 1), 1_000);
        assert_eq!(proposals.next_at(1_000, 5), 1_001);
        assert_eq!(proposals.next_at(1_003, 1), 1_006, "1,005 was given away");
        assert_eq!(proposals.next_at(900, 1), 1_007, "the clock was set back");
        proposals.learn(FencingToken::from(2_000), 10);
        assert_eq!(proposals.next_at(1_500, 1), 2_010);
        proposals.learn(FencingToken::from(5), 1);
        proposals.learn(FencingToken::from(MOST), 1);
        assert_eq!(proposals.next_at(9_000, 1), 9_000);
    }
}
