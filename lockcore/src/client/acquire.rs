//! The course of an [`Acquisition`], until its hold is entered.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::future::Either;
use tracing::{Instrument, Span};

use super::{
    acquisition::Acquisition,
    held::Held,
    lanes::{LaneCell, WaiterSlot},
    place::QueuePlace,
    waiting::{Contender, TurnEnd},
};
use crate::{
    LockError, Owner,
    backend::Capabilities,
    engine::{Asker, MAX_HOLD_COUNT, Nesting, Step},
    time::{Lease, Moment},
};

/// A waiter with a time limit of this length or more is reported as waiting forever: nobody watches
/// a deadlock for that long.
const LONGEST_LIMIT: Duration = Duration::from_secs(86_400);

impl Acquisition {
    /// Acquires. `None` if the lock is not free and `is_patient` is false.
    pub(crate) async fn acquire(&self, is_patient: bool) -> Result<Option<Held>, LockError> {
        // As tokio's own: a task that goes on acquiring without ever having to wait lets others run
        // now and then.
        tokio::task::consume_budget().await;
        // A separate statement, so that its temporaries take no room while this waits.
        let asking = match self.enter_or_ask(is_patient)? {
            Either::Left(held) => return Ok(Some(held)),
            Either::Right(asking) => asking,
        };
        self.measured().during(asking).await
    }

    /// Enters at once, or returns a future that asks. The future is boxed because an acquisition
    /// that enters at once needs no room for it.
    #[expect(clippy::type_complexity, reason = "it is said once, and a name would not explain it")]
    fn enter_or_ask(
        &self,
        is_patient: bool,
    ) -> Result<
        Either<Held, Pin<Box<impl Future<Output = Result<Option<Held>, LockError>> + Send>>>,
        LockError,
    > {
        let owner = self.known_owner();
        if let Some(held) = self.enter_at_once(owner.as_ref())? {
            return Ok(Either::Left(held));
        }
        let asker = self.asker(owner, is_patient);
        Ok(Either::Right(Box::pin(async move {
            let (_acquiring, mut waiting) = (self.client.acquiring(), None);
            self.acquire_in_turn(&asker, &mut waiting).await
        })))
    }

    /// Acquires within `limit`. If the time runs out, everything is given up before this returns:
    /// the places in the queues here and at the backend, and whatever a request under way may be
    /// granted.
    pub(crate) async fn acquire_within(&self, limit: Duration) -> Result<Held, LockError> {
        let timeout = || LockError::Timeout { lock: self.name.clone(), waited: limit };
        if limit.is_zero() {
            return self.acquire(false).await?.ok_or_else(timeout);
        }
        tokio::task::consume_budget().await;
        let owner = self.known_owner();
        if let Some(held) = self.enter_at_once(owner.as_ref())? {
            return Ok(held);
        }
        self.client.require_runtime(&self.name)?;
        let asker = Asker { has_limit: limit < LONGEST_LIMIT, ..self.asker(owner, true) };
        let asking = Box::pin(async move {
            // Counted until it has left, because `close()` waits for that.
            let _acquiring = self.client.acquiring();
            let mut waiting = None;
            let acquired = self.acquire_in_turn(&asker, &mut waiting);
            // An over-long time-out counts as none; tokio caps it.
            if let Ok(acquired) = tokio::time::timeout(limit, acquired).await {
                return acquired?.ok_or_else(timeout);
            }
            let error = match waiting.take() {
                Some(waiting) => Box::pin(waiting.give_up()).await,
                None => None,
            };
            Err(error.map_or_else(timeout, |error| *error))
        });
        self.measured().during(asking).await
    }

    /// Enters the hold of an owner that is inside already, if that takes no further work.
    fn enter_at_once(&self, owner: Option<&Owner>) -> Result<Option<Held>, LockError> {
        let Some(owner) = owner else { return Ok(None) };
        if self.client.is_closed() {
            return Err(self.closed());
        }
        let client = &self.client;
        let Some(cell) = client.lanes.find(&self.name, self.mode.kind()) else { return Ok(None) };
        // The hold may come from a runtime that is gone.
        client.ensure_running(&self.name)?;
        let now = client.clock.now();
        // This wakes nobody, so nothing comes between the count and the guard.
        let entered = client.with(&cell, |lane, fx| {
            match lane.enter(owner, self.mode, self.lease, now, fx) {
                Some(Nesting::Entered(number)) => lane.hold(number).map(Held::identity),
                _ => None,
            }
        });
        let Some(identity) = entered else { return Ok(None) };
        let held = Held::of(client, cell, identity, self.lease);
        self.report_nested(&held);
        Ok(Some(held))
    }

    fn acquire_in_turn<'a, 'w>(
        &'a self,
        asker: &'a Asker,
        waiting: &'w mut Option<Contender<'a>>,
    ) -> impl Future<Output = Result<Option<Held>, LockError>> + Send + 'w
    where
        'a: 'w,
    {
        match self.span(asker) {
            // Boxed, so that it takes no room if nobody listens.
            Some(span) => Either::Left(Box::pin(self.run_in(span, asker, waiting))),
            None => Either::Right(self.run(asker, waiting)),
        }
    }

    /// As [`run`](Self::run), within a span.
    async fn run_in<'a>(
        &'a self,
        span: Span,
        asker: &'a Asker,
        waiting: &mut Option<Contender<'a>>,
    ) -> Result<Option<Held>, LockError> {
        let (start, parent) = (self.client.clock.now(), Span::current());
        let acquired = self.run(asker, waiting).instrument(span.clone()).await;
        if let Ok(Some(held)) = &acquired {
            self.report_acquired((&span, &parent), asker, held, start);
        }
        acquired
    }

    #[expect(clippy::manual_async_fn, reason = "an `async fn` has room for its arguments twice")]
    fn run<'a, 'w>(
        &'a self,
        asker: &'a Asker,
        waiting: &'w mut Option<Contender<'a>>,
    ) -> impl Future<Output = Result<Option<Held>, LockError>> + Send + 'w
    where
        'a: 'w,
    {
        async move {
            asker.owner.check()?;
            self.client.require(self.mode, &self.name)?;
            self.require_replicas()?;
            self.ensure_renewed()?;
            loop {
                let now = self.client.clock.now();
                let (cell, step) = self.arrive(asker, now, waiting)?;
                let end = match waiting.as_mut() {
                    Some(current) => {
                        // The place in the queue keeps the cell.
                        drop(cell);
                        current.take_turn(step, now).await
                    }
                    None => match step {
                        Step::Inside(inside) => Ok(TurnEnd::Inside(cell, inside)),
                        _ => Ok(TurnEnd::Refused),
                    },
                };
                let mut has_waited = waiting.take().is_some_and(|current| current.has_waited);
                // After a wait, the runtime of the background task may have ended.
                let look_again = |has_waited| match has_waited {
                    true => self.ensure_renewed(),
                    false => Ok(()),
                };
                let entering = match end? {
                    TurnEnd::Entered(held) => {
                        look_again(has_waited)?;
                        return Ok(Some(held));
                    }
                    TurnEnd::Refused => return Ok(None),
                    TurnEnd::Inside(cell, inside) => {
                        has_waited |= !matches!(inside, Nesting::Entered(_));
                        Box::pin(self.enter(cell, inside, asker))
                    }
                };
                if let Some(held) = entering.await? {
                    look_again(has_waited)?;
                    return Ok(Some(held));
                }
            }
        }
    }

    fn require_replicas(&self) -> Result<(), LockError> {
        let capabilities = self.client.backend.capabilities();
        if self.replicas.is_none() || capabilities.contains(Capabilities::REPLICAS) {
            return Ok(());
        }
        Err(LockError::Unsupported { lock: self.name.clone(), what: "replicas" })
    }

    /// Makes sure that the background task runs. A fixed lease does not need it.
    fn ensure_renewed(&self) -> Result<(), LockError> {
        match self.lease {
            Lease::Renewed(_) => self.client.ensure_running(&self.name),
            Lease::Fixed(_) => {
                let _ = self.client.ensure_running(&self.name);
                Ok(())
            }
        }
    }

    /// Enters the owner's hold. `None` if the hold has ended: then the acquisition starts over.
    async fn enter(
        &self,
        cell: Arc<LaneCell>,
        inside: Nesting,
        asker: &Asker,
    ) -> Result<Option<Held>, LockError> {
        let lock = || self.name.clone();
        let asked = pin!(async {
            match inside {
                // Without delay: the guard is counted already.
                Nesting::Entered(number) => {
                    Ok(Held::new(&self.client, cell.clone(), number, self.lease))
                }
                Nesting::Grow(number) => self.grow(&cell, number, asker.is_patient).await,
                Nesting::Within(write) => self.read_within(&cell, write, asker).await,
                Nesting::Upgrade => Err(LockError::Upgrade { lock: lock() }),
                Nesting::Lost(reason) => Err(LockError::Lost { lock: lock(), reason }),
                Nesting::TooDeep => Err(LockError::TooDeep { lock: lock(), limit: MAX_HOLD_COUNT }),
            }
        });
        if let Nesting::Entered(_) = inside {
            return asked.await;
        }
        self.client.unless_closed(&self.name, asked).await
    }

    /// Brings the acquisition to its lane, and returns the first step. The acquisition is in
    /// `waiting` from then on, unless it ends at once.
    fn arrive<'a>(
        &'a self,
        asker: &'a Asker,
        now: Moment,
        waiting: &mut Option<Contender<'a>>,
    ) -> Result<(Arc<LaneCell>, Step), LockError> {
        let client = &self.client;
        let lane = client.lanes.at(&self.name, self.mode.kind());
        let (cell, arrived) = client.in_lane(lane, |slot, fx| {
            let lane = &mut slot.lane;
            if client.is_closed() {
                return Err(self.closed());
            }
            let here = lane.patient();
            let slot = WaiterSlot::default();
            let ticket = match lane.arrive(asker.clone(), self.lease, slot, now, fx) {
                Ok(ticket) => ticket,
                Err(step) => return Ok((None, step)),
            };
            if asker.is_patient
                && let Err(error) = client.waiters.count(here, &self.name)
            {
                lane.leave(ticket, now, fx);
                return Err(error);
            }
            let patience = client.settings.retry_for;
            Ok((Some(ticket), lane.step(ticket, self.lease, patience, now, fx)))
        });
        let (queued, step) = arrived?;
        if let Some(ticket) = queued {
            let place = QueuePlace::new(self, cell.clone(), ticket, asker.is_patient);
            *waiting = Some(Contender::new(asker, place, self.measured().waiter(now)));
        }
        Ok((cell, step))
    }
}
