//! The events of those who wait.

use std::time::Duration;

use super::{
    super::{
        hold::{Growth, HoldNumber, Phase},
        queue::{Asker, Asking, Expected, Outage, Ticket, Waiter},
    },
    Arrival, Ask, Driver, Effects, Inside, Lane, Refused, Step,
};
use crate::{
    LockError, Mode, Owner,
    time::{ANSWER, Lease, Moment},
};

/// How long without another failure until the next one begins a new outage. Longer than a pause
/// between two attempts and the time that one may take.
const OUTAGE_MEMORY: Duration = Duration::from_secs(10);

/// A request is undone if nobody looked at its answer for so long: an acquisition that was polled
/// once and then left alone keeps other clients out no longer. A request that is polled ends itself
/// after [`ANSWER`].
const UNPOLLED: Duration = Duration::from_secs(6);

impl<D: Driver> Lane<D> {
    /// An acquisition arrives. One that does not want to wait queues only if it may be granted at
    /// once.
    pub(crate) fn arrive(
        &mut self,
        asker: Asker,
        lease: Lease,
        slot: D::Waiter,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Arrival {
        if !asker.has_fresh_owner
            && let Some(inside) = self.enter(&asker.owner, asker.mode, lease, now, fx)
        {
            return Arrival::Inside(inside);
        }
        if !asker.is_patient && self.turns_away(asker.mode, now) {
            return Arrival::Contended;
        }
        let is_patient = asker.is_patient;
        let mut waiter = Waiter::new(asker, self.next_number, slot);
        if !is_patient {
            waiter.rare_mut().refusals_before = self.refusals;
        }
        Arrival::Queued(self.queue.push(waiter))
    }

    /// Whether an acquisition that does not want to wait would have to.
    fn turns_away(&self, mode: Mode, now: Moment) -> bool {
        let mut live = self.holds.iter().filter(|hold| hold.is_live(now));
        if mode == Mode::Fair {
            return self.queue.has_fair() || live.next().is_some();
        }
        if !mode.is_shared() {
            return !self.queue.is_line_empty() || live.next().is_some();
        }
        // Those before it may all get in.
        let is_stuck = !self.queue.is_line_empty() && self.refusal.stands(now).is_some();
        is_stuck || live.any(|hold| hold.mode == Mode::Write)
    }

    /// Lets an owner in that is inside already, if that needs no request.
    pub(crate) fn enter(
        &mut self,
        owner: &Owner,
        mode: Mode,
        lease: Lease,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Option<Inside> {
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
                Phase::Lost(reason) => Inside::Lost(reason),
                _ if mode == Mode::Write => Inside::Upgrade,
                _ => Inside::Within(number),
            });
        }
        Some(match hold.state.enter(lease, now) {
            Growth::Enough => Inside::Entered(number),
            Growth::Lost(reason) => Inside::Lost(reason),
            Growth::TooDeep => Inside::TooDeep,
            Growth::Ask { .. } | Growth::Ended => Inside::Grow(number),
        })
    }

    /// Decides what a waiter does next. The order of the questions is the protocol.
    ///
    /// `patience` is for how long those before it bear a backend that does not answer; what they
    /// have borne need not be borne again by each.
    pub(crate) fn step(
        &mut self,
        ticket: Ticket,
        lease: Lease,
        patience: Duration,
        now: Moment,
        fx: &mut Effects<D::Hold>,
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
        self.ask(ticket, fx)
    }

    /// A waiter behind the head waits for its turn.
    fn wait_behind(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<D::Hold>) -> Step {
        let outage = self.outage.as_deref().filter(|outage| ticket < outage.later);
        let error = outage.map(|outage| outage.error.clone());
        let (head, refusals) = (self.queue.head().map(|(head, _)| head), self.refusals);
        let Some(waiter) = self.queue.get_mut(ticket) else { return Step::Refused };
        if waiter.asker.is_patient {
            return Step::Wait { until: None, listens: false };
        }
        let rare = waiter.rare_mut();
        let until = match (head, rare.expects) {
            (Some(head), Some((Expected::Head(same), until))) if head == same => until,
            (Some(head), _) => {
                let until = now.after(ANSWER);
                rare.expects = Some((Expected::Head(head), until));
                until
            }
            (None, _) => now,
        };
        let is_refused = rare.refusals_before < refusals;
        // A head that does not move on is not driven by its task.
        if error.is_none() && !is_refused && now < until {
            return Step::Wait { until: Some(until), listens: false };
        }
        self.leave(ticket, now, fx);
        error.map_or(Step::Refused, |error| Step::Failed(Box::new(error)))
    }

    /// What the head waits for in its own client: a hold that is, or may be, handed to it, and the
    /// turn of other clients.
    fn wait_for_own(
        &mut self,
        ticket: Ticket,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Option<Step> {
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
            // It is woken when the hold is parked, given back or lost, and when its window closes.
            return Some(Step::Wait { until: None, listens: false });
        }
        let until = self.turns.left_until(now)?;
        Some(Step::Wait { until: Some(until), listens: false })
    }

    /// Until when a waiter waits for a release of this client that is under way: its request would
    /// only meet the hold that is being given back.
    ///
    /// Where others may hold the lock as well there may always be such a release, and a fair waiter
    /// must not lose its place in the order: for these, only releases count that began before they
    /// came, and for a fair waiter only if it may be its own hold, or it will not ask twice.
    fn expected_release(&mut self, ticket: Ticket, now: Moment) -> Option<Moment> {
        let first = self.releasing.first().copied();
        let waiter = self.queue.get_mut(ticket)?;
        let Asker { mode, is_patient, has_fresh_owner, .. } = waiter.asker;
        let counts = |first: &u64| match mode {
            Mode::Fair if is_patient && has_fresh_owner => false,
            Mode::Exclusive | Mode::Write => true,
            _ => *first < waiter.releases_before,
        };
        let Some(_) = first.filter(counts) else {
            if let Some(rare) = waiter.rare()
                && rare.expects.is_some()
            {
                waiter.rare_mut().expects = None;
            }
            return None;
        };
        let rare = waiter.rare_mut();
        if rare.ignores_releases {
            return None;
        }
        match rare.expects {
            Some((Expected::Release, until)) if now < until => Some(until),
            Some((Expected::Release, _)) => {
                rare.ignores_releases = true;
                None
            }
            _ => {
                let until = now.after(ANSWER);
                rare.expects = Some((Expected::Release, until));
                Some(until)
            }
        }
    }

    /// Until when a patient waiter believes the last refusal.
    fn refused_until(&self, ticket: Ticket, now: Moment) -> Option<Moment> {
        let waiter = self.queue.get(ticket).filter(|waiter| waiter.asker.is_patient)?;
        match waiter.asker.mode {
            Mode::Fair => waiter.rare().and_then(|rare| rare.refusal.stands(now)),
            _ => self.refusal.stands(now),
        }
    }

    /// What those before this waiter failed with while it waited, if they bore it for `patience`.
    fn hopeless(&self, ticket: Ticket, patience: Duration) -> Option<Box<LockError>> {
        let outage = self.outage.as_ref()?;
        let is_borne = ticket < outage.later && outage.last.since(outage.since) >= patience;
        is_borne.then(|| Box::new(outage.error.clone()))
    }

    /// Readers follow a reader of this client that is inside, all at once.
    fn joins_readers(&self, ticket: Ticket, now: Moment) -> bool {
        self.readers_through.is_some_and(|through| ticket <= through)
            && self.refusal.stands(now).is_none()
            && self.has_live_reader()
    }

    fn has_live_reader(&self) -> bool {
        self.holds.iter().any(|hold| hold.mode == Mode::Read && hold.state.phase() == Phase::Live)
    }

    /// A waiter asks, unless another one of its owner is asking: the store may take one for the
    /// other, and both would be inside.
    fn ask(&mut self, ticket: Ticket, fx: &mut Effects<D::Hold>) -> Step {
        let Some(waiter) = self.queue.get(ticket) else { return Step::Refused };
        let Asker { mode, has_fresh_owner, takes_over, .. } = waiter.asker;
        if !has_fresh_owner {
            let others = self.queue.of_owner(&waiter.asker.owner);
            let mut others = others.iter().filter_map(|other| self.queue.get(*other));
            if others.any(|other| matches!(other.asking, Asking::Since { .. })) {
                return Step::Wait { until: None, listens: false };
            }
        }
        let behind = self.queue.behind(ticket);
        if mode == Mode::Read
            && self.has_live_reader()
            && let Some((next, reader)) = behind.filter(|(_, next)| next.asker.mode == Mode::Read)
            && reader.asking == Asking::No
        {
            self.readers_through = self.readers_through.max(Some(next));
            fx.wake.push(next);
        }
        let wants_tokens = takes_over && !self.queue.is_head_alone();
        let news = self.refusal.news;
        if let Some(waiter) = self.queue.get_mut(ticket) {
            let own = waiter.rare().map_or(0, |rare| rare.refusal.news);
            waiter.asking = Asking::Since { news: if mode == Mode::Fair { own } else { news } };
        }
        Step::Ask(Ask { wants_tokens, turn_since: self.turns.since() })
    }

    /// The request of a waiter is not answered at once.
    pub(crate) fn pending(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<D::Hold>) {
        self.pending.push((ticket, now));
        fx.due_at(Some(now.after(UNPOLLED)));
    }

    /// Requests whose answers nobody looked at are to be undone. Returns when the next one will be.
    pub(super) fn abandon_unpolled(
        &mut self,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Option<Moment> {
        let (queue, undo) = (&mut self.queue, &mut fx.undo);
        self.pending.retain(|(ticket, sent)| {
            let is_over = sent.after(UNPOLLED) <= now;
            if is_over && let Some(waiter) = queue.get_mut(*ticket) {
                waiter.asking = Asking::Abandoned;
                undo.push(*ticket);
            }
            !is_over
        });
        for ticket in fx.undo.clone() {
            // Others of its owner wait for it to have asked.
            let waiter = self.queue.get(ticket).filter(|waiter| !waiter.asker.has_fresh_owner);
            if let Some(owner) = waiter.map(|waiter| waiter.asker.owner.clone()) {
                self.wake_owner(&owner, fx);
            }
        }
        self.pending.iter().map(|(_, sent)| sent.after(UNPOLLED)).min()
    }

    /// The request of a waiter is over, one way or another. Returns the news it began with, or
    /// `None` if it was abandoned.
    fn asked(&mut self, ticket: Ticket, fx: &mut Effects<D::Hold>) -> Option<u64> {
        self.pending.retain(|(other, _)| *other != ticket);
        let waiter = self.queue.get_mut(ticket)?;
        let asking = std::mem::take(&mut waiter.asking);
        if !waiter.asker.has_fresh_owner && asking != Asking::No {
            let owner = waiter.asker.owner.clone();
            self.wake_owner(&owner, fx);
        }
        match asking {
            Asking::Since { news } => Some(news),
            Asking::No | Asking::Abandoned => None,
        }
    }

    /// Whether a grant may still be entered. An abandoned request was undone meanwhile.
    pub(super) fn take_asked(&mut self, ticket: Ticket, fx: &mut Effects<D::Hold>) -> bool {
        self.asked(ticket, fx).is_some()
    }

    /// The request of a waiter was refused; nothing changes before `until`, unless there was news
    /// since it began.
    pub(crate) fn refused(
        &mut self,
        ticket: Ticket,
        until: Moment,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Refused {
        let news = self.asked(ticket, fx);
        self.outage = None;
        let Some(waiter) = self.queue.get_mut(ticket) else { return Refused::Over };
        if !waiter.asker.is_patient {
            self.leave(ticket, now, fx);
            return Refused::Over;
        }
        match (waiter.asker.mode, news) {
            (Mode::Fair, Some(news)) => waiter.rare_mut().refusal.note(news, until),
            (_, Some(news)) => self.refusal.note(news, until),
            (_, None) => {}
        }
        self.readers_through = None;
        self.turns.contested();
        self.count_refusal(fx);
        Refused::Waits
    }

    fn wake_impatient(&self, fx: &mut Effects<D::Hold>) {
        if self.queue.has_impatient() {
            fx.wake.extend(self.queue.impatient());
        }
    }

    /// Those who do not want to wait need not wait for those who do.
    pub(super) fn count_refusal(&mut self, fx: &mut Effects<D::Hold>) {
        self.refusals += 1;
        self.wake_impatient(fx);
    }

    /// The backend failed to answer the request of a patient waiter, which asks again after
    /// `pause`. Returns since when it fails, for this waiter and those before it.
    pub(crate) fn failed(
        &mut self,
        ticket: Ticket,
        error: &LockError,
        pause: Duration,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) -> Moment {
        self.asked(ticket, fx);
        let recent = self.outage.as_ref().filter(|outage| now.since(outage.last) < OUTAGE_MEMORY);
        let since = recent.map_or(now, |outage| outage.since);
        let (later, error) = (self.queue.next_ticket(), error.clone());
        self.outage = Some(Box::new(Outage { since, last: now, error, later }));
        self.wake_impatient(fx);
        self.pause(ticket, now.after(pause));
        since
    }

    /// A grant came after the lease had ended, and is being undone. The backend answers, so the
    /// waiter asks again, after `pause`.
    pub(crate) fn late(
        &mut self,
        ticket: Ticket,
        pause: Duration,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) {
        self.asked(ticket, fx);
        self.outage = None;
        self.pause(ticket, now.after(pause));
    }

    fn pause(&mut self, ticket: Ticket, until: Moment) {
        if let Some(waiter) = self.queue.get_mut(ticket) {
            waiter.rare_mut().pause_until = Some(until);
        }
    }

    /// The backend told a waiter that the lock may be free. `jitter` is in `[0, 1)`.
    pub(crate) fn heard(
        &mut self,
        ticket: Ticket,
        jitter: f64,
        now: Moment,
        fx: &mut Effects<D::Hold>,
    ) {
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

    /// A subscription is in effect, or failed and was waited for: what happened before was not
    /// heard, so an attempt is due.
    pub(crate) fn listening(&mut self, ticket: Ticket, fx: &mut Effects<D::Hold>) {
        match self.queue.get_mut(ticket) {
            Some(waiter) if waiter.asker.mode == Mode::Fair => {
                waiter.rare_mut().refusal.outdate();
            }
            Some(_) => self.news(fx),
            None => {}
        }
    }

    /// A waiter leaves.
    pub(crate) fn leave(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<D::Hold>) {
        self.asked(ticket, fx);
        let Some((_, was_head)) = self.queue.remove(ticket) else { return };
        if was_head {
            self.wake_head(fx);
            if self.parked().is_some() && !self.has_heir(now) {
                self.unpark(now, fx);
            }
        }
    }

    /// Whether the head can take over the parked hold.
    pub(super) fn has_heir(&self, now: Moment) -> bool {
        let takes_over = self.queue.head().is_some_and(|(_, head)| head.asker.takes_over);
        takes_over && self.parked().is_some_and(|at| self.holds[at].state.suits_handover(now))
    }

    /// Puts a new hold in the place of the waiter that got it, and wakes those whom that concerns.
    pub(super) fn enter_queue_place(
        &mut self,
        ticket: Ticket,
        hold: HoldNumber,
        fx: &mut Effects<D::Hold>,
    ) {
        let Some((waiter, was_head)) = self.queue.remove(ticket) else { return };
        if !waiter.asker.has_fresh_owner {
            self.wake_owner(&waiter.asker.owner, fx);
        }
        // The next one may rest until the hold is parked for it.
        let is_handed_over =
            self.hold(hold).is_some_and(|hold| hold.state.handover_until().is_some());
        let rests =
            is_handed_over && self.queue.head().is_none_or(|(_, next)| next.asker.is_patient);
        if was_head && !rests {
            self.wake_head(fx);
        }
    }
}
