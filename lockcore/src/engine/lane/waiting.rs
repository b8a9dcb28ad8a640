//! The events of waiters.

use std::time::Duration;

use super::{
    super::{
        hold::{Growth, HoldNumber, Phase, ReleaseNumber},
        queue::{Asker, Outage, Ticket, Waiter},
    },
    Effects, Lane, Nesting, Step,
};
use crate::{
    LockError, Mode, Owner,
    time::{ANSWER, Lease, Moment},
};

impl<W, H> Lane<W, H> {
    /// An acquisition arrives, and gets a place among the waiters, unless its owner is inside
    /// already. An acquisition that does not want to wait gets a place only if it may be granted at
    /// once.
    pub(crate) fn arrive(
        &mut self,
        asker: Asker,
        lease: Lease,
        slot: W,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Result<Ticket, Step> {
        if !asker.has_fresh_owner
            && let Some(inside) = self.enter(&asker.owner, asker.mode, lease, now, fx)
        {
            return Err(Step::Inside(inside));
        }
        if !asker.is_patient && self.turns_away(asker.mode, now) {
            return Err(Step::Refused);
        }
        if asker.mode == Mode::Fair && !self.has_heir(now) {
            // First, so that this release is among those that began before. Nothing is kept while
            // anybody waits, so a later step finds no kept hold.
            self.unpark(now, fx);
        }
        let mut waiter = Waiter::new(asker, slot);
        if !waiter.asker.is_patient {
            waiter.rare_mut().refusals_before = self.refusals;
        }
        if let Some(last) = self.releasing.last()
            && !matches!(waiter.asker.mode, Mode::Exclusive | Mode::Write)
        {
            waiter.rare_mut().last_release_before = Some(*last);
        }
        Ok(self.queue.push(waiter))
    }

    /// Returns `true` if an acquisition would have to wait.
    fn turns_away(&self, mode: Mode, now: Moment) -> bool {
        let mut live = self.holds.iter().filter(|hold| hold.is_live(now));
        if mode == Mode::Fair {
            return self.queue.has_fair() || live.next().is_some();
        }
        if !mode.is_shared() {
            return !self.queue.is_line_empty() || live.next().is_some();
        }
        // The waiters before it may all get in.
        let is_stuck = !self.queue.is_line_empty() && self.refusal.stands(now).is_some();
        is_stuck || live.any(|hold| hold.mode == Mode::Write)
    }

    /// Lets in an owner that is inside already, if that needs no request.
    pub(crate) fn enter(
        &mut self,
        owner: &Owner,
        mode: Mode,
        lease: Lease,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<Nesting> {
        let held = |lane: &Self, is_held: fn(Mode) -> bool| {
            lane.holds.iter().position(|hold| {
                &hold.owner == owner && is_held(hold.mode) && hold.state.phase() != Phase::Parked
            })
        };
        let (same, other) = match mode {
            Mode::Exclusive | Mode::Fair => (held(self, |_| true), None),
            Mode::Read => (held(self, |m| m == Mode::Read), held(self, |m| m == Mode::Write)),
            Mode::Write => (held(self, |m| m == Mode::Write), held(self, |m| m == Mode::Read)),
            // Each acquisition takes permits of its own.
            Mode::Permit { .. } => (None, None),
        };
        let at = same.or(other)?;
        self.settle(at, now, fx);
        let hold = &mut self.holds[at];
        let number = hold.number;
        if same.is_none() {
            return Some(match hold.state.phase() {
                Phase::Lost(reason) => Nesting::Lost(reason),
                _ if mode == Mode::Write => Nesting::Upgrade,
                _ => Nesting::Within(number),
            });
        }
        Some(match hold.state.enter(lease, now) {
            Growth::Enough => Nesting::Entered(number),
            Growth::Lost(reason) => Nesting::Lost(reason),
            Growth::TooDeep => Nesting::TooDeep,
            Growth::Ask { .. } | Growth::Ended => Nesting::Grow(number),
        })
    }

    /// Decides what a waiter does next. The order of the questions is the protocol.
    ///
    /// `patience` is how long the waiters before it tolerate a backend that does not answer. An
    /// outage that they have waited out need not be waited out again by each of them.
    pub(crate) fn step(
        &mut self,
        ticket: Ticket,
        lease: Lease,
        patience: Duration,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Step {
        let Some(waiter) = self.queue.get(ticket) else { return Step::Refused };
        let is_head = self.queue.is_head(ticket);
        if !waiter.asker.has_fresh_owner {
            let Asker { owner, mode, .. } = waiter.asker.clone();
            if let Some(inside) = self.enter(&owner, mode, lease, now, fx) {
                self.leave(ticket, now, fx);
                return Step::Inside(inside);
            }
        }
        let Some(waiter) = self.queue.get(ticket) else { return Step::Refused };
        if let Some(until) = waiter.pause_until().filter(|until| now < *until)
            && !(is_head && self.has_heir(now))
        {
            return Step::Wait { until: Some(until), listens: false };
        }
        let is_fair = waiter.asker.mode == Mode::Fair;
        if !is_head && !is_fair && !self.joins_readers(ticket, now) {
            return self.wait_behind(ticket, now, fx);
        }
        if is_head && let Some(step) = self.wait_for_own(ticket, now, fx) {
            return step;
        }
        if (is_head || is_fair)
            && let Some(until) = self.expected_release(ticket, now)
        {
            return Step::Wait { until: Some(until), listens: false };
        }
        if let Some(until) = self.refused_until(ticket, now) {
            return Step::Wait { until: Some(until), listens: true };
        }
        if let Some(error) = self.hopeless(ticket, patience) {
            self.leave(ticket, now, fx);
            return Step::Failed(error);
        }
        self.ask(ticket, now, fx)
    }

    /// A waiter behind the head waits for its turn.
    fn wait_behind(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<H>) -> Step {
        let error = self.outage(ticket);
        let (head, refusals) = (self.queue.head().map(|(head, _)| head), self.refusals);
        let Some(waiter) = self.queue.get_mut(ticket) else { return Step::Refused };
        if waiter.asker.is_patient {
            return Step::Wait { until: None, listens: false };
        }
        let rare = waiter.rare_mut();
        let until = match (head, rare.head_until) {
            (Some(head), Some((same, until))) if head == same => until,
            (Some(head), _) => {
                let until = now.after(ANSWER);
                rare.head_until = Some((head, until));
                until
            }
            (None, _) => now,
        };
        let is_refused = rare.refusals_before < refusals;
        // A head that does not move on is not polled by its task.
        if error.is_none() && !is_refused && now < until {
            return Step::Wait { until: Some(until), listens: false };
        }
        self.leave(ticket, now, fx);
        error.map_or(Step::Refused, |error| Step::Failed(Box::new(error)))
    }

    /// The wait of the head within its own client: for a hold that is or may be handed to it, or
    /// for the end of the turn of other clients.
    fn wait_for_own(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<H>) -> Option<Step> {
        if self.parked().is_some() {
            if self.has_heir(now) {
                return Some(Step::TakeOver);
            }
            self.unpark(now, fx);
        }
        let is_patient = self.queue.get(ticket).is_some_and(|waiter| waiter.asker.is_patient);
        if !is_patient {
            return None;
        }
        if self.holds.iter().any(|hold| hold.state.may_be_handed_over(now)) {
            // The head is woken when the hold is parked, given back or lost, and when its window
            // closes.
            return Some(Step::Wait { until: None, listens: false });
        }
        let until = self.turns.left_until(now)?;
        Some(Step::Wait { until: Some(until), listens: false })
    }

    /// The moment until which a waiter waits for a release of this client that is under way: its
    /// request would only find the hold that is being given back.
    ///
    /// In shared modes there may always be such a release, and a fair waiter must not lose its
    /// place in the order. So for these, only releases count that began before they came; for a
    /// fair waiter, only if the release may be that of its own hold, or if the waiter will not ask
    /// twice.
    fn expected_release(&mut self, ticket: Ticket, now: Moment) -> Option<Moment> {
        let first = self.releasing.first().copied();
        let waiter = self.queue.get_mut(ticket)?;
        let Asker { mode, is_patient, has_fresh_owner, .. } = waiter.asker;
        let last_before = waiter.rare().and_then(|rare| rare.last_release_before);
        let counts = |first: &ReleaseNumber| match mode {
            Mode::Fair if is_patient && has_fresh_owner => false,
            Mode::Exclusive | Mode::Write => true,
            _ => Some(*first) <= last_before,
        };
        if !first.as_ref().is_some_and(counts) {
            waiter.expect_no_release();
            return None;
        }
        let rare = waiter.rare_mut();
        match rare.release_until {
            _ if rare.ignores_releases => None,
            Some(until) if now < until => Some(until),
            Some(_) => {
                rare.ignores_releases = true;
                None
            }
            None => {
                let until = now.after(ANSWER);
                (rare.release_until, rare.head_until) = (Some(until), None);
                Some(until)
            }
        }
    }

    /// The moment until which a patient waiter relies on the last refusal.
    fn refused_until(&self, ticket: Ticket, now: Moment) -> Option<Moment> {
        let waiter = self.queue.get(ticket).filter(|waiter| waiter.asker.is_patient)?;
        match waiter.asker.mode {
            Mode::Fair => waiter.rare().and_then(|rare| rare.refusal.stands(now)),
            _ => self.refusal.stands(now),
        }
    }

    /// The error that the waiters before this one tolerated for `patience` while it waited.
    fn hopeless(&self, ticket: Ticket, patience: Duration) -> Option<Box<LockError>> {
        let outage = self.outage_of(ticket)?;
        let is_borne = outage.last.since(outage.since) >= patience;
        is_borne.then(|| Box::new(outage.error.clone()))
    }

    /// The error for a waiter whose time is up while the backend gives no answer.
    pub(crate) fn outage(&self, ticket: Ticket) -> Option<LockError> {
        self.outage_of(ticket).map(|outage| outage.error.clone())
    }

    /// The outage that a waiter has seen.
    fn outage_of(&self, ticket: Ticket) -> Option<&Outage> {
        let fails_alone = self.queue.get(ticket)?.asker.fails_alone;
        let seen = self.outage.as_deref().filter(|outage| ticket < outage.later);
        seen.filter(|outage| outage.is_total || !fails_alone)
    }

    /// Returns `true` if a reader may ask because a reader of this client is inside: the waiting
    /// readers follow it all at once.
    fn joins_readers(&self, ticket: Ticket, now: Moment) -> bool {
        self.readers_through.is_some_and(|through| ticket <= through)
            && self.refusal.stands(now).is_none()
            && self.has_live_reader()
    }

    pub(super) fn has_live_reader(&self) -> bool {
        self.holds.iter().any(|hold| hold.mode == Mode::Read && hold.state.phase() == Phase::Live)
    }

    /// The backend reported to a waiter that the lock may be free. `jitter` is in `[0, 1)`.
    pub(crate) fn heard(&mut self, ticket: Ticket, jitter: f64, now: Moment, fx: &mut Effects<H>) {
        let Some(waiter) = self.queue.get_mut(ticket) else { return };
        if waiter.asker.mode == Mode::Fair {
            waiter.rare_mut().refusal.outdate();
            return;
        }
        if waiter.asker.takes_over {
            self.turns.woken(now, jitter);
        }
        self.news(fx);
    }

    /// A subscription is in effect, or failed and its pause is over. Earlier events were not heard,
    /// so an attempt is due.
    pub(crate) fn listening(&mut self, ticket: Ticket, fx: &mut Effects<H>) {
        match self.queue.get_mut(ticket) {
            Some(waiter) if waiter.asker.mode == Mode::Fair => {
                waiter.rare_mut().refusal.outdate();
            }
            Some(_) => self.news(fx),
            None => {}
        }
    }

    /// A waiter leaves.
    pub(crate) fn leave(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<H>) {
        self.asked(ticket, fx);
        let Some((waiter, was_head)) = self.queue.remove(ticket) else { return };
        if was_head {
            let next = self.queue.head();
            if next.is_some_and(|(_, next)| next.asker.may_enter_after(&waiter.asker)) {
                self.refusal.believe_until(None);
            }
            self.wake_head(fx);
            self.unpark_if_unclaimed(now, fx);
        }
    }

    /// Returns `true` if the head can take over the parked hold.
    pub(super) fn has_heir(&self, now: Moment) -> bool {
        let takes_over = self.queue.head().is_some_and(|(_, head)| head.asker.takes_over);
        takes_over && self.parked().is_some_and(|at| self.holds[at].state.suits_handover(now))
    }

    /// Replaces a waiter with the hold that it got, and wakes the waiters that this concerns.
    pub(super) fn enter_queue_place(
        &mut self,
        ticket: Ticket,
        hold: HoldNumber,
        fx: &mut Effects<H>,
    ) {
        let Some((waiter, was_head)) = self.queue.remove(ticket) else { return };
        if !waiter.asker.has_fresh_owner {
            self.wake_owner(&waiter.asker.owner, fx);
        }
        // The next waiter may rest until the hold is parked for it.
        let is_handed_over =
            self.hold(hold).is_some_and(|hold| hold.state.handover_until().is_some());
        let rests =
            is_handed_over && self.queue.head().is_none_or(|(_, next)| next.asker.is_patient);
        if was_head && !rests {
            self.wake_head(fx);
        }
    }
}
