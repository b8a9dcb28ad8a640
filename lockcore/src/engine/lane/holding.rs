//! The events of holds.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    super::hold::{Growth, HoldNumber, HoldState, Phase, ReleaseNumber},
    Effect, Effects, Hold, Keeping, Lane, Parting, Release,
};
use crate::{
    LossReason, Mode,
    time::{Lease, Moment},
};

impl<W, H> Lane<W, H> {
    /// A nested acquisition checks again whether the hold needs more lease, before it asks.
    pub(crate) fn grow(
        &mut self,
        number: HoldNumber,
        lease: Lease,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Growth {
        self.with_settled(number, now, fx, |state| match state.enter(lease, now) {
            Growth::Ask { count, lease } => {
                let count = state.stored().max(count);
                state.set_stored(count);
                state.asking(lease, now);
                Growth::Ask { count, lease }
            }
            growth => growth,
        })
    }

    /// The backend granted the growth that was asked for at `sent`.
    pub(crate) fn grown(
        &mut self,
        number: HoldNumber,
        lease: Lease,
        sent: Moment,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Growth {
        // Before it is settled: the lease was extended at the backend, and a deadline that passed
        // meanwhile is a loss only if nobody noticed it in time.
        if let Some(hold) = self.hold_mut(number) {
            hold.state.extended(lease.duration(), sent);
        }
        self.with_settled(number, now, fx, |state| state.grown(lease, sent))
    }

    /// A guard wants the lease to last for at least `lease` from now.
    pub(crate) fn extend(
        &mut self,
        number: HoldNumber,
        lease: Duration,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Growth {
        if self.hold(number).is_some_and(|hold| hold.state.handover_until().is_some()) {
            // The head stops resting.
            self.wake_head(fx);
        }
        self.with_settled(number, now, fx, |state| state.extend(lease, now))
    }

    /// The backend granted the extension that was asked for at `sent`.
    pub(crate) fn extended(
        &mut self,
        number: HoldNumber,
        lease: Duration,
        sent: Moment,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Growth {
        if let Some(hold) = self.hold_mut(number) {
            hold.state.extended(lease, sent);
            hold.state.promise(lease, sent);
        }
        self.with_settled(number, now, fx, |state| match state.phase() {
            Phase::Live => Growth::Enough,
            Phase::Lost(reason) => Growth::Lost(reason),
            Phase::Parked | Phase::Closed => Growth::Ended,
        })
    }

    /// Applies a change to a hold after settling it. Its due time may change.
    fn with_settled(
        &mut self,
        number: HoldNumber,
        now: Moment,
        fx: &mut Effects<H>,
        work: impl FnOnce(&mut HoldState) -> Growth,
    ) -> Growth {
        let Some(at) = self.holds.iter().position(|hold| hold.number == number) else {
            return Growth::Ended;
        };
        self.settle(at, now, fx);
        let state = &mut self.holds[at].state;
        let growth = work(state);
        fx.due_at(state.next_due());
        growth
    }

    /// The phase of a hold. `None` if it is over and has no guards.
    pub(crate) fn phase(
        &mut self,
        number: HoldNumber,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<Phase> {
        let at = self.holds.iter().position(|hold| hold.number == number)?;
        self.settle(at, now, fx);
        Some(self.holds[at].state.phase())
    }

    /// A guard goes. `knows_token` is `true` if the guard was asked for the token.
    pub(crate) fn depart(
        &mut self,
        number: HoldNumber,
        lease: Lease,
        knows_token: bool,
        keeping: Keeping,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Parting<H> {
        let Some(at) = self.holds.iter().position(|hold| hold.number == number) else {
            return Parting::Closed;
        };
        self.settle(at, now, fx);
        self.holds[at].is_token_known |= knows_token;
        let state = &mut self.holds[at].state;
        state.leave(lease);
        let stored = state.stored();
        match (state.phase(), state.count()) {
            (Phase::Closed, guards) => {
                if guards == 0 {
                    self.remove(at, fx);
                }
                Parting::Closed
            }
            (Phase::Live | Phase::Parked, 0) => {
                if let Some(parked) = self.park(at, keeping, now, fx) {
                    return parked;
                }
                if self.holds[at].state.handover_until().is_some() {
                    // The head stops resting.
                    self.wake_head(fx);
                }
                Parting::Release(self.release_at(at, now))
            }
            (Phase::Live | Phase::Parked, guards) => Parting::Nested { store: stored > guards },
            (Phase::Lost(reason @ LossReason::LeaseEnded), 0) => {
                // Only this client's clock says so: the backend may still have the hold.
                Parting::Lost { reason, release: Some(self.release_at(at, now)) }
            }
            (Phase::Lost(reason), guards) => {
                if guards == 0 {
                    self.remove(at, fx);
                    self.news(fx);
                }
                Parting::Lost { reason, release: None }
            }
        }
    }

    /// Parks a hold that is over, if the head may take it over, or if it is kept for a while.
    fn park(
        &mut self,
        at: usize,
        keeping: Keeping,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<Parting<H>> {
        let Hold { state, is_wanted, .. } = &mut self.holds[at];
        if keeping == Keeping::Never || !state.suits_handover(now) {
            return None;
        }
        let (kept_until, parting) = match self.queue.head() {
            Some((_, head)) => (None, head.asker.takes_over.then_some(Parting::HandedOver)?),
            None => {
                let is_kept = keeping == Keeping::ForAWhile && self.queue.is_empty() && !*is_wanted;
                let linger = self.hand_over.filter(|_| is_kept)?.linger;
                let until = now.after(linger).min(state.handover_until()?);
                (Some(until), (!linger.is_zero()).then_some(Parting::Kept)?)
            }
        };
        state.park(kept_until);
        fx.due_at(state.next_due());
        self.wake_head(fx);
        Some(parting)
    }

    /// Another client wants the lock: the parked hold is given back unless the head takes it over,
    /// and a live one is not kept when its last guard goes.
    pub(crate) fn wanted(&mut self, now: Moment, fx: &mut Effects<H>) {
        for hold in &mut self.holds {
            hold.is_wanted = true;
            hold.state.forgo();
        }
        self.unpark_if_unclaimed(now, fx);
    }

    /// Gives back the parked hold, unless the head takes it over or it is kept.
    pub(super) fn unpark_if_unclaimed(&mut self, now: Moment, fx: &mut Effects<H>) {
        let is_kept = self.parked().is_some_and(|at| self.holds[at].state.is_kept(now));
        if !is_kept && !self.has_heir(now) {
            self.unpark(now, fx);
        }
    }

    /// Gives back the parked hold, because nobody takes it over.
    pub(super) fn unpark(&mut self, now: Moment, fx: &mut Effects<H>) {
        if let Some(at) = self.parked() {
            fx.rare.push(Effect::Release(self.release_at(at, now)));
        }
    }

    /// Takes a hold out, to be given back.
    fn release_at(&mut self, at: usize, now: Moment) -> Release<H> {
        let Hold { mode, state, facts, is_wanted, .. } = self.holds.remove(at);
        match is_wanted {
            true => self.turns.yielded(now),
            false => self.turns.released(self.hand_over, !self.queue.is_line_empty(), now),
        }
        Release { number: self.begin_release(), mode, until: state.asked(), facts }
    }

    /// A release is on its way. Until it is answered, waiters that would only find the hold that is
    /// being given back do not ask.
    pub(crate) fn begin_release(&mut self) -> ReleaseNumber {
        let number = ReleaseNumber(self.number());
        self.releasing.push(number);
        number
    }

    /// A release was answered, or failed: the waiters that wait for it go on.
    pub(crate) fn end_release(&mut self, number: ReleaseNumber, fx: &mut Effects<H>) {
        let Some(at) = self.releasing.iter().position(|other| *other == number) else { return };
        self.releasing.remove(at);
        self.news(fx);
        if self.queue.has_fair() {
            let expect = self.queue.fair().filter(|(_, waiter)| waiter.expects_release());
            fx.wake.extend(expect.map(|(ticket, _)| ticket));
        }
    }

    /// Handles everything that is due. Renewals that are due by `until` are included, so that they
    /// are made together from then on. Returns the holds to renew, each with its lease.
    pub(crate) fn due(
        &mut self,
        until: Moment,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> SmallVec<[(HoldNumber, Duration); 1]> {
        let mut renewals = SmallVec::new();
        for at in 0..self.holds.len() {
            self.settle(at, now, fx);
            let Hold { number, state, .. } = &mut self.holds[at];
            if let Some(lease) = state.renewal_due(now, until) {
                state.renewing(lease, now);
                renewals.push((*number, lease));
            } else if state.handover_until().is_some_and(|window| window <= now) {
                // The head stops resting and looks for itself.
                state.close_window();
                self.wake_head(fx);
            }
        }
        self.unpark_if_unclaimed(now, fx);
        let unpolled = self.abandon_unpolled(now, fx);
        let holds = self.holds.iter().filter_map(|hold| hold.state.next_due());
        fx.due = holds.chain(unpolled).min();
        renewals
    }

    /// A renewal that was sent at `sent` succeeded.
    pub(crate) fn renewed(
        &mut self,
        number: HoldNumber,
        lease: Duration,
        sent: Moment,
        fx: &mut Effects<H>,
    ) {
        if let Some(hold) = self.hold_mut(number) {
            hold.state.renewed(lease, sent);
            fx.due_at(hold.state.next_due());
        }
    }

    /// The renewal that was sent at `sent` failed. It is tried again until the deadline. Returns
    /// the deadline, if the hold is live.
    pub(crate) fn renewal_failed(
        &mut self,
        number: HoldNumber,
        lease: Duration,
        sent: Moment,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<Moment> {
        let at = self.holds.iter().position(|hold| hold.number == number)?;
        self.settle(at, now, fx);
        let state = &mut self.holds[at].state;
        state.renewal_failed(lease, sent, now);
        fx.due_at(state.next_due());
        (state.phase() == Phase::Live).then(|| state.deadline())
    }

    /// The backend does not know this hold any more. If it has forgotten the grant, in a failover,
    /// a fair hold is back in its place in the queue, and a write hold among the writers that keep
    /// new readers out. There, it would be granted the lock again, or be waited for, although it
    /// asks no more.
    pub(crate) fn gone(&mut self, number: HoldNumber, fx: &mut Effects<H>) {
        let Some(hold) = self.hold_mut(number) else { return };
        let mode = hold.mode;
        if hold.state.end(Phase::Lost(LossReason::Gone)) {
            fx.rare.push(Effect::Lost(number, LossReason::Gone));
            if matches!(mode, Mode::Fair | Mode::Write) {
                fx.rare.push(Effect::UndoLost(number));
            }
            self.news(fx);
        }
    }

    /// The backend does not know the parked hold any more.
    pub(crate) fn forget_parked(&mut self, number: HoldNumber, fx: &mut Effects<H>) {
        let parked = self.parked().filter(|at| self.holds[*at].number == number);
        if let Some(at) = parked {
            self.remove(at, fx);
            self.news(fx);
        }
    }

    /// Takes out a hold that needs no release.
    fn remove(&mut self, at: usize, fx: &mut Effects<H>) {
        fx.rare.push(Effect::Over(self.holds.remove(at).facts));
    }

    /// The client is closed. Returns the holds to give back: every live hold, whose guards find it
    /// closed, the parked one, and those that are lost only by this client's clock.
    pub(crate) fn close(&mut self, now: Moment, fx: &mut Effects<H>) -> SmallVec<[Release<H>; 1]>
    where
        H: Clone,
    {
        let mut releases = SmallVec::new();
        for at in 0..self.holds.len() {
            self.settle(at, now, fx);
            let state = &mut self.holds[at].state;
            let was_live = state.end(Phase::Closed);
            let may_be_held =
                matches!(state.phase(), Phase::Parked | Phase::Lost(LossReason::LeaseEnded));
            if was_live || may_be_held {
                let number = self.begin_release();
                let Hold { mode, state, facts, .. } = &self.holds[at];
                releases.push(Release {
                    number,
                    mode: *mode,
                    until: state.asked(),
                    facts: facts.clone(),
                });
            }
        }
        if let Some(parked) = self.parked() {
            self.remove(parked, fx);
        }
        // The acquisitions that asked may never be polled again.
        let pending = std::mem::take(&mut self.pending);
        fx.rare.extend(pending.into_iter().map(|(ticket, _)| Effect::Undo(ticket)));
        fx.wake.extend(self.queue.all().map(|(ticket, _)| ticket));
        releases
    }

    /// The count to report to the backend, if it was told a greater one.
    pub(crate) fn count_to_store(&self, number: HoldNumber) -> Option<u32> {
        self.hold(number)?.state.count_to_store()
    }

    /// The backend was told this count.
    pub(crate) fn stored(&mut self, number: HoldNumber, count: u32) {
        if let Some(hold) = self.hold_mut(number) {
            hold.state.set_stored(count);
        }
    }
}
