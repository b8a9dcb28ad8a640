//! [`Contender`]: an acquisition in its queue, step by step.

use std::{
    future::{Future, poll_fn},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use super::{
    acquisition::Acquisition,
    answer::unless,
    cleanup::{Cleanup, OnDrop},
    held::Held,
    lanes::{HoldFacts, LaneCell, WaitFacts},
    listener::Heard,
    measured_acquisition::WaiterMetrics,
    outcome::Entrance,
    place::QueuePlace,
    release::ReleaseWork,
    shared::Client,
};
use crate::{
    FencingToken, LockError, Mode,
    backend::{SubscribeRequest, Wakeup},
    engine::{Asker, Nesting, Step},
    task::TaskKey,
    time::{Backoff, Moment, random_fraction},
};

/// How long a time-out is held back until the place in the queue is left.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// How the wait ended.
pub(super) enum TurnEnd {
    Entered(Held),
    Refused,
    /// The owner got in by another acquisition.
    Inside(Arc<LaneCell>, Nesting),
}

/// An acquisition that waits. Dropping it leaves nothing behind, neither here nor at the backend.
pub(super) struct Contender<'a> {
    pub(super) asker: &'a Asker,
    /// The number in the id of the hold. It is drawn when the id is first sent, because ids of
    /// named owners are compared by age.
    pub(super) number: Option<NonZeroU64>,
    /// The undo of its requests. Declared before the place, because the next waiter in line must
    /// not ask before the undo is on its way.
    pub(super) undo: Option<Box<OnDrop>>,
    pub(super) place: QueuePlace<'a>,
    pub(super) backoff: Backoff,
    /// The time since which its requests fail in ways that concern no other waiter: each grant came
    /// after its lease had ended, or an asker that fails alone was not answered.
    pub(super) failing_since: Option<Moment>,
    pub(super) last_error: Option<Box<LockError>>,
    /// Set if the acquisition was not done at once.
    pub(super) has_waited: bool,
    has_warned: bool,
    /// Its metrics.
    pub(super) counts: WaiterMetrics<'a>,
}

impl<'a> Contender<'a> {
    pub(super) fn new(asker: &'a Asker, place: QueuePlace<'a>, counts: WaiterMetrics<'a>) -> Self {
        Self {
            asker,
            number: None,
            undo: None,
            place,
            backoff: Backoff::default(),
            failing_since: None,
            last_error: None,
            has_waited: false,
            has_warned: false,
            counts,
        }
    }

    pub(super) fn acquisition(&self) -> &'a Acquisition {
        self.place.acquisition
    }

    pub(super) fn client(&self) -> &'a Arc<Client> {
        &self.acquisition().client
    }

    /// Waits for the turn and takes it. It begins at `now` with its first `step`.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` has room for its arguments twice")]
    pub(super) fn take_turn<'s>(
        &'s mut self,
        mut step: Step,
        mut now: Moment,
    ) -> impl Future<Output = Result<TurnEnd, LockError>> + Send + use<'s, 'a> {
        async move {
            loop {
                match step {
                    // Returned whatever happened meanwhile, because its guard may be counted
                    // already.
                    Step::Inside(inside) => {
                        return Ok(TurnEnd::Inside(self.place.cell.clone(), inside));
                    }
                    _ if self.client().is_closed() => return Err(self.acquisition().closed()),
                    Step::Refused => return Ok(TurnEnd::Refused),
                    Step::Failed(error) => return Err(*error),
                    Step::TakeOver => {
                        if let Some(held) = self.take_over(now) {
                            return Ok(TurnEnd::Entered(held));
                        }
                    }
                    Step::Wait { until: None, listens: false } => {
                        self.waits();
                        self.warn_of_deadlock(now);
                        self.signalled().await;
                    }
                    // Boxed, because most waiters are not first, and need no room for this.
                    Step::Wait { until, listens } => {
                        self.waits();
                        self.warn_of_deadlock(now);
                        if let Some(turn) = Box::pin(self.wait(until, listens)).await? {
                            return Ok(turn);
                        }
                    }
                    Step::Ask { tokens, turn_since, held_until } => {
                        let asked = Box::pin(self.ask(tokens, turn_since, held_until, now));
                        if let Some(turn) = asked.await? {
                            return Ok(turn);
                        }
                    }
                }
                now = self.client().clock.now();
                step = self.step(now);
            }
        }
    }

    fn waits(&mut self) {
        self.has_waited = true;
        self.counts.waits();
    }

    fn step(&self, now: Moment) -> Step {
        let Acquisition { client, lease, .. } = self.acquisition();
        let patience = client.settings.retry_for;
        let QueuePlace { cell, ticket, .. } = &self.place;
        client.with(cell, |lane, fx| lane.step(*ticket, *lease, patience, now, fx))
    }

    /// Takes over the parked hold. `None` if it is no longer there, or the client is closed.
    fn take_over(&mut self, now: Moment) -> Option<Held> {
        let acquisition = self.acquisition();
        let held = self.place.enter(|lane, ticket, fx| {
            let take = |facts: &mut HoldFacts| acquisition.take_over(facts, now);
            let is_open = !acquisition.client.is_closed();
            is_open.then(|| lane.take_over(ticket, take, now, fx)).flatten()
        })?;
        Some(self.enters(held, Entrance::HandedOver, now))
    }

    /// The acquisition got in, with the first guard of a hold.
    pub(super) fn enters(&mut self, mut held: Held, how: Entrance, now: Moment) -> Held {
        self.counts.begins(how, self.has_waited, now);
        held.set_how(how);
        held
    }

    /// Resolves when the engine wants another step. Cancel safe.
    fn signalled(&self) -> impl Future<Output = ()> + '_ {
        let QueuePlace { cell, ticket, .. } = &self.place;
        poll_fn(move |context| cell.poll_signal(*ticket, context))
    }

    /// Waits for the signal, for `until`, or for the backend, which may report that it has granted
    /// the hold.
    async fn wait(
        &mut self,
        until: Option<Moment>,
        listens: bool,
    ) -> Result<Option<TurnEnd>, LockError> {
        // A backend whose wake-ups are always ready must not keep the thread.
        tokio::task::consume_budget().await;
        let clock = &self.client().clock;
        let end = async {
            match until {
                Some(until) => clock.sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        if !listens {
            tokio::select! {
                biased;
                () = self.signalled() => {}
                () = end => self.place.cell.ignore_signal(self.place.ticket),
            }
            return Ok(None);
        }
        let number = self.have_listener();
        let Acquisition { client, name, mode, .. } = self.acquisition();
        let owner = &self.asker.owner;
        let QueuePlace { cell, ticket, listener: Some(listener), .. } = &mut self.place else {
            return Ok(None);
        };
        let request =
            || SubscribeRequest::new(name.clone(), client.hold_id(owner, number)).mode(*mode);
        let signalled = poll_fn(|context| cell.poll_signal(*ticket, context));
        let heard = tokio::select! {
            biased;
            () = signalled => None,
            heard = listener.heard(&client.backend, (&client.clock, &client.measure), request) => {
                Some(heard.map_err(|error| LockError::from(error.with_lock(name)))?)
            }
            () = end => None,
        };
        cell.ignore_signal(*ticket);
        Ok(heard.and_then(|heard| self.have_heard(number, heard)).map(TurnEnd::Entered))
    }

    /// Makes sure that there is a subscription, and returns the number of the hold that it is for.
    fn have_listener(&mut self) -> NonZeroU64 {
        if self.place.listener.is_none() {
            let parked = match self.acquisition().mode {
                // The subscription of a fair waiter only reports its own turn.
                Mode::Fair => None,
                _ => self.place.cell.lock().listener.take(),
            };
            self.place.listener = Some(parked.unwrap_or_default());
        }
        let client = self.client();
        *self.number.get_or_insert_with(|| client.draw_number())
    }

    /// Reports an event of the subscription to the lane. Returns the hold, if the event granted it.
    fn have_heard(&mut self, number: NonZeroU64, heard: Heard) -> Option<Held> {
        let client = self.client();
        let now = client.clock.now();
        if let Heard::Woken(_) = heard {
            self.counts.woken();
        }
        if let Heard::Woken(Wakeup::Granted { token, request }) = heard
            && let Some(held) = self.told(number, (request, token), now)
        {
            return Some(held);
        }
        let (QueuePlace { cell, ticket, .. }, jitter) = (&self.place, random_fraction());
        client.with(cell, |lane, fx| match heard {
            Heard::Woken(_) => lane.heard(*ticket, jitter, now, fx),
            Heard::Subscribed => lane.listening(*ticket, fx),
        });
        None
    }

    /// The backend has granted a request that it had refused before. `None` if the waiter has to
    /// take another step, because the grant is too old or the client is closed.
    fn told(
        &mut self,
        number: NonZeroU64,
        granted: (u64, FencingToken),
        now: Moment,
    ) -> Option<Held> {
        let (acquisition, client) = (self.acquisition(), self.client());
        let facts = acquisition.facts(client.hold_id(&self.asker.owner, number), None, now);
        let held = self.place.enter(|lane, ticket, fx| {
            let is_open = !client.is_closed();
            is_open.then(|| lane.told(ticket, granted, acquisition.lease, facts, now, fx)).flatten()
        })?;
        self.disarm_undo();
        Some(self.enters(held, Entrance::Granted, now))
    }

    /// Leaves because the time is up. Returns when that is done, with the last error of the backend
    /// if it does not answer.
    pub(super) async fn give_up(mut self) -> Option<Box<LockError>> {
        let QueuePlace { cell, ticket, .. } = &self.place;
        let outage = || cell.look(|lane| lane.outage(*ticket)).map(Box::new);
        let error = self.last_error.take().or_else(outage);
        let undo = match self.undo.take().and_then(|undo| undo.disarm()) {
            Some(Cleanup::Undo(undo)) => Some(undo),
            _ => None,
        };
        let Some(undo) = self.place.take_asked().or(undo) else { return error };
        // Before the place is left, so that the next waiter in line waits for this release.
        let (client, release) = (self.client(), ReleaseWork::undo(undo));
        drop(self);
        // Once the client is closed, the background goes on.
        let _ = unless(|| client.closed(), release.carry_out_within(LEAVE_WITHIN)).await;
        error
    }

    /// Notes the wait for later reports, and warns of a self-deadlock: a task that waits for a lock
    /// which it holds itself under another owner waits forever.
    fn warn_of_deadlock(&mut self, now: Moment) {
        if !self.asker.is_patient || std::mem::replace(&mut self.has_warned, true) {
            return;
        }
        let Acquisition { name, site, mode, client, .. } = self.acquisition();
        let task = TaskKey::current();
        let held_since = self.place.cell.look(|lane| {
            if let Some(slot) = lane.waiter_mut(self.place.ticket) {
                slot.wait = Some(WaitFacts { since: now, site, task, number: None });
            }
            if matches!(mode, Mode::Permit { .. }) {
                return None;
            }
            let own = lane.holds().iter().find(|hold| {
                hold.facts.task == task && hold.owner != self.asker.owner && hold.is_live(now)
            });
            own.map(|hold| hold.facts.site)
        });
        client.calendar.watch();
        if let Some(held_since) = held_since {
            tracing::warn!(
                lock = %name, %held_since, waiting_at = %site,
                "this task waits for a lock that it holds itself under another owner, which is \
                 probably a deadlock; acquire both in one scope, with `run` or with `owned_by`"
            );
        }
    }
}
