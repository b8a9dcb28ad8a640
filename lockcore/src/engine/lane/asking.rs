//! The events of requests.

use std::time::Duration;

use super::{
    super::{
        hold::Offer,
        queue::{Asker, Asking, Outage, Ticket},
        turns::HandOver,
    },
    Effect, Effects, Lane, Step,
};
use crate::{LockError, Mode, time::Moment};

/// The time without a failure after which the next one begins a new outage. It is longer than a
/// pause between two attempts plus the time that an attempt may take.
const OUTAGE_MEMORY: Duration = Duration::from_secs(10);

/// A request is undone if it was not polled for this time, so that an acquisition that was polled
/// once and then left alone does not keep other clients out for longer. A request that is polled
/// ends by itself after [`ANSWER`].
const UNPOLLED: Duration = Duration::from_secs(6);

/// The most tokens of one grant, for the holds that share it. Tokens follow the server's clock in
/// microseconds and must not outrun it for long, or they would decrease after a failover. Using up
/// this many takes two round trips.
const TOKENS: u32 = 256;

/// The tokens of a grant that may only be kept for the same few tasks. They are fewer because every
/// grant reserves them, even one that is given back at once.
const KEPT_TOKENS: u32 = 64;

impl<W, H> Lane<W, H> {
    /// A waiter asks, unless another waiter of its owner is asking: the store might confuse the
    /// two, and both would be inside.
    pub(super) fn ask(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<H>) -> Step {
        let Some(waiter) = self.queue.get(ticket) else { return Step::Refused };
        let Asker { mode, has_fresh_owner, takes_over, is_patient, .. } = waiter.asker;
        // The hold that refused it may be one of its own owner, at another client.
        let has_name = waiter.asker.owner.name().is_some();
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
        let tokens = match self.hand_over.filter(|_| takes_over) {
            Some(_) if !self.queue.is_head_alone() => TOKENS,
            Some(HandOver { linger, .. }) if !linger.is_zero() => KEPT_TOKENS,
            _ => 1,
        };
        let news = self.refusal.news;
        if let Some(waiter) = self.queue.get_mut(ticket) {
            let own = waiter.rare().map_or(0, |rare| rare.refusal.news);
            // This request finds a grant to an earlier one. It may have another id.
            waiter.withdraw_offer();
            waiter.asking = Asking::Since { news: if mode == Mode::Fair { own } else { news } };
        }
        let knows_end = is_patient && mode == Mode::Exclusive && !has_name;
        let held_until = self.refusal.end.filter(|end| knows_end && now < *end);
        Step::Ask { tokens, turn_since: self.turns.since(), held_until }
    }

    /// The request of a waiter is not answered at once.
    pub(crate) fn pending(&mut self, ticket: Ticket, now: Moment, fx: &mut Effects<H>) {
        self.pending.push((ticket, now));
        fx.due_at(Some(now.after(UNPOLLED)));
    }

    /// Abandons the requests that were not polled for too long, to be undone. Returns when the next
    /// one will be due.
    pub(super) fn abandon_unpolled(&mut self, now: Moment, fx: &mut Effects<H>) -> Option<Moment> {
        let (queue, mut owners) = (&mut self.queue, Vec::new());
        self.pending.retain(|(ticket, sent)| {
            let is_over = sent.after(UNPOLLED) <= now;
            if is_over && let Some(waiter) = queue.get_mut(*ticket) {
                waiter.asking = Asking::Abandoned;
                fx.rare.push(Effect::Undo(*ticket));
                let Asker { owner, has_fresh_owner, .. } = &waiter.asker;
                owners.extend((!has_fresh_owner).then(|| owner.clone()));
            }
            !is_over
        });
        // Other waiters of the same owner wait until it is done asking.
        for owner in owners {
            self.wake_owner(&owner, fx);
        }
        self.pending.iter().map(|(_, sent)| sent.after(UNPOLLED)).min()
    }

    /// The request of a waiter is over, whatever its result. Returns the news it began with, or
    /// `None` if it was abandoned.
    pub(super) fn asked(&mut self, ticket: Ticket, fx: &mut Effects<H>) -> Option<u64> {
        self.pending.retain(|(other, _)| *other != ticket);
        if self.pending.is_empty() {
            // Gives back the room that many requests at once needed.
            self.pending.shrink_to_fit();
        }
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

    /// The request of a waiter was refused because of a hold that lasts until `end`. Nothing
    /// changes before `until`, unless there was news since the request began. The backend may grant
    /// the `offer` later. Returns `true` if the waiter goes on waiting; one that did not want to
    /// wait has left the queue.
    #[must_use]
    pub(crate) fn refused(
        &mut self,
        ticket: Ticket,
        (until, end): (Moment, Option<Moment>),
        offer: Option<Offer>,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> bool {
        let news = self.asked(ticket, fx);
        self.outage = None;
        let Some(waiter) = self.queue.get_mut(ticket) else { return false };
        if !waiter.asker.is_patient {
            self.leave(ticket, now, fx);
            return false;
        }
        match (waiter.asker.mode, news) {
            (Mode::Fair, Some(news)) => {
                let rare = waiter.rare_mut();
                rare.refusal.note(news, until, end);
                rare.offer = offer;
            }
            (_, Some(news)) => self.refusal.note(news, until, end),
            (_, None) => {}
        }
        self.readers_through = None;
        self.turns.contested();
        self.count_refusal(fx);
        true
    }

    fn wake_impatient(&self, fx: &mut Effects<H>) {
        if self.queue.has_impatient() {
            fx.wake.extend(self.queue.impatient());
        }
    }

    /// Waiters that do not want to wait need not wait for those that do.
    pub(super) fn count_refusal(&mut self, fx: &mut Effects<H>) {
        self.refusals += 1;
        self.wake_impatient(fx);
    }

    /// The backend failed to answer the request of a patient waiter, which asks again after
    /// `pause`. Returns the time since which it fails, for this waiter and those before it. Unless
    /// the outage `is_total`, the failure of a waiter that fails alone concerns no other waiter.
    pub(crate) fn failed(
        &mut self,
        ticket: Ticket,
        error: &LockError,
        is_total: bool,
        pause: Duration,
        now: Moment,
        fx: &mut Effects<H>,
    ) -> Option<Moment> {
        self.asked(ticket, fx);
        self.pause(ticket, now.after(pause));
        let fails_alone = self.queue.get(ticket).is_some_and(|waiter| waiter.asker.fails_alone);
        if fails_alone && !is_total {
            self.count_refusal(fx);
            return None;
        }
        let recent = self.outage.as_ref().filter(|outage| now.since(outage.last) < OUTAGE_MEMORY);
        let since = recent.map_or(now, |outage| outage.since);
        let (later, error) = (self.queue.next_ticket(), error.clone());
        self.outage = Some(Box::new(Outage { is_total, since, last: now, error, later }));
        self.wake_impatient(fx);
        Some(since)
    }

    /// A grant came after the lease had ended, and is being undone. The backend answers, so the
    /// waiter asks again, after `pause`.
    pub(crate) fn late(
        &mut self,
        ticket: Ticket,
        pause: Duration,
        now: Moment,
        fx: &mut Effects<H>,
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
}
