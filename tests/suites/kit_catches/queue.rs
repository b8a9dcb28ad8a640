//! The queue of a fair lock, and how the flaws change it.

use std::{collections::VecDeque, time::Duration};

use lockcore::{
    Mode,
    backend::{AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome, ReleaseRequest},
};
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    store::{Cell, Flawed},
};

/// A place in the queue.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) hold: HoldId,
    pub(super) until: Instant,
    /// The number of its last request, if that request may be granted directly.
    pub(super) number: Option<u64>,
    /// For the flaw that remembers places that were given up.
    pub(super) has_left: bool,
}

impl Waiting {
    pub(super) fn counts(&self, now: Instant) -> bool {
        self.until > now && !self.has_left
    }
}

/// Returns `true` if something is kept for those who wait in `cell`.
pub(super) fn keeps_places(flaw: Flaw, cell: &Cell, now: Instant) -> bool {
    cell.places.iter().any(|place| flaw == Flaw::KeepsLapsedPlaces || place.counts(now))
}

impl Flawed {
    /// The refusal of a free lock that is reserved for another waiter.
    pub(super) fn ahead(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        self.forget_lapsed(cell, now);
        let first = cell.places.iter().find(|place| place.counts(now))?;
        let is_held = match &cell.hold {
            Some(stored) => {
                !(self.has(Flaw::QueueKeepsOutTheHolder)
                    && stored.id.owner() == request.hold.owner())
            }
            None => false,
        };
        let grows = request.count > 1 && !self.has(Flaw::GrowthIsHeldUpByTheQueue);
        let overtakes = self.has(Flaw::FirstComesWhoAsksFirst)
            || (self.has(Flaw::TryingOvertakes) && request.queue.is_none());
        if request.mode != Mode::Fair || first.hold == request.hold || is_held || grows || overtakes
        {
            return None;
        }
        let remaining = (!self.has(Flaw::RefusesAFreeLockWithoutATime)).then(|| first.until - now);
        Some(AcquireOutcome::Held { remaining })
    }

    /// The announced end of what a grant replaces: of its place, or of an older hold of its owner.
    pub(super) fn announced(&self, cell: &Cell, request: &AcquireRequest) -> Option<Instant> {
        let older = cell.hold.as_ref().filter(|stored| {
            stored.id.owner() == request.hold.owner()
                && !self.has(Flaw::TakeoverWakesNobody)
                && !self.keeps_from_the_queue(stored.mode, &cell.places)
        });
        let place = cell.places.iter().find(|place| place.hold == request.hold);
        let place = place.filter(|_| !self.has(Flaw::ShortHoldAfterAPlaceWakesNobody));
        older.map(|stored| stored.ends).max(place.map(|place| place.until))
    }

    /// Whether nobody hears of the end of a hold in `mode`: somebody waits in the queue, and the hold
    /// did not.
    pub(super) fn keeps_from_the_queue(&self, mode: Mode, places: &VecDeque<Waiting>) -> bool {
        self.has(Flaw::ExclusiveEndWakesNoQueue) && mode == Mode::Exclusive && !places.is_empty()
    }

    /// For the flaw with one queue for all names: the refusal because of another name's waiter.
    pub(super) fn awaited_elsewhere(&self, request: &AcquireRequest) -> Option<AcquireOutcome> {
        if !self.has(Flaw::OneQueueForAllNames) || request.mode != Mode::Fair {
            return None;
        }
        let store = self.store();
        let elsewhere = store.cells.iter().filter(|(name, _)| **name != self.key(&request.name));
        let mut places = elsewhere.flat_map(|(_, cell)| &cell.places);
        places
            .next()
            .map(|first| AcquireOutcome::Held { remaining: Some(first.until - Instant::now()) })
    }

    /// Gives a refused hold its place, and removes the place of a granted one.
    pub(super) fn queue(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        outcome: &AcquireOutcome,
        now: Instant,
    ) {
        let keeps_its_place = self.has(Flaw::KeepsThePlaceOfWhoEntered);
        if matches!(outcome, AcquireOutcome::Acquired { .. }) && !keeps_its_place {
            cell.places.retain(|place| place.hold != request.hold);
        }
        let for_a_try = self.has(Flaw::TryingTakesAPlace).then_some(Duration::from_secs(600));
        if let (AcquireOutcome::Held { .. }, Mode::Fair, Some(time)) =
            (outcome, request.mode, request.queue.or(for_a_try))
        {
            self.take_place(cell, request, time, now);
        }
    }

    fn take_place(&self, cell: &mut Cell, request: &AcquireRequest, time: Duration, now: Instant) {
        let hold = &request.hold;
        let until = match self.flaw {
            Flaw::PlacesNeverLapse => now + time * 1000,
            Flaw::PlacesLapseEarly => now + time.mul_f64(0.9),
            _ => now + time,
        };
        if self.has(Flaw::AskingAgainGoesToTheEnd) {
            cell.places.retain(|place| place.hold != *hold);
        }
        let former = cell.places.iter().find(|place| place.hold == *hold);
        let first = former.and_then(|place| place.number);
        let number = match self.flaw {
            Flaw::DirectGrantNamesTheFirstRequest => first.or(request.direct_grant),
            Flaw::NumbersAreKept => request.direct_grant.or(first),
            _ => request.direct_grant,
        };
        let place = Waiting { hold: hold.clone(), until, number, has_left: false };
        match cell.places.iter_mut().find(|place| place.hold == *hold) {
            Some(_) if self.has(Flaw::AskingAgainDoesNotKeepThePlace) => {}
            Some(kept) => *kept = place,
            None if self.has(Flaw::LastComeFirstServed) => cell.places.push_front(place),
            None => cell.places.push_back(place),
        }
    }

    fn forget_lapsed(&self, cell: &mut Cell, now: Instant) {
        let remembers = [Flaw::LapsedPlacesComeBack, Flaw::KeepsLapsedPlaces].contains(&self.flaw);
        cell.places.retain(|place| remembers || place.until > now);
    }

    /// Takes a hold out of the queue. `None` if it has no place there.
    pub(super) fn leave(
        &self,
        cell: &mut Cell,
        request: &ReleaseRequest,
        now: Instant,
    ) -> Option<ReleaseOutcome> {
        self.forget_lapsed(cell, now);
        if cell.hold.as_ref().is_some_and(|stored| stored.id == request.hold) {
            return None;
        }
        let place = cell.places.iter_mut().find(|place| place.hold == request.hold)?;
        match self.flaw {
            Flaw::GivingUpKeepsThePlace => {}
            Flaw::GivenUpPlacesComeBack => place.has_left = true,
            Flaw::GivingUpEmptiesTheQueue => cell.places.clear(),
            _ => cell.places.retain(|place| place.hold != request.hold),
        }
        if self.has(Flaw::GivingUpEndsTheHold) {
            cell.hold = None;
        }
        if !self.has(Flaw::GivingUpWakesNobody) {
            self.wake(cell);
        }
        let is_released = self.has(Flaw::GivingUpIsARelease);
        Some(if is_released { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }
}
