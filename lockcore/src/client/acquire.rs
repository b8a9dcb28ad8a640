//! [`Acquisition`]: one call of `acquire`, from what was asked for to the hold that was entered.

use std::{panic::Location, pin::pin, sync::Arc, time::Duration};

use tracing::{Instrument, Span};

use super::{
    held::Held,
    lanes::{HoldFacts, LaneCell, Slot, WaiterSlot},
    place::QueuePlace,
    shared::Client,
    waiters::Counted,
    waiting::{Contender, TurnEnd},
};
use crate::{
    LockError, LockName, Mode, Owner,
    backend::{AcquireRequest, HoldId},
    engine::{Arrival, Asker, Effects, MAX_HOLD_COUNT, Nesting, Step, Ticket},
    task::TaskKey,
    time::{Lease, Moment},
};

/// What the user asked for.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) client: Arc<Client>,
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) lease: Lease,
    /// The owner given with `owned_by`.
    pub(crate) owner: Option<Owner>,
    pub(crate) site: &'static Location<'static>,
}

/// The owner for which an acquisition acquires.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    pub(super) owner: Owner,
    /// Nobody else has this owner.
    pub(super) is_fresh: bool,
}

/// How an acquisition that arrived goes on.
enum Arrived<'a> {
    Inside(Arc<LaneCell>, Nesting),
    Contended,
    Queued(QueuePlace<'a>, Step),
}

/// The same, before it is known in which cell.
enum Came<'a> {
    Inside(Nesting),
    Contended,
    Queued(Ticket, Option<Counted<'a>>, Step),
}

impl Acquisition {
    /// Acquires. `None` if the lock is not free and `is_patient` is false.
    pub(crate) async fn acquire(&self, is_patient: bool) -> Result<Option<Held>, LockError> {
        self.begin().await;
        if let Some(held) = self.enter_at_once()? {
            return Ok(Some(held));
        }
        let _acquiring = self.client.acquiring();
        self.acquire_in_turn(is_patient, &mut None).await
    }

    /// Acquires within `limit`. If the time runs out, everything is left before this answers: the
    /// place in the queue, here and at the backend, and what a request under way may get.
    pub(crate) async fn acquire_within(&self, limit: Duration) -> Result<Held, LockError> {
        let timeout = || LockError::Timeout { lock: self.name.clone(), waited: limit };
        self.begin().await;
        if let Some(held) = self.enter_at_once()? {
            return Ok(held);
        }
        if limit.is_zero() {
            let tried = Box::pin(async {
                let _acquiring = self.client.acquiring();
                self.acquire_in_turn(false, &mut None).await
            });
            return tried.await?.ok_or_else(timeout);
        }
        Box::pin(async {
            // Until it has left: `close()` waits for that.
            let _acquiring = self.client.acquiring();
            let mut waiting = None;
            let acquired = self.acquire_in_turn(true, &mut waiting);
            // An over-long time-out is none; tokio caps it.
            if let Ok(acquired) = tokio::time::timeout(limit, acquired).await {
                return acquired?.ok_or_else(timeout);
            }
            let error = match waiting.take() {
                Some(waiting) => Box::pin(waiting.give_up()).await,
                None => None,
            };
            Err(error.map_or_else(timeout, |error| *error))
        })
        .await
    }

    /// As tokio's own: a task that goes on acquiring without ever having to wait lets others run
    /// now and then.
    async fn begin(&self) {
        tokio::task::consume_budget().await;
    }

    /// Enters the hold of an owner that is in already, if nothing else is to be done for it.
    fn enter_at_once(&self) -> Result<Option<Held>, LockError> {
        let Some(owner) = self.known_owner() else { return Ok(None) };
        if self.client.is_closed() {
            return Err(self.closed());
        }
        let client = &self.client;
        let Some(cell) = client.lanes.find(&self.name, self.mode.kind()) else { return Ok(None) };
        // The hold may be of a runtime that is gone.
        client.ensure_running(&self.name)?;
        let now = client.clock.now();
        let held = client.with(&cell, |lane, fx| {
            match lane.enter(&owner, self.mode, self.lease, now, fx) {
                Some(Nesting::Entered(number)) => {
                    lane.hold_mut(number).map(|hold| Held::of(client, &cell, hold, self.lease))
                }
                _ => None,
            }
        });
        if let Some(held) = &held {
            let (token, hold_count) = (held.token, || held.hold_count());
            tracing::debug!(lock = %self.name, %token, hold_count = hold_count(), "nested");
        }
        Ok(held)
    }

    /// The owner of the acquisition, if it is not to be a fresh one.
    fn known_owner(&self) -> Option<Owner> {
        self.owner.clone().or_else(Owner::current)
    }

    async fn acquire_in_turn<'a>(
        &'a self,
        is_patient: bool,
        waiting: &mut Option<Contender<'a>>,
    ) -> Result<Option<Held>, LockError> {
        let claimant = match self.known_owner() {
            Some(owner) => Claimant { owner, is_fresh: false },
            None => Claimant { owner: Owner::new(), is_fresh: true },
        };
        let span = tracing::debug_span!(
            "lockcore.acquire", lock = %self.name, owner = %claimant.owner, mode = %self.mode,
            wait = tracing::field::Empty, token = tracing::field::Empty,
        );
        if span.is_disabled() {
            return self.run(claimant, is_patient, waiting).await;
        }
        Box::pin(self.run_in(span, claimant, is_patient, waiting)).await
    }

    /// As [`run`](Self::run), for those who listen.
    async fn run_in<'a>(
        &'a self,
        span: Span,
        claimant: Claimant,
        is_patient: bool,
        waiting: &mut Option<Contender<'a>>,
    ) -> Result<Option<Held>, LockError> {
        let (start, parent) = (self.client.clock.now(), Span::current());
        let owner = claimant.owner.clone();
        let acquired = self.run(claimant, is_patient, waiting).instrument(span.clone()).await;
        if let Ok(Some(held)) = &acquired {
            let wait = self.client.clock.now().since(start);
            span.record("wait", tracing::field::debug(wait));
            span.record("token", u64::from(held.token));
            let token = held.token;
            tracing::debug!(parent: &span, lock = %self.name, %token, ?wait, "acquired");
            let hold = tracing::debug_span!(
                parent: &parent, "lockcore.hold", lock = %self.name, owner = %owner,
                token = %held.token, mode = %self.mode
            );
            held.cell.look_at(held.number, |entered| {
                entered.facts.span.get_or_insert_with(|| Box::new(hold));
            });
        }
        acquired
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "an `async fn` has room for its arguments twice, and this is what waits"
    )]
    fn run<'a, 'w>(
        &'a self,
        claimant: Claimant,
        is_patient: bool,
        waiting: &'w mut Option<Contender<'a>>,
    ) -> impl Future<Output = Result<Option<Held>, LockError>> + Send + 'w
    where
        'a: 'w,
    {
        async move {
            claimant.owner.check()?;
            self.client.require(self.mode, &self.name)?;
            self.ensure_renewed()?;
            loop {
                let now = self.client.clock.now();
                let (cell, inside) = match self.arrive(&claimant, is_patient, now)? {
                    Arrived::Inside(cell, inside) => (cell, inside),
                    Arrived::Contended => return Ok(None),
                    Arrived::Queued(place, step) => {
                        let cell = place.cell.clone();
                        *waiting = Some(Contender::new(self, claimant.clone(), is_patient, place));
                        let Some(current) = waiting else { continue };
                        let turn = current.take_turn(step, now).await;
                        *waiting = None;
                        match turn? {
                            TurnEnd::Entered(held) => {
                                // The runtime of the background may have ended during the wait.
                                self.ensure_renewed()?;
                                return Ok(Some(held));
                            }
                            TurnEnd::Refused => return Ok(None),
                            TurnEnd::Inside(inside) => (cell, inside),
                        }
                    }
                };
                // At once: the guard is counted already.
                if let Nesting::Entered(number) = inside {
                    return Ok(Held::new(&self.client, &cell, number, self.lease));
                }
                let entered = Box::pin(self.enter(&cell, inside, &claimant, is_patient)).await?;
                if entered.is_some() {
                    return Ok(entered);
                }
            }
        }
    }

    /// Makes sure that the background runs. A fixed lease can do without.
    fn ensure_renewed(&self) -> Result<(), LockError> {
        match self.lease {
            Lease::Renewed(_) => self.client.ensure_running(&self.name),
            Lease::Fixed(_) => {
                let _ = self.client.ensure_running(&self.name);
                Ok(())
            }
        }
    }

    /// Enters what the owner holds. `None` if that has ended: then the acquisition begins anew.
    async fn enter(
        &self,
        cell: &Arc<LaneCell>,
        inside: Nesting,
        claimant: &Claimant,
        is_patient: bool,
    ) -> Result<Option<Held>, LockError> {
        let lock = || self.name.clone();
        let entered = pin!(async {
            match inside {
                Nesting::Entered(number) => Ok(Held::new(&self.client, cell, number, self.lease)),
                Nesting::Grow(number) => self.grow(cell, number, is_patient).await,
                Nesting::Within(write) => self.read_within(cell, write, claimant, is_patient).await,
                Nesting::Upgrade => Err(LockError::Upgrade { lock: lock() }),
                Nesting::Lost(reason) => Err(LockError::Lost { lock: lock(), reason }),
                Nesting::TooDeep => Err(LockError::TooDeep { lock: lock(), limit: MAX_HOLD_COUNT }),
            }
        });
        self.client.unless_closed(&self.name, entered).await
    }

    /// Brings the acquisition to its lane.
    fn arrive(
        &self,
        claimant: &Claimant,
        is_patient: bool,
        now: Moment,
    ) -> Result<Arrived<'_>, LockError> {
        let client = &self.client;
        let asker = Asker {
            owner: claimant.owner.clone(),
            has_fresh_owner: claimant.is_fresh,
            mode: self.mode,
            is_patient,
            takes_over: self.takes_over(&claimant.owner),
        };
        let lane = client.lanes.at(&self.name, self.mode.kind());
        let arrive = |slot: &mut Slot, fx: &mut Effects<HoldFacts>| {
            let lane = &mut slot.lane;
            if client.is_closed() {
                return Err(self.closed());
            }
            let here = lane.patient();
            let arrival = lane.arrive(asker, self.lease, WaiterSlot::default(), now, fx);
            let ticket = match arrival {
                Arrival::Inside(inside) => return Ok(Came::Inside(inside)),
                Arrival::Contended => return Ok(Came::Contended),
                Arrival::Queued(ticket) => ticket,
            };
            let counted = match is_patient.then(|| client.waiters.count(here, &self.name)) {
                Some(Err(error)) => {
                    lane.leave(ticket, now, fx);
                    return Err(error);
                }
                Some(Ok(counted)) => Some(counted),
                None => None,
            };
            let patience = client.settings.retry_for;
            Ok(Came::Queued(ticket, counted, lane.step(ticket, self.lease, patience, now, fx)))
        };
        let (cell, came) = client.in_lane(lane, arrive);
        Ok(match came? {
            Came::Inside(inside) => Arrived::Inside(cell, inside),
            Came::Contended => Arrived::Contended,
            Came::Queued(ticket, counted, step) => {
                Arrived::Queued(QueuePlace::new(client, cell, ticket, self.mode, counted), step)
            }
        })
    }

    /// Whether `owner` could take over a hold of another task. What a named owner has is stored
    /// under its name, and a fixed lease counts from its own beginning.
    fn takes_over(&self, owner: &Owner) -> bool {
        self.client.lanes.hand_over().is_some()
            && self.mode == Mode::Exclusive
            && owner.name().is_none()
            && matches!(self.lease, Lease::Renewed(_))
    }

    pub(super) fn closed(&self) -> LockError {
        LockError::Closed { lock: self.name.clone() }
    }

    /// What the client keeps with a hold of this acquisition.
    pub(super) fn facts(&self, id: HoldId, acquired_at: Moment) -> HoldFacts {
        let (site, task) = (self.site, TaskKey::current());
        HoldFacts { id, site, task, acquired_at, span: None, watch: None }
    }

    /// Makes the facts of a hold that is handed over those of this acquisition.
    pub(super) fn take_over(&self, facts: &mut HoldFacts, now: Moment) {
        (facts.site, facts.task, facts.acquired_at) = (self.site, TaskKey::current(), now);
    }

    /// A request of this acquisition.
    pub(super) fn request(&self, id: HoldId, is_patient: bool) -> AcquireRequest {
        let queues = is_patient && matches!(self.mode, Mode::Fair | Mode::Write);
        let queue = queues.then_some(self.client.settings.queue_timeout);
        AcquireRequest::new(self.name.clone(), id, self.lease.duration())
            .mode(self.mode)
            .queue(queue)
    }
}
