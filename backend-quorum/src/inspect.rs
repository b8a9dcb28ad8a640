//! Inspections: the state that a majority has stored.

use std::time::Duration;

use lockcore::{BackendError, Holder, LockName, LockState};
use tokio::time::Instant;

use crate::{acquire::GRACE, failure::Failures, quorum::Inner};

pub(crate) async fn inspect(quorum: &Inner, name: &LockName) -> Result<LockState, BackendError> {
    let (parts, start) = (quorum.parts(), Instant::now());
    let mut round = quorum.ask(quorum.all(), |member| {
        let name = name.clone();
        async move { member.inspect(&name).await }
    });
    round.until(|round| round.replies().count() >= parts.majority).await;
    round.wait_for_prompt(GRACE).await;
    let states: Vec<_> = round.replies().map(|(_, state)| state).collect();
    if states.len() < parts.majority {
        return Err(Failures::of(&round, start.elapsed()).into_error(&quorum.members));
    }
    let silent = parts.members - states.len();
    let holder = claims(&states)
        .into_iter()
        .filter(|claim| claim.members() + silent >= parts.majority)
        .max_by_key(|claim| (claim.members(), claim.remaining(parts.majority)));
    Ok(match holder {
        Some(claim) => LockState::held(vec![claim.holder()], claim.remaining(parts.majority)),
        None => LockState::free(),
    })
}

/// The holds of one owner at the members that have answered.
struct Claim<'a> {
    holders: Vec<&'a Holder>,
    /// The remaining leases of these holds, the longest first.
    remaining: Vec<Option<Duration>>,
}

/// The owners that are stored anywhere.
fn claims<'a>(states: &[&'a LockState]) -> Vec<Claim<'a>> {
    let mut claims: Vec<Claim<'a>> = Vec::new();
    for state in states {
        for holder in state.holders() {
            let is_same = |claim: &&mut Claim<'_>| claim.holders[0].owner() == holder.owner();
            match claims.iter_mut().find(is_same) {
                Some(claim) => {
                    claim.holders.push(holder);
                    claim.remaining.push(state.remaining());
                }
                None => {
                    let (holders, remaining) = (vec![holder], vec![state.remaining()]);
                    claims.push(Claim { holders, remaining });
                }
            }
        }
    }
    for claim in &mut claims {
        claim.remaining.sort_by_key(|left| std::cmp::Reverse(left.unwrap_or(Duration::MAX)));
    }
    claims
}

impl Claim<'_> {
    fn members(&self) -> usize {
        self.holders.len()
    }

    /// How long a majority has the hold, as far as that is known.
    fn remaining(&self, majority: usize) -> Option<Duration> {
        self.remaining.get(majority - 1).or(self.remaining.last()).copied().flatten()
    }

    /// The holder with the count that most have stored.
    fn holder(&self) -> Holder {
        let times = |count| self.holders.iter().filter(|other| other.hold_count() == count).count();
        let by_votes = |holder: &&&Holder| (times(holder.hold_count()), holder.hold_count());
        let holder = self.holders.iter().max_by_key(by_votes).unwrap_or(&self.holders[0]);
        (*holder).clone()
    }
}
