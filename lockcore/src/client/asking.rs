//! One request of a waiter, from sending it to acting on the answer.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use uuid::Uuid;

use super::{
    acquisition::Acquisition,
    answer::no_answer,
    cleanup::{Cleanup, OnDrop, Undo},
    outcome::{BackendCall, Entrance},
    place::QueuePlace,
    waiting::{Contender, TurnEnd},
};
use crate::{
    BackendError, BackendErrorKind, FencingToken, LockError, Mode,
    backend::{AcquireOutcome, AcquireRequest},
    engine::{Grant, HandOver, Offer},
    time::{ANSWER, Backoff, Moment, lease},
};

/// How often the backend is asked again after a refusal if no wake-up comes. Locks that other
/// software wrote without an expiry have no end, and a reported end is wrong once the backend's
/// clock is changed. All waiters ask at the same moments, so that a backend can answer them
/// together.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// The store's clock ticks in milliseconds: a waiter comes after the tick, not on it.
const TICK: Duration = Duration::from_millis(1);

impl Contender<'_> {
    /// Asks the backend once. `None` if the answer does not settle the acquisition yet.
    pub(super) async fn ask(
        &mut self,
        tokens: u32,
        turn_since: Option<Moment>,
        held_until: Option<Moment>,
        sent: Moment,
    ) -> Result<Option<TurnEnd>, LockError> {
        let client = self.client();
        let number = *self.number.get_or_insert_with(|| client.draw_number());
        let id = client.hold_id(&self.asker.owner, number);
        let tokens = match tokens {
            1 => 1,
            _ => tokens.min(client.backend.limits().most_tokens).max(1),
        };
        let request = self.acquisition().request(id, self.asker.is_patient).tokens(tokens);
        let held_for = held_until.map(|end| end.since(sent).saturating_sub(TICK));
        let request = request.direct_grant(self.offer()).held_for(held_for);
        let mut call = client.measure.call(BackendCall::Acquire, client.backend.acquire(&request));
        let first = poll_fn(|context| Poll::Ready(Pin::new(&mut call).poll(context))).await;
        let (answer, is_undone, now) = match first {
            // No time has passed that the next look at the hold would not notice as well.
            Poll::Ready(answer) => (answer, false, sent),
            Poll::Pending => {
                self.has_waited = true;
                self.pending(&request, sent);
                let (answer, is_undone) = self.answer(call).await;
                let now = client.clock.now();
                let answer = answer.inspect_err(|_| self.arm_undo(&request, now))?;
                (answer, is_undone, now)
            }
        };
        let replicas = answer.as_ref().ok().and_then(AcquireOutcome::replicas);
        let turn = match answer {
            Ok(AcquireOutcome::Acquired { token } | AcquireOutcome::Acknowledged { token, .. }) => {
                self.granted(&request, (token, replicas), turn_since, sent, now)?
            }
            Ok(AcquireOutcome::Held { remaining }) => self.refused(&request, remaining, sent, now),
            Ok(outcome) => {
                match outcome {
                    AcquireOutcome::TooMany { .. } => self.disarm_undo(),
                    _ => self.arm_undo(&request, now),
                }
                return Err(self.misunderstood(outcome));
            }
            Err(error) => {
                self.failed(&request, error, now)?;
                None
            }
        };
        if is_undone && turn.is_none() && self.number.is_some() {
            // The undo may still be on its way, and must not hit the next request.
            self.undo(&request, now);
        }
        Ok(turn)
    }

    /// The number of this request if the backend may grant it later; the grant would be heard from
    /// now on. The number is random, so that a client that can only publish messages cannot forge a
    /// grant.
    fn offer(&self) -> Option<u64> {
        let is_heard = self.place.listener.as_ref().is_some_and(|listener| listener.is_listening());
        if !is_heard || !self.acquisition().takes_direct_grants(self.asker) {
            return None;
        }
        let (_, number) = Uuid::new_v4().as_u64_pair();
        Some(number)
    }

    /// Bounds a request that is not answered at once, whether or not its task goes on polling it.
    /// Its undo stays in the lane until the answer.
    fn pending(&self, request: &AcquireRequest, sent: Moment) {
        let QueuePlace { cell, ticket, .. } = &self.place;
        let asked = Box::new((request.undo(), latest(request, sent)));
        self.client().with(cell, |lane, fx| {
            if let Some(waiter) = lane.waiter_mut(*ticket) {
                waiter.asked = Some(asked);
            }
            lane.pending(*ticket, sent, fx);
        });
    }

    /// Waits for the answer, unless the client is closed, and no longer than
    /// [`ANSWER`](crate::time::ANSWER). The second value is `true` if the future was not polled for
    /// so long that the request was undone.
    async fn answer<T>(
        &self,
        mut call: impl Future<Output = Result<T, BackendError>> + Send + Unpin,
    ) -> (Result<Result<T, BackendError>, LockError>, bool) {
        let (client, QueuePlace { cell, ticket, .. }) = (self.client(), &self.place);
        let mut limit = pin!(tokio::time::sleep(ANSWER));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = Pin::new(&mut call).poll(context) {
                return Poll::Ready(Ok(answer));
            }
            // Any other signal is answered by the step that follows.
            while cell.poll_signal(*ticket, context).is_ready() {
                if client.is_closed() {
                    return Poll::Ready(Err(self.acquisition().closed()));
                }
            }
            limit.as_mut().poll(context).map(|()| Ok(Err(no_answer())))
        })
        .await;
        // Dropped while its undo is still in the lane, because the backend's code may panic.
        drop(call);
        let over = cell.look(|lane| {
            let waiter = lane.waiter_mut(*ticket);
            waiter.map(|waiter| (waiter.take_waker(), waiter.asked.take()))
        });
        let is_undone = over.is_none_or(|(_, asked)| asked.is_none());
        (answer, is_undone)
    }

    /// Arms the undo of `request`. The same undo gives up the place in a queue that it asks for.
    fn arm_undo(&mut self, request: &AcquireRequest, now: Moment) {
        let latest = latest(request, now);
        if let Some(Cleanup::Undo(undo)) = self.undo.as_mut().and_then(|undo| undo.cleanup()) {
            undo.until = latest.max(undo.until);
            return;
        }
        let (client, cell) = (self.client().clone(), self.place.cell.clone());
        let undo = Undo { client, cell, request: request.undo(), until: latest };
        self.undo = Some(Box::new(OnDrop::new(Cleanup::Undo(undo))));
    }

    pub(super) fn disarm_undo(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo.disarm();
        }
    }

    /// Undoes `request` in the background. The next request has another id.
    fn undo(&mut self, request: &AcquireRequest, now: Moment) {
        self.arm_undo(request, now);
        (self.undo, self.number) = (None, None);
        if self.acquisition().mode == Mode::Fair {
            // A subscription is for one hold.
            self.place.listener = None;
        }
    }

    fn granted(
        &mut self,
        request: &AcquireRequest,
        (token, replicas): (FencingToken, Option<u32>),
        turn_since: Option<Moment>,
        sent: Moment,
        now: Moment,
    ) -> Result<Option<TurnEnd>, LockError> {
        let Acquisition { client, lease, .. } = self.acquisition();
        if now >= lease::deadline(sent, lease.duration()) {
            return self.granted_late(request, sent, now).map(|()| None);
        }
        let until = client.lanes.hand_over();
        let until = until.map(|HandOver { turn, .. }| turn_since.unwrap_or(sent).after(turn));
        let grant = Grant::new(sent, *lease, token, request.tokens, until);
        let acquisition = self.acquisition();
        let facts = acquisition.facts(request.hold.clone(), replicas, sent);
        let mut is_closed = false;
        let held = self.place.enter(|lane, ticket, fx| {
            is_closed = client.is_closed();
            let is_open = !is_closed;
            is_open.then(|| lane.granted(ticket, grant, token, facts, fx)).flatten()
        });
        match held {
            Some(held) => {
                self.disarm_undo();
                Ok(Some(TurnEnd::Entered(self.enters(held, Entrance::Granted, now))))
            }
            None if is_closed => {
                self.arm_undo(request, now);
                Err(acquisition.closed())
            }
            // It was undone meanwhile. Undo it once more, in case it was carried out after that.
            None => {
                self.undo(request, now);
                Ok(None)
            }
        }
    }

    /// The grant came after its lease had ended: it is undone, and a patient waiter asks again. If
    /// this keeps happening, or is inevitable, the lease is too short.
    fn granted_late(
        &mut self,
        request: &AcquireRequest,
        sent: Moment,
        now: Moment,
    ) -> Result<(), LockError> {
        let Acquisition { client, name, .. } = self.acquisition();
        self.undo(request, now);
        let error = LockError::from(late(request.lease).with_lock(name));
        let is_first = self.failing_since.is_none();
        let since = *self.failing_since.get_or_insert(now);
        let is_over = !is_first && now.since(since) >= client.settings.retry_for;
        let is_hopeless = lease::deadline(sent, request.lease) <= sent;
        if !self.asker.is_patient || is_over || is_hopeless {
            return Err(error);
        }
        tracing::debug!(%error, "will be asked for again");
        self.last_error = Some(Box::new(error));
        let pause = if is_first { Duration::ZERO } else { self.backoff.next() };
        let QueuePlace { cell, ticket, .. } = &self.place;
        client.with(cell, |lane, fx| lane.late(*ticket, pause, now, fx));
        Ok(())
    }

    fn refused(
        &mut self,
        request: &AcquireRequest,
        remaining: Option<Duration>,
        sent: Moment,
        now: Moment,
    ) -> Option<TurnEnd> {
        (self.backoff, self.last_error, self.failing_since) = (Backoff::default(), None, None);
        self.counts.refused();
        match request.queue {
            // It may have a place in the backend's queue now.
            Some(_) => self.arm_undo(request, now),
            None => self.disarm_undo(),
        }
        let end = remaining.map(|left| now.after(left.saturating_add(TICK)));
        let next = now.next_multiple_of(ASK_EVERY);
        let until = end.map_or(next, |end| end.min(next));
        // A place in the queue is kept by asking again in time.
        let kept = request.queue.map_or(until, |queue| now.after(queue / 3));
        let until = until.min(kept);
        let offer = request.direct_grant.zip(request.queue);
        let offer = offer.map(|(number, kept)| Offer { number, sent, kept });
        let QueuePlace { cell, ticket, .. } = &self.place;
        let waits = self
            .client()
            .with(cell, |lane, fx| lane.refused(*ticket, (until, end), offer, now, fx));
        (!waits).then_some(TurnEnd::Refused)
    }

    /// Tolerates a temporary error. Returns any other error, and also a temporary one if no waiter
    /// of this lane has had an answer for too long.
    fn failed(
        &mut self,
        request: &AcquireRequest,
        error: BackendError,
        now: Moment,
    ) -> Result<(), LockError> {
        let Acquisition { client, name, .. } = self.acquisition();
        if error.is_outcome_unknown() {
            // This also gives up a place in a queue.
            self.undo(request, now);
        } else if request.queue.is_none() {
            self.disarm_undo();
        }
        let is_retryable = error.is_retryable();
        // Replicas may be missing while the backend serves others.
        let is_total = error.kind() != BackendErrorKind::Unavailable;
        let error = LockError::from(error.with_lock(name));
        if !is_retryable || !self.asker.is_patient {
            return Err(error);
        }
        let pause = self.backoff.next();
        let QueuePlace { cell, ticket, .. } = &self.place;
        let since =
            client.with(cell, |lane, fx| lane.failed(*ticket, &error, is_total, pause, now, fx));
        let since = since.unwrap_or_else(|| *self.failing_since.get_or_insert(now));
        if now.since(since) >= client.settings.retry_for {
            return Err(error);
        }
        tracing::debug!(%error, "attempt failed, will be retried");
        self.last_error = Some(Box::new(error));
        Ok(())
    }

    fn misunderstood(&self, outcome: AcquireOutcome) -> LockError {
        let lock = &self.acquisition().name;
        let message = match (outcome, self.acquisition().mode) {
            (AcquireOutcome::TooMany { limit }, Mode::Permit { count: asked, .. }) => {
                return LockError::TooManyPermits { lock: lock.clone(), asked, limit };
            }
            (AcquireOutcome::TooMany { .. }, _) => "a lock was answered as a semaphore",
            _ => "an outermost acquisition was answered as a nested one",
        };
        BackendError::new(BackendErrorKind::Protocol, message).with_lock(lock).into()
    }
}

/// The latest end of whatever the backend may have recorded for a request made at `sent`. A place
/// in a queue may outlive the lease.
fn latest(request: &AcquireRequest, sent: Moment) -> Moment {
    sent.after(request.lease.max(request.queue.unwrap_or_default()))
}

/// The error for a grant that came after its lease had ended.
pub(super) fn late(lease: Duration) -> BackendError {
    let message =
        format!("the grant came only after its lease of {lease:?} had ended; use a longer lease");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}
