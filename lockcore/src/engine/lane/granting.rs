//! The events that make a hold.

use super::{
    super::{
        hold::{Grant, HoldNumber, HoldState},
        queue::Ticket,
    },
    Effects, Hold, Lane,
};
use crate::{
    FencingToken, Mode, Owner,
    time::{Lease, Moment},
};

impl<W, H> Lane<W, H> {
    /// The backend granted the request of a waiter. `None` if the request was abandoned: then the
    /// waiter is still there, and asks again.
    pub(crate) fn granted(
        &mut self,
        ticket: Ticket,
        grant: Grant,
        token: FencingToken,
        facts: H,
        fx: &mut Effects<H>,
    ) -> Option<HoldNumber> {
        // An abandoned request was undone meanwhile.
        self.asked(ticket, fx)?;
        self.let_in(ticket, grant, token, facts, fx)
    }

    /// The backend granted the request `number` of a fair waiter after it had refused it. `None` if
    /// that is not the last request that was refused, if the grant is too old, or if the owner is
    /// inside: then the waiter takes another step.
    pub(crate) fn told(
        &mut self,
        ticket: Ticket,
        (number, token): (u64, FencingToken),
        lease: Lease,
        facts: H,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<HoldNumber> {
        let waiter = self.queue.get(ticket)?;
        let offer = waiter.rare().and_then(|rare| rare.offer);
        let offer = offer.filter(|offer| offer.number == number && offer.lasts(now))?;
        if self.holds.iter().any(|hold| hold.owner == waiter.asker.owner) {
            return None;
        }
        self.let_in(ticket, Grant::told(offer, lease, token, now), token, facts, fx)
    }

    /// A waiter enters the hold that it was granted.
    fn let_in(
        &mut self,
        ticket: Ticket,
        grant: Grant,
        token: FencingToken,
        facts: H,
        fx: &mut Effects<H>,
    ) -> Option<HoldNumber> {
        let asker = &self.queue.get(ticket)?.asker;
        let (owner, mode) = (asker.owner.clone(), asker.mode);
        let number = self.admit(owner, mode, grant, token, facts, fx);
        self.enter_queue_place(ticket, number, fx);
        Some(number)
    }

    /// A hold was granted for which `owner` did not have to queue.
    pub(crate) fn admit(
        &mut self,
        owner: Owner,
        mode: Mode,
        grant: Grant,
        token: FencingToken,
        facts: H,
        fx: &mut Effects<H>,
    ) -> HoldNumber {
        self.outage = None;
        self.turns.granted(grant.sent);
        let number = HoldNumber(self.number());
        let state = HoldState::granted(&grant, token);
        self.stand_in_the_way(mode, state.deadline(), fx);
        fx.due_at(state.next_due());
        let grant = grant.handover_until.is_some().then(|| Box::new(grant));
        let (is_token_known, is_wanted) = (false, false);
        self.holds.push(Hold {
            number,
            owner,
            mode,
            token,
            is_token_known,
            is_wanted,
            state,
            grant,
            facts,
        });
        number
    }

    /// A new hold concerns the waiters in line: they are refused, or may follow.
    fn stand_in_the_way(&mut self, mode: Mode, until: Moment, fx: &mut Effects<H>) {
        if mode.is_shared() {
            self.refusal.believe_until(None);
        } else {
            self.refusal.believe_until(Some(until));
            self.count_refusal(fx);
        }
    }

    /// The head takes over the parked hold, as a hold of its own: with its own owner and guards,
    /// a token that nobody knows yet, and the deadline of the grant. `None` if there is nothing
    /// for it to take over.
    pub(crate) fn take_over(
        &mut self,
        ticket: Ticket,
        facts: impl FnOnce(&mut H),
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<HoldNumber> {
        if !self.queue.is_head(ticket) || !self.has_heir(now) {
            return None;
        }
        let number = HoldNumber(self.number());
        let at = self.parked()?;
        let (_, head) = self.queue.head()?;
        let hold = &mut self.holds[at];
        let grant = hold.grant.as_deref()?;
        hold.number = number;
        hold.owner = head.asker.owner.clone();
        if std::mem::take(&mut hold.is_token_known) {
            hold.token = hold.token.plus(1);
        }
        hold.state = HoldState::granted(grant, hold.token);
        facts(&mut hold.facts);
        let (deadline, due) = (hold.state.deadline(), hold.state.next_due());
        fx.due_at(due);
        self.stand_in_the_way(Mode::Exclusive, deadline, fx);
        self.enter_queue_place(ticket, number, fx);
        Some(number)
    }
}
