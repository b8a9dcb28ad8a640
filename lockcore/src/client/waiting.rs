//! [`Waiting`]: an acquisition in its queue, step by step.

use std::{
    future::{Future, poll_fn},
    num::NonZeroU64,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Client,
    acquire::{Acquisition, Claimant},
    cleanup::{Cleanup, OnDrop, Undo},
    held::Held,
    lanes::{HoldFacts, LaneCell, Tasks, WaiterSlot},
    listener::{Heard, Listener},
    release::ReleaseWork,
    waiters::Counted,
};
use crate::{
    BackendError, BackendErrorKind, FencingToken, LockError, Mode,
    backend::{AcquireOutcome, AcquireRequest, SubscribeRequest},
    engine::{Ask, Effects, Grant, HoldNumber, Inside, Lane, Refused, Step, Ticket},
    task::TaskKey,
    time::{ANSWER, Backoff, Lease, Moment, lease, random_fraction},
};

/// At most this many holds are made of one grant, each with a token of its own. Tokens follow the
/// server's clock in microseconds and must not outrun it for long, or they would fall after a
/// failover: it takes two round trips to use up this many.
const TOKENS: u32 = 256;

/// How often the backend is asked again after a refusal if nothing is heard. Locks that others have
/// written without an expiry have no end, and the end that was told is wrong when the backend's
/// clock is set. All waiters ask at the same moments, so that a backend can answer them together.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// How long a time-out waits until the place in the queue is left, before it is reported.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// How the wait ended.
pub(super) enum Turn {
    Entered(Held),
    Refused,
    /// The owner got in by another acquisition.
    Inside(Inside),
}

/// A place in the queue of a lane. Dropped, it is left.
#[derive(Debug)]
pub(super) struct Place<'a> {
    client: &'a Arc<Client>,
    pub(super) cell: Arc<LaneCell>,
    ticket: Ticket,
    /// It has become a hold, or was left.
    is_over: bool,
    listener: Option<Box<Listener>>,
    /// Its subscription is for one hold only, and is of no use to others.
    is_fair: bool,
    _counted: Option<Counted<'a>>,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        client: &'a Arc<Client>,
        cell: Arc<LaneCell>,
        ticket: Ticket,
        mode: Mode,
        counted: Option<Counted<'a>>,
    ) -> Self {
        let is_fair = mode == Mode::Fair;
        Self { client, cell, ticket, is_over: false, listener: None, is_fair, _counted: counted }
    }

    /// The waiter enters, if `enter` returns a hold: the place is over with that. The subscription
    /// stays for the next one in line.
    fn enter(
        &mut self,
        lease: Lease,
        enter: impl FnOnce(&mut Lane<Tasks>, Ticket, &mut Effects<HoldFacts>) -> Option<HoldNumber>,
    ) -> Option<Held> {
        let Self { client, cell, ticket, is_over, listener, is_fair, .. } = self;
        let leaves_it = listener.is_some() && !*is_fair;
        let (held, left) = client.with_slot(cell, cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(*ticket).and_then(WaiterSlot::take_waker);
            let Some(number) = enter(&mut slot.lane, *ticket, fx) else { return (None, waker) };
            *is_over = true;
            if leaves_it {
                std::mem::swap(&mut slot.listener, listener);
            }
            (slot.lane.hold_mut(number).map(|hold| Held::of(client, cell, hold, lease)), waker)
        });
        // Outside of the lock: whatever hangs on it may come here again.
        drop(left);
        held
    }
}

impl Drop for Place<'_> {
    /// Leaves the subscription to the next one in line. That of a fair waiter hears of its own turn
    /// only, and is of no use to anybody else.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (now, ticket, mut listener) =
            (self.client.clock.now(), self.ticket, self.listener.take());
        let leaves_it = listener.is_some() && !self.is_fair;
        let left = self.client.with_slot(&self.cell, self.cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(ticket).and_then(WaiterSlot::take_waker);
            slot.lane.leave(ticket, now, fx);
            if leaves_it {
                std::mem::swap(&mut slot.listener, &mut listener);
            }
            (waker, listener)
        });
        // Outside of the lock: whatever hangs on these may come here again.
        drop(left);
    }
}

/// An acquisition that waits. Dropped, it leaves nothing: neither here nor at the backend.
pub(super) struct Waiting<'a> {
    acquisition: &'a Acquisition,
    claimant: Claimant,
    is_patient: bool,
    /// In the id of the hold. Drawn when it is first sent: ids of named owners are compared for
    /// their age.
    number: Option<NonZeroU64>,
    /// What its requests may have left at the backend. Before the place: the next one in line must
    /// not ask before it is on its way.
    undo: Option<OnDrop>,
    place: Place<'a>,
    backoff: Backoff,
    /// Since when each grant came after its lease had ended.
    late_since: Option<Moment>,
    last_error: Option<Box<LockError>>,
    has_warned: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(
        acquisition: &'a Acquisition,
        claimant: Claimant,
        is_patient: bool,
        place: Place<'a>,
    ) -> Self {
        Self {
            acquisition,
            claimant,
            is_patient,
            number: None,
            undo: None,
            place,
            backoff: Backoff::default(),
            late_since: None,
            last_error: None,
            has_warned: false,
        }
    }

    fn client(&self) -> &'a Arc<Client> {
        &self.acquisition.client
    }

    /// Waits for the turn and takes it. It is `now` when it begins with its first `step`.
    pub(super) async fn take_turn(
        &mut self,
        mut step: Step,
        mut now: Moment,
    ) -> Result<Turn, LockError> {
        loop {
            if self.client().is_closed() {
                return Err(self.acquisition.closed());
            }
            match step {
                Step::Inside(inside) => return Ok(Turn::Inside(inside)),
                Step::Refused => return Ok(Turn::Refused),
                Step::Failed(error) => return Err(*error),
                Step::TakeOver => {
                    if let Some(held) = self.take_over(now) {
                        return Ok(Turn::Entered(held));
                    }
                }
                Step::Wait { until: None, listens: false } => {
                    self.warn_of_deadlock(now);
                    self.signalled().await;
                }
                // In boxes: most of those who wait are not first, and need no room for this.
                Step::Wait { until, listens } => {
                    self.warn_of_deadlock(now);
                    Box::pin(self.wait(until, listens)).await?;
                }
                Step::Ask(ask) => {
                    if let Some(turn) = Box::pin(self.ask(ask, now)).await? {
                        return Ok(turn);
                    }
                }
            }
            now = self.client().clock.now();
            step = self.step(now);
        }
    }

    fn step(&self, now: Moment) -> Step {
        let Acquisition { client, lease, .. } = self.acquisition;
        let patience = client.settings.retry_for;
        let Place { cell, ticket, .. } = &self.place;
        client.with(cell, |lane, fx| lane.step(*ticket, *lease, patience, now, fx))
    }

    /// Takes over the parked hold. `None` if it is no longer there, or the client is closed.
    fn take_over(&mut self, now: Moment) -> Option<Held> {
        let acquisition = self.acquisition;
        self.place.enter(acquisition.lease, |lane, ticket, fx| {
            let take = |facts: &mut HoldFacts| acquisition.take_over(facts, now);
            let is_open = !acquisition.client.is_closed();
            is_open.then(|| lane.take_over(ticket, take, now, fx)).flatten()
        })
    }

    /// Resolves when the engine wants another step. Cancel safe.
    fn signalled(&self) -> impl Future<Output = ()> + '_ {
        let Place { cell, ticket, .. } = &self.place;
        poll_fn(move |context| cell.poll_signal(*ticket, context))
    }

    /// Waits for the signal, for `until`, and for the backend.
    async fn wait(&mut self, until: Option<Moment>, listens: bool) -> Result<(), LockError> {
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
            return Ok(());
        }
        if self.place.listener.is_none() {
            let parked = match self.acquisition.mode {
                // A fair waiter only hears of its own turn.
                Mode::Fair => None,
                _ => self.place.cell.lock().listener.take(),
            };
            self.place.listener = Some(parked.unwrap_or_default());
        }
        let number = *self.number.get_or_insert_with(|| self.acquisition.client.draw_number());
        let Acquisition { client, name, mode, .. } = self.acquisition;
        let owner = &self.claimant.owner;
        let Place { cell, ticket, listener: Some(listener), .. } = &mut self.place else {
            return Ok(());
        };
        let request =
            || SubscribeRequest::new(name.clone(), client.hold_id(owner, number)).mode(*mode);
        let signalled = poll_fn(|context| cell.poll_signal(*ticket, context));
        let heard = tokio::select! {
            biased;
            () = signalled => None,
            heard = listener.heard(client, request) => {
                Some(heard.map_err(|error| LockError::from(error.with_lock(name)))?)
            }
            () = end => None,
        };
        cell.ignore_signal(*ticket);
        let now = client.clock.now();
        match heard {
            Some(Heard::Woken) => {
                let jitter = random_fraction();
                client.with(cell, |lane, fx| lane.heard(*ticket, jitter, now, fx));
            }
            Some(Heard::Subscribed) => {
                client.with(cell, |lane, fx| lane.listening(*ticket, fx));
            }
            None => {}
        }
        Ok(())
    }

    /// Asks the backend once. `None` if that decides nothing yet.
    async fn ask(&mut self, ask: Ask, sent: Moment) -> Result<Option<Turn>, LockError> {
        let client = self.client();
        if self.number.is_none() && self.acquisition.mode == Mode::Fair {
            // A subscription is for one hold.
            self.place.listener = None;
        }
        let number = *self.number.get_or_insert_with(|| client.draw_number());
        let id = client.hold_id(&self.claimant.owner, number);
        let mut request = self.acquisition.request(id, self.is_patient);
        if ask.wants_tokens {
            request = request.tokens(TOKENS);
        }
        let mut call = client.backend.acquire(&request);
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        let (answer, is_undone) = match first {
            Poll::Ready(answer) => (answer, false),
            Poll::Pending => {
                self.arm_undo(&request, sent);
                self.pending(&request, sent);
                self.answer(call).await?
            }
        };
        let now = client.clock.now();
        let turn = match answer {
            Ok(AcquireOutcome::Acquired { token }) => {
                self.granted(&request, token, ask, sent, now)?
            }
            Ok(AcquireOutcome::Held { remaining }) => self.refused(&request, remaining, now),
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
            // The undoing may still be on its way, and must not meet what is asked for next.
            self.undo(&request, now);
        }
        Ok(turn)
    }

    /// Bounds a request that is not answered at once, whether or not its task goes on polling it.
    fn pending(&self, request: &AcquireRequest, sent: Moment) {
        let Place { cell, ticket, .. } = &self.place;
        let asked = Box::new((request.undo(), sent.after(request.lease)));
        self.client().with(cell, |lane, fx| {
            if let Some(waiter) = lane.waiter_mut(*ticket) {
                waiter.asked = Some(asked);
            }
            lane.pending(*ticket, sent, fx);
        });
    }

    /// Waits for the answer, unless the client is closed, and no longer than [`ANSWER`]. The second
    /// value says that nobody looked at it for so long that the request was undone.
    async fn answer<T>(
        &self,
        mut call: Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + '_>>,
    ) -> Result<(Result<T, BackendError>, bool), LockError> {
        let (client, Place { cell, ticket, .. }) = (self.client(), &self.place);
        let mut limit = pin!(tokio::time::sleep(ANSWER));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = call.as_mut().poll(context) {
                return Poll::Ready(Ok(answer));
            }
            // Any other signal is answered by the step that follows.
            while cell.poll_signal(*ticket, context).is_ready() {
                if client.is_closed() {
                    return Poll::Ready(Err(self.acquisition.closed()));
                }
            }
            limit.as_mut().poll(context).map(|()| Ok(Err(no_answer())))
        })
        .await;
        let over = cell.look(|lane| {
            let waiter = lane.waiter_mut(*ticket);
            waiter.map(|waiter| (waiter.take_waker(), waiter.asked.take()))
        });
        let is_undone = over.is_none_or(|(_, asked)| asked.is_none());
        Ok((answer?, is_undone))
    }

    /// Arms what undoes `request`: the place in a queue that it asks for is undone in the same way.
    fn arm_undo(&mut self, request: &AcquireRequest, now: Moment) {
        // A place in a queue may outlive the lease that was asked for.
        let latest = now.after(request.lease.max(request.queue.unwrap_or_default()));
        if let Some(Cleanup::Undo(undo)) = self.undo.as_mut().and_then(OnDrop::cleanup) {
            undo.until = latest.max(undo.until);
            return;
        }
        let cell = self.place.cell.clone();
        let undo = Box::new(Undo { cell, request: request.undo(), until: latest });
        self.undo = Some(OnDrop::new(self.client(), Cleanup::Undo(undo)));
    }

    fn disarm_undo(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo.disarm();
        }
    }

    /// Undoes `request`, in the background. What follows has another id.
    fn undo(&mut self, request: &AcquireRequest, now: Moment) {
        self.arm_undo(request, now);
        (self.undo, self.number) = (None, None);
    }

    fn granted(
        &mut self,
        request: &AcquireRequest,
        token: FencingToken,
        ask: Ask,
        sent: Moment,
        now: Moment,
    ) -> Result<Option<Turn>, LockError> {
        let Acquisition { client, lease, .. } = self.acquisition;
        if now >= lease::deadline(sent, lease.duration()) {
            return self.granted_late(request, sent, now).map(|()| None);
        }
        let until = client.lanes.hand_over().map(|time| ask.turn_since.unwrap_or(sent).after(time));
        let grant = Grant::new(sent, *lease, token, request.tokens, until);
        let acquisition = self.acquisition;
        let facts = acquisition.facts(request.hold.clone(), sent);
        let mut is_closed = false;
        let held = self.place.enter(*lease, |lane, ticket, fx| {
            is_closed = client.is_closed();
            let is_open = !is_closed;
            is_open.then(|| lane.granted(ticket, grant, token, facts, fx)).flatten()
        });
        match held {
            Some(held) => {
                self.disarm_undo();
                Ok(Some(Turn::Entered(held)))
            }
            None if is_closed => {
                self.arm_undo(request, now);
                Err(acquisition.closed())
            }
            // It was undone meanwhile. Once more, in case it was carried out after that.
            None => {
                self.undo(request, now);
                Ok(None)
            }
        }
    }

    /// The grant came after its lease had ended: it is undone, and a patient waiter asks again. If
    /// that goes on, or could not be otherwise, the lease is too short.
    fn granted_late(
        &mut self,
        request: &AcquireRequest,
        sent: Moment,
        now: Moment,
    ) -> Result<(), LockError> {
        let Acquisition { client, name, .. } = self.acquisition;
        self.undo(request, now);
        let error = LockError::from(late(request.lease).with_lock(name));
        let is_first = self.late_since.is_none();
        let since = *self.late_since.get_or_insert(now);
        let is_over = !is_first && now.since(since) >= client.settings.retry_for;
        let is_hopeless = lease::deadline(sent, request.lease) <= sent;
        if !self.is_patient || is_over || is_hopeless {
            return Err(error);
        }
        tracing::debug!(%error, "will be asked for again");
        self.last_error = Some(Box::new(error));
        let pause = if is_first { Duration::ZERO } else { self.backoff.next() };
        let Place { cell, ticket, .. } = &self.place;
        client.with(cell, |lane, fx| lane.late(*ticket, pause, now, fx));
        Ok(())
    }

    fn refused(
        &mut self,
        request: &AcquireRequest,
        remaining: Option<Duration>,
        now: Moment,
    ) -> Option<Turn> {
        (self.backoff, self.last_error, self.late_since) = (Backoff::default(), None, None);
        match request.queue {
            // It may have a place in the backend's queue now.
            Some(_) => self.arm_undo(request, now),
            None => self.disarm_undo(),
        }
        // The store's clock ticks in milliseconds: come after the tick, not on it.
        let end = remaining.map(|left| now.after(left.saturating_add(Duration::from_millis(1))));
        let next = now.next_multiple_of(ASK_EVERY);
        let until = end.map_or(next, |end| end.min(next));
        // A place in the queue is kept by asking again in time.
        let kept = request.queue.map_or(until, |queue| now.after(queue / 3));
        let until = until.min(kept);
        let Place { cell, ticket, .. } = &self.place;
        match self.client().with(cell, |lane, fx| lane.refused(*ticket, until, now, fx)) {
            Refused::Waits => None,
            Refused::Over => Some(Turn::Refused),
        }
    }

    /// Bears an error that may pass; any other is returned, and this one as well if nobody in this
    /// lane has had an answer for too long.
    fn failed(
        &mut self,
        request: &AcquireRequest,
        error: BackendError,
        now: Moment,
    ) -> Result<(), LockError> {
        let Acquisition { client, name, .. } = self.acquisition;
        if error.is_outcome_unknown() {
            // A place in a queue goes with it.
            self.undo(request, now);
        } else if request.queue.is_none() {
            self.disarm_undo();
        }
        let is_retryable = error.is_retryable();
        let error = LockError::from(error.with_lock(name));
        if !is_retryable || !self.is_patient {
            return Err(error);
        }
        let pause = self.backoff.next();
        let Place { cell, ticket, .. } = &self.place;
        let since = client.with(cell, |lane, fx| lane.failed(*ticket, &error, pause, now, fx));
        if now.since(since) >= client.settings.retry_for {
            return Err(error);
        }
        tracing::debug!(%error, "attempt failed, will be retried");
        self.last_error = Some(Box::new(error));
        Ok(())
    }

    fn misunderstood(&self, outcome: AcquireOutcome) -> LockError {
        let lock = &self.acquisition.name;
        let message = match (outcome, self.acquisition.mode) {
            (AcquireOutcome::TooMany { limit }, Mode::Permit { count: asked, .. }) => {
                return LockError::TooManyPermits { lock: lock.clone(), asked, limit };
            }
            (AcquireOutcome::TooMany { .. }, _) => "a lock was answered as a semaphore",
            _ => "an outermost acquisition was answered as a nested one",
        };
        BackendError::new(BackendErrorKind::Protocol, message).with_lock(lock).into()
    }

    /// The time is up: leaves, and returns when that is done, with the error that it was struggling
    /// with.
    pub(super) async fn give_up(mut self) -> Option<Box<LockError>> {
        let error = self.last_error.take();
        let undo = self.undo.take().and_then(OnDrop::disarm);
        let Some(Cleanup::Undo(undo)) = undo else { return error };
        // Before the place is left, so that the next one in line waits for it.
        let release = ReleaseWork::undo(self.client(), *undo);
        drop(self);
        release.carry_out_within(LEAVE_WITHIN).await;
        error
    }

    /// A task that waits for a lock which it holds itself under another owner waits for ever.
    fn warn_of_deadlock(&mut self, now: Moment) {
        let is_permit = matches!(self.acquisition.mode, Mode::Permit { .. });
        if is_permit || !self.is_patient || std::mem::replace(&mut self.has_warned, true) {
            return;
        }
        let Acquisition { name, site, .. } = self.acquisition;
        let task = TaskKey::current();
        let held_since = self.place.cell.look(|lane| {
            let own = lane.holds().iter().find(|hold| {
                hold.facts.task == task && hold.owner != self.claimant.owner && hold.is_live(now)
            });
            own.map(|hold| hold.facts.site)
        });
        if let Some(held_since) = held_since {
            tracing::warn!(
                lock = %name, %held_since, waiting_at = %site,
                "this task waits for a lock that it holds itself under another owner, which is \
                 probably a deadlock; acquire both in one scope, with `run` or with `owned_by`"
            );
        }
    }
}

/// The error of a grant that came when its lease had ended.
pub(super) fn late(lease: Duration) -> BackendError {
    let message =
        format!("the grant came only after its lease of {lease:?} had ended; use a longer lease");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The error of a call that was not answered in time.
pub(super) fn no_answer() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "the backend has given no answer")
}
