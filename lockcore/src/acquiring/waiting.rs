//! The wait of one acquisition that has queued: try, subscribe, try again, sleep until woken.

use std::{future::Future, num::NonZeroU64, pin::pin};

use crate::{
    BackendError, LockError, Mode,
    acquiring::TaskKey,
    acquiring::acquisition::{Acquisition, Attempt, Turn, Undo},
    acquiring::retry::Backoff,
    acquiring::waiters::{Place, Step},
    backend::{AcquireRequest, SubscribeRequest},
    leases::clock::Moment,
    store::ANSWER,
};

/// How many holds are made of one grant at most, each with a token of its own. Tokens follow the server's clock in microseconds
/// and must not outrun it for long, or they would fall after a failover: it takes two round trips to use up this many.
const TOKENS: u32 = 256;

/// An acquisition on its way to the head of its lane, and there. Dropped, it leaves nothing: neither here nor at the backend.
pub(crate) struct Waiting<'a> {
    acquisition: &'a Acquisition,
    /// What is in the id of its hold. Drawn when it is first sent: ids of named owners are compared for their age.
    number: Option<NonZeroU64>,
    /// What the backend has of one that queues there, which must not outlive the waiting.
    queued: Option<Box<Undo<'a, AcquireRequest>>>,
    place: Place<'a>,
    backoff: Backoff,
    /// Between attempts to subscribe.
    deaf: Backoff,
    warned: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(acquisition: &'a Acquisition, place: Place<'a>) -> Self {
        let backoff = Backoff::default();
        Self {
            acquisition,
            number: None,
            queued: None,
            place,
            backoff,
            deaf: Backoff::default(),
            warned: false,
        }
    }

    /// Waits for the turn, and takes it. It is `now` when it begins.
    #[allow(
        clippy::manual_async_fn,
        reason = "an `async fn` has room for its arguments twice, and this is what waits"
    )]
    pub(crate) fn take_turn(
        &mut self,
        mut now: Moment,
    ) -> impl Future<Output = Result<Turn, LockError>> + Send {
        async move {
            loop {
                // Whoever waits for a signal gets one when the client is closed.
                if self.acquisition.client.is_closed() {
                    return Err(self.acquisition.closed());
                }
                let mut rests = false;
                match self.place.step(now, self.acquisition.client.settings.retry_for) {
                    Step::TakeOver(parked) => {
                        if let Some(guard) =
                            self.acquisition.take_over(&mut self.place, &parked, now)?
                        {
                            return Ok(Turn::Granted(guard));
                        }
                    }
                    Step::Await if self.place.waits() => rests = true,
                    // In a box: most of those who wait are not first, and need no room for this.
                    step => {
                        if let Some(turn) =
                            Box::pin(self.take_step_unless_closed(step, now)).await?
                        {
                            return Ok(turn);
                        }
                    }
                }
                if rests {
                    self.warn_of_deadlock(now);
                    self.place.signal().given().await;
                }
                now = self.acquisition.client.store.clock.now();
            }
        }
    }

    async fn take_step_unless_closed(
        &mut self,
        step: Step,
        now: Moment,
    ) -> Result<Option<Turn>, LockError> {
        let Acquisition { client, name, .. } = self.acquisition;
        client.unless_closed(name, pin!(self.take_step(step, now))).await
    }

    /// Does what is to be done next. `None` if that does not end the wait.
    async fn take_step(&mut self, step: Step, now: Moment) -> Result<Option<Turn>, LockError> {
        match step {
            Step::Enter(inside) => return Ok(Some(Turn::Enter(inside))),
            Step::GiveUp(None) => return Ok(Some(Turn::Refused)),
            Step::GiveUp(Some(error)) => return Err(*error),
            Step::TakeOver(_) => {}
            Step::Await => {
                let first = self.place.first();
                let signalled = tokio::time::timeout(ANSWER, self.place.signal().given()).await;
                if signalled.is_err() && self.place.first() == first {
                    // Somebody is first who is not driven on.
                    return Ok(Some(Turn::Refused));
                }
            }
            Step::AwaitRelease => {
                if tokio::time::timeout(ANSWER, self.place.signal().given()).await.is_err() {
                    self.place.ignore_releases();
                }
            }
            Step::Leave { until } => self.acquisition.client.store.clock.sleep_until(until).await,
            Step::Try { news, is_alone, since } => {
                match self.attempt(news, is_alone, since, now).await? {
                    Some(Attempt::Granted(hold)) => {
                        if let Some(queued) = self.queued.take() {
                            queued.disarm();
                        }
                        let acquisition = self.acquisition;
                        let guard = acquisition.enter_in_turn(&mut self.place, hold)?;
                        return Ok(Some(Turn::Granted(guard)));
                    }
                    Some(Attempt::Refused { .. }) => return Ok(Some(Turn::Refused)),
                    None => {}
                }
            }
            Step::Wait { until } => {
                self.warn_of_deadlock(now);
                self.rest(until).await?;
            }
        }
        Ok(None)
    }

    /// Asks the backend once. `None` if that decides nothing yet.
    async fn attempt(
        &mut self,
        news: u64,
        is_alone: bool,
        since: Option<Moment>,
        sent: Moment,
    ) -> Result<Option<Attempt>, LockError> {
        let client = &self.acquisition.client;
        if self.number.is_none() && self.acquisition.mode == Mode::Fair {
            self.place.forget_wakeups();
        }
        let number = *self.number.get_or_insert_with(|| client.draw_number());
        let owner = self.place.owner();
        let mut request =
            self.acquisition.request(client.hold_id(owner, number), self.place.waits());
        if !is_alone && self.acquisition.heir(owner).is_some() {
            // For those behind it.
            request = request.tokens(TOKENS);
        }
        match self.acquisition.attempt(owner, &request, self.place.cell(), since, sent).await {
            Ok(granted @ Attempt::Granted(..)) => Ok(Some(granted)),
            Ok(refused) if !self.place.waits() => {
                self.answered();
                Ok(Some(refused))
            }
            Ok(Attempt::Refused { until }) => {
                if request.queue.is_some() && self.queued.is_none() {
                    self.queued = Some(Box::new(Undo::of(client, request, self.place.cell())));
                }
                self.answered();
                self.place.refused(news, until);
                Ok(None)
            }
            Err(error) if !self.place.waits() => Err(error),
            Err(error) => {
                if matches!(&error, LockError::Backend(cause) if cause.is_outcome_unknown()) {
                    // The failed attempt is being undone under its id, and a place in a queue with it.
                    self.queued = None;
                    self.number = None;
                }
                self.bear(error).await.map(|()| None)
            }
        }
    }

    /// Sleeps until a wake-up, a local event, or `until`. A subscription that cannot be made does not make the sleep longer.
    async fn rest(&mut self, until: Moment) -> Result<(), LockError> {
        match self.sleep(until).await {
            Ok(()) => {}
            // Deaf, but not without answers: after a pause the lock is asked for again, which tells the one from the other.
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, "subscription failed, will be retried");
                let pause = self.deaf.next();
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(pause) => {}
                    () = self.acquisition.client.store.clock.sleep_until(until) => {}
                }
                self.place.news();
            }
            Err(error) => return Err(error.with_lock(&self.acquisition.name).into()),
        }
        Ok(())
    }

    async fn sleep(&mut self, until: Moment) -> Result<(), BackendError> {
        let Acquisition { client, name, mode, .. } = self.acquisition;
        let store = &client.store;
        let owner = self.place.owner();
        let (wakeups, signal) = self.place.wakers();
        let Some(wakeups) = wakeups else {
            let number = *self.number.get_or_insert_with(|| client.draw_number());
            let request =
                SubscribeRequest::new(name.clone(), client.hold_id(owner, number)).mode(*mode);
            tokio::select! {
                biased;
                wakeups = store.answer(store.backend.subscribe(&request)) => self.place.subscribed(wakeups?),
                () = store.clock.sleep_until(until) => self.place.news(),
            }
            return Ok(());
        };
        tokio::select! {
            biased;
            () = wakeups.woken() => self.place.woken(store.clock.now()),
            () = signal.given() => {}
            () = store.clock.sleep_until(until) => self.place.news(),
        }
        Ok(())
    }

    fn answered(&mut self) {
        self.backoff = Backoff::default();
        self.place.answered();
        self.acquisition.is_troubled_by(None);
    }

    /// Pauses after `error`, or returns it if it will not pass, or if nobody of this lane has had an answer for too long.
    async fn bear(&mut self, error: LockError) -> Result<(), LockError> {
        let client = &self.acquisition.client;
        let now = client.store.clock.now();
        match &error {
            LockError::Backend(cause) if cause.is_retryable() => {
                let since = self.place.failed(now, &error);
                if now.since(since) >= client.settings.retry_for {
                    return Err(error);
                }
                tracing::debug!(%error, "attempt failed, will be retried");
                self.acquisition.is_troubled_by(Some(error));
                tokio::time::sleep(self.backoff.next()).await;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// A task that waits for a lock which it holds itself, under another owner, waits for ever.
    fn warn_of_deadlock(&mut self, now: Moment) {
        let is_permit = matches!(self.acquisition.mode, Mode::Permit { .. });
        if is_permit || !self.place.waits() || std::mem::replace(&mut self.warned, true) {
            return;
        }
        let Acquisition { name, site, .. } = self.acquisition;
        if let Some(hold) = self.place.held_by(TaskKey::current(), now) {
            tracing::warn!(
                lock = %name, held_since = %hold.site, waiting_at = %site,
                "this task waits for a lock that it holds itself under another owner, which is probably a deadlock; \
                 acquire both in one scope, with `run` or with `owned_by`"
            );
        }
    }
}
