//! Renewals.

use std::sync::Arc;

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Backend, RenewOutcome, RenewRequest},
};
use tokio::time::{Instant, timeout};

use crate::{
    acquire::GRACE,
    failure::Failures,
    member::MemberSet,
    quorum::{Inner, Parts},
    release,
    round::Round,
};

/// Renews all `holds` with one request to each member.
///
/// A member that lacks a hold which a majority has is left as it is. Putting the hold there again
/// would be an acquisition that nobody undoes if the hold is released meanwhile, and for a named
/// owner it could take over a later hold.
pub(crate) async fn renew(
    quorum: &Inner,
    holds: &[RenewRequest],
) -> Result<Vec<RenewOutcome>, BackendError> {
    let Some(shortest) = holds.iter().map(|hold| hold.lease).min() else { return Ok(Vec::new()) };
    let (parts, start) = (quorum.parts(), Instant::now());
    let doubtful: Vec<_> =
        holds.iter().map(|hold| quorum.doubts.of(&hold.name, &hold.hold, hold.lease)).collect();
    let requests: Arc<[RenewRequest]> = holds.into();
    let mut round = quorum.ask(quorum.all(), |member| ask(member, requests.clone()));
    let are_decided = |round: &Round<Vec<RenewOutcome>>| {
        let mut holds = doubtful.iter().enumerate();
        holds.all(|(index, doubtful)| Tally::of(round, index, *doubtful).is_decided(parts))
    };
    // Decided holds do not wait long for undecided ones, because lockcore gives up after a third of
    // the shortest lease.
    let _ = timeout(shortest / 6, round.until(are_decided)).await;
    let is_any_decided = |round: &Round<Vec<RenewOutcome>>| {
        let mut holds = doubtful.iter().enumerate();
        holds.any(|(index, doubtful)| Tally::of(round, index, *doubtful).is_decided(parts))
    };
    let _ = timeout(shortest / 8, round.until(is_any_decided)).await;
    round.wait_for_prompt(GRACE.min(shortest / 20)).await;
    let waited = start.elapsed();
    let outcomes = doubtful.iter().enumerate().map(|(index, doubtful)| {
        let tally = Tally::of(&round, index, *doubtful);
        if tally.renewed >= parts.majority {
            return RenewOutcome::Renewed;
        }
        if parts.blocks(tally.gone.len()) {
            let RenewRequest { name, hold, .. } = &holds[index];
            // Where a request was on its way, it may have come after this answer.
            release::clear(quorum, name, hold, tally.gone.without(*doubtful));
            return RenewOutcome::NotHeld;
        }
        let mut failures = Failures::of(&round, waited);
        for (at, outcomes) in round.replies() {
            match outcomes.get(index) {
                Some(RenewOutcome::Failed(error)) => failures.add(at, error.clone()),
                Some(RenewOutcome::NotHeld) => failures.add_lacking(MemberSet::of(at)),
                _ if doubtful.contains(at) => failures.add_doubtful(MemberSet::of(at)),
                _ => {}
            }
        }
        RenewOutcome::Failed(failures.into_error(&quorum.members))
    });
    let outcomes = outcomes.collect();
    round.finish();
    Ok(outcomes)
}

async fn ask(
    member: Arc<dyn Backend>,
    holds: Arc<[RenewRequest]>,
) -> Result<Vec<RenewOutcome>, BackendError> {
    let outcomes = member.renew(&holds).await?;
    if outcomes.len() == holds.len() {
        return Ok(outcomes);
    }
    Err(BackendError::new(BackendErrorKind::Protocol, "renewals were answered in part"))
}

/// The answers of the members for one hold.
#[derive(Debug, Default)]
struct Tally {
    renewed: usize,
    gone: MemberSet,
}

impl Tally {
    fn of(round: &Round<Vec<RenewOutcome>>, index: usize, doubtful: MemberSet) -> Self {
        let mut tally = Self::default();
        for (at, outcomes) in round.replies() {
            match outcomes.get(index) {
                // An old request may end it there.
                Some(RenewOutcome::Renewed) if doubtful.contains(at) => {}
                Some(RenewOutcome::Renewed) => tally.renewed += 1,
                Some(RenewOutcome::NotHeld) => tally.gone = tally.gone.with(MemberSet::of(at)),
                _ => {}
            }
        }
        tally
    }

    fn is_decided(&self, parts: Parts) -> bool {
        self.renewed >= parts.majority || parts.blocks(self.gone.len())
    }
}
