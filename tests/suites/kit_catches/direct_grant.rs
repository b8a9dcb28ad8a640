//! Direct grants of a fair lock, and how the flaws change them.

use std::time::Duration;

use lockcore::{
    FencingToken, LockName, Mode,
    backend::{HoldId, ReleaseOutcome, Wakeup},
};
use lockcore_testkit::Part;
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    queue::Waiting,
    store::{Cell, Flawed, Stored},
};

impl Flawed {
    /// Grants a lock that was released, or whose first waiter has given up, to the first in the
    /// queue.
    pub(super) fn grant_directly(
        &self,
        cell: &mut Cell,
        (outcome, has_left): (ReleaseOutcome, bool),
        token: u64,
        now: Instant,
    ) {
        let is_due = match outcome {
            ReleaseOutcome::Released => !self.has(Flaw::ReleaseGrantsNothing),
            ReleaseOutcome::StillHeld => self.has(Flaw::PartialReleaseGrants),
            _ => has_left && !self.has(Flaw::GivingUpGrantsNothing),
        };
        let replaces = self.has(Flaw::PartialReleaseGrants)
            || has_left && self.has(Flaw::GivingUpGrantsWhatIsHeld);
        let is_free = cell.hold.is_none() || replaces;
        if !is_due || !is_free || !self.declares(Part::DirectGrant) {
            return;
        }
        let Some(at) = self.granted_place(cell, now) else { return };
        let place = cell.places[at].clone();
        if !self.has(Flaw::DirectGrantKeepsThePlace) {
            cell.places.remove(at);
        }
        let former = cell.former.as_ref().map_or(0, |former| former.token);
        // The waiter was woken by the event that freed the lock.
        cell.hold = Some(self.granted(place, token, former, now));
    }

    /// The place whose waiter is granted the lock.
    fn granted_place(&self, cell: &Cell, now: Instant) -> Option<usize> {
        let counts = |place: &Waiting| place.counts(now);
        let at = match self.flaw {
            Flaw::GrantsDirectlyToTheLast => cell.places.iter().rposition(counts),
            _ => cell.places.iter().position(counts),
        };
        let has_number = |at: &usize| cell.places[*at].number.is_some();
        at.filter(|at| has_number(at) || self.has(Flaw::GrantsDirectlyWithoutANumber))
    }

    fn granted(&self, place: Waiting, token: u64, former: u64, now: Instant) -> Stored {
        let left = place.until.saturating_duration_since(now);
        let lease = match self.flaw {
            Flaw::DirectGrantEndsEarly => left / 2,
            Flaw::DirectGrantHasALeaseOfItsOwn => Duration::from_secs(60),
            _ => left,
        };
        Stored {
            id: place.hold,
            former_id: None,
            client: self.client,
            count: if self.has(Flaw::DirectGrantCountsTwo) { 2 } else { 1 },
            has_grown: false,
            token: if self.has(Flaw::DirectGrantHasTheTokenBefore) { former } else { token },
            lease,
            ends: now + lease,
            mode: Mode::Fair,
            granted_request: place.number,
        }
    }

    /// The wake-up of a subscription for `hold`.
    pub(super) fn heard_of(&self, name: &LockName, hold: &HoldId) -> Wakeup {
        let granted = self.with(name, |cell, _| {
            let stored = cell.hold.as_mut().filter(|stored| stored.id == *hold)?;
            let request = stored.granted_request.take()?;
            Some(Wakeup::Granted { token: FencingToken::from(stored.token), request })
        });
        let is_told = !self.has(Flaw::DirectGrantIsNotTold);
        granted.filter(|_| is_told).unwrap_or(Wakeup::Changed)
    }
}
