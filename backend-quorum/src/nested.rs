//! Nested acquisitions, which need a request only to lengthen the lease or for their count.

use lockcore::{
    BackendError, FencingToken,
    backend::{AcquireOutcome, AcquireRequest},
};
use tokio::time::Instant;

use crate::{
    acquire::GRACE,
    failure::Failures,
    member::MemberSet,
    quorum::{Inner, Parts},
    release,
    round::Round,
};

/// The answers of the members so far.
#[derive(Debug, Default)]
struct Tally {
    tokens: Vec<FencingToken>,
    gone: MemberSet,
    /// The members where another owner has the lock, out of those where the hold is gone.
    held: usize,
}

impl Tally {
    fn of(round: &Round<AcquireOutcome>) -> Self {
        let mut tally = Self::default();
        for (at, outcome) in round.replies() {
            match outcome.token() {
                Some(token) => tally.tokens.push(token),
                None => {
                    tally.gone = tally.gone.with(MemberSet::of(at));
                    tally.held += usize::from(matches!(outcome, AcquireOutcome::Held { .. }));
                }
            }
        }
        tally.tokens.sort();
        tally
    }

    fn is_decided(&self, parts: Parts) -> bool {
        self.tokens.len() >= parts.majority || parts.blocks(self.gone.len())
    }
}

/// Raises the count of a hold where it exists. A count that only a minority has raised stays
/// raised: the next count replaces it, and the hold ends as a whole.
///
/// The token is the one that the acquisition has determined. The answers agree on it only if all
/// members have issued that one.
pub(crate) async fn grow(
    quorum: &Inner,
    request: &AcquireRequest,
) -> Result<AcquireOutcome, BackendError> {
    let AcquireRequest { name, hold, lease, .. } = request;
    let (parts, start) = (quorum.parts(), Instant::now());
    // A hold that may still be undone at a member cannot grow there reliably.
    let doubtful = quorum.doubts.of(name, hold, *lease);
    // Before the requests, because the hold may be released meanwhile.
    let token = quorum.doubts.token_of(name, hold);
    let mut round = quorum.ask(quorum.all().without(doubtful), |member| {
        let request = request.clone();
        async move { member.acquire(&request).await }
    });
    round.until(|round| Tally::of(round).is_decided(parts)).await;
    round.wait_for_prompt(GRACE.min(*lease / 10)).await;
    let tally = Tally::of(&round);
    if let Some(middle) = tally.tokens.get(parts.majority - 1) {
        round.finish();
        return Ok(AcquireOutcome::Acquired { token: token.unwrap_or(*middle) });
    }
    if !parts.blocks(tally.gone.len()) {
        let mut failures = Failures::of(&round, start.elapsed());
        failures.add_doubtful(doubtful);
        failures.add_lacking(tally.gone);
        return Err(failures.into_error(&quorum.members));
    }
    release::clear(quorum, name, hold, tally.gone);
    if tally.held < parts.majority {
        return Ok(AcquireOutcome::NotHeld);
    }
    let remaining = round.replies().filter_map(|(_, outcome)| match outcome {
        AcquireOutcome::Held { remaining } => Some(*remaining),
        _ => None,
    });
    let longest = remaining.max_by_key(|remaining| remaining.unwrap_or(std::time::Duration::MAX));
    Ok(AcquireOutcome::Held { remaining: longest.flatten() })
}
