//! One acquisition: nest where the owner holds the lock already, else queue; and each single attempt at the backend. The waiting in
//! between is in `waiting.rs`.

use std::{
    borrow::Borrow,
    future::Future,
    panic::Location,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tracing::{Instrument, Span};

use crate::{
    BackendError, BackendErrorKind, Lock, LockError, LockGuard, LockName, LossReason, Mode, Owner,
    acquiring::waiters::{Arrival, Cell, Inside, Lane, Newcomer, Place},
    acquiring::waiting::Waiting,
    backend::{AcquireOutcome, AcquireRequest, HoldId},
    client::Client,
    leases::background::Job,
    leases::clock::Moment,
    leases::hold::{Entry, Hold, Origin, Tenure},
    leases::lease::{self, Lease},
    leases::renewal,
};

/// How often the backend is asked again after a refusal, if nothing is heard. Locks that others have written without an expiry have no
/// end, and the end that was told is wrong when the backend's clock is set.
///
/// All who wait do so at the same moments, so that a backend can answer them together.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// What the user asked for.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) client: Arc<Client>,
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) lease: Lease,
    /// The one given with `owned_by`.
    pub(crate) owner: Option<Owner>,
    pub(crate) site: &'static Location<'static>,
    /// Where it is told what it is struggling with, if somebody wants to know.
    pub(crate) trouble: Option<Trouble>,
    /// Where the caller was when the acquisition began to run, if anybody listens.
    pub(crate) caller: Option<Box<Span>>,
}

/// How the wait of one that has queued ended.
pub(crate) enum Turn {
    Granted(LockGuard),
    Refused,
    /// Its owner got the lock by another acquisition.
    Enter(Inside),
}

/// How one attempt ended.
pub(crate) enum Attempt {
    Granted(Arc<Hold>),
    Refused { until: Moment },
}

impl Acquisition {
    /// Acquires, or returns `None` if the lock is not free and `waits` is false.
    pub(crate) async fn acquire(&mut self, waits: bool) -> Result<Option<LockGuard>, LockError> {
        // As tokio's own: a task that goes on acquiring without ever having to wait lets others run now and then.
        tokio::task::consume_budget().await;
        if let Some(guard) = self.enter_at_once()? {
            return Ok(Some(guard));
        }
        // In a box: a task that does not wait now need not have room for it.
        Box::pin(self.acquire_in_turn(waits)).await
    }

    /// Enters the hold of an owner that is in already, if nothing else is to be done for it.
    fn enter_at_once(&self) -> Result<Option<LockGuard>, LockError> {
        // Who listens is told of it in full.
        if tracing::enabled!(tracing::Level::DEBUG) {
            return Ok(None);
        }
        let Some(owner) = self.known_owner() else { return Ok(None) };
        if self.client.is_closed() {
            return Err(self.closed());
        }
        let store = &self.client.store;
        let Some(Inside::Nested(hold)) = self.inside(&owner) else { return Ok(None) };
        match hold.enter(self.lease, store.clock.now()) {
            Entry::Entered => Ok(Some(self.guard(hold))),
            _ => Ok(None),
        }
    }

    /// The owner of the acquisition, if it is not to be a fresh one.
    fn known_owner(&self) -> Option<Owner> {
        self.owner.clone().or_else(Owner::current)
    }

    async fn acquire_in_turn(&mut self, waits: bool) -> Result<Option<LockGuard>, LockError> {
        self.caller = Some(Span::current()).filter(|span| !span.is_disabled()).map(Box::new);
        let (owner, is_lone) = match self.known_owner() {
            Some(owner) => (owner, false),
            None => (Owner::new(), true),
        };
        if let Some(span) = self.span(&owner) {
            return Box::pin(self.run_in(span, &owner, is_lone, waits)).await;
        }
        self.run(&owner, is_lone, waits).await
    }

    /// The span of the acquisition, if anybody listens.
    fn span(&self, owner: &Owner) -> Option<Span> {
        let span = tracing::debug_span!(
            "lockcore.acquire", lock = %self.name, owner = %owner, mode = %self.mode,
            wait = tracing::field::Empty, token = tracing::field::Empty,
        );
        (!span.is_disabled()).then_some(span)
    }

    async fn run_in(
        &self,
        span: Span,
        owner: &Owner,
        is_lone: bool,
        waits: bool,
    ) -> Result<Option<LockGuard>, LockError> {
        let start = self.client.store.clock.now();
        let acquired = self.run(owner, is_lone, waits).instrument(span.clone()).await;
        if let Ok(Some(guard)) = &acquired {
            let wait = self.client.store.clock.now().since(start);
            span.record("wait", tracing::field::debug(wait));
            span.record("token", u64::from(guard.token()));
            tracing::debug!(parent: &span, lock = %self.name, token = %guard.token(), ?wait, "acquired");
        }
        acquired
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "an `async fn` has room for its arguments twice, and this is what waits"
    )]
    fn run<'a>(
        &'a self,
        owner: &'a Owner,
        is_lone: bool,
        waits: bool,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + 'a {
        async move {
            owner.check()?;
            self.client.require(self.mode, &self.name)?;
            let _acquiring = self.client.acquiring();
            if self.client.is_closed() {
                return Err(self.closed());
            }
            self.client.background.ensure_running(&self.client.store);
            loop {
                let now = self.client.store.clock.now();
                let mut inside = None;
                // Who waits has room for the wait, and not for what came before it.
                let mut waiting = match self.arrive(owner, is_lone, waits, now) {
                    Arrival::Queued(place) => Some(Waiting::new(self, place)),
                    Arrival::Inside(entered) => {
                        inside = Some(entered);
                        None
                    }
                    Arrival::Contended => None,
                    Arrival::Full(error) => return Err(error),
                };
                if let Some(waiting) = &mut waiting {
                    match waiting.take_turn(now).await? {
                        Turn::Granted(guard) => return Ok(Some(guard)),
                        Turn::Refused => {}
                        Turn::Enter(entered) => inside = Some(entered),
                    }
                }
                drop(waiting);
                let Some(inside) = inside else { return Ok(None) };
                let entered = Box::pin(self.enter(inside, owner, waits)).await?;
                if entered.is_some() {
                    return Ok(entered);
                }
            }
        }
    }

    /// Enters what the owner holds. `None` if that has ended.
    async fn enter(
        &self,
        inside: Inside,
        owner: &Owner,
        waits: bool,
    ) -> Result<Option<LockGuard>, LockError> {
        let entered = pin!(async {
            match inside {
                Inside::Nested(hold) => Ok(self.nest(&hold).await?.then(|| self.guard(hold))),
                Inside::Within(write) => self.read_within(&write, owner, waits).await,
                Inside::Upgrade(read) => self.refuse_upgrade(&read),
            }
        });
        self.client.unless_closed(&self.name, entered).await
    }

    pub(crate) fn closed(&self) -> LockError {
        LockError::Closed { lock: self.name.clone() }
    }

    fn arrive<'a>(
        &'a self,
        owner: &'a Owner,
        is_lone: bool,
        waits: bool,
        now: Moment,
    ) -> Arrival<'a> {
        let newcomer = Newcomer { mode: self.mode, owner, is_lone, waits };
        self.client.store.names.arrive(&self.lane(owner), newcomer, self.heir(owner), now)
    }

    fn lane(&self, owner: &Owner) -> Lane {
        Lane::new(&self.name, self.mode, owner)
    }

    /// What `owner` holds of the lock.
    pub(crate) fn inside(&self, owner: &Owner) -> Option<Inside> {
        self.client.store.names.inside(&self.lane(owner), self.mode, owner)
    }

    /// The lease with which `owner` could take over a hold of another task, if that is possible at all. What named owners have is stored
    /// under their names, and a fixed lease counts from its own beginning.
    pub(crate) fn heir(&self, owner: &Owner) -> Option<Duration> {
        let is_possible = self.client.store.names.hand_over.is_some()
            && self.mode == Mode::Exclusive
            && owner.name().is_none();
        match self.lease {
            Lease::Renewed(lease) => is_possible.then_some(lease),
            Lease::Fixed(_) => None,
        }
    }

    /// Tells who wants to know what it is struggling with.
    pub(crate) fn is_troubled_by(&self, error: Option<LockError>) {
        if let Some(trouble) = &self.trouble {
            trouble.set(error);
        }
    }

    fn origin<'a>(&'a self, cell: &'a Arc<Cell>) -> Origin<'a> {
        Origin { site: self.site, caller: self.caller.as_deref(), cell }
    }

    pub(crate) fn guard(&self, hold: Arc<Hold>) -> LockGuard {
        LockGuard::new(self.client.clone(), hold, self.lease)
    }

    /// Enters a hold of the same owner. False if it ended meanwhile.
    pub(crate) async fn nest(&self, hold: &Arc<Hold>) -> Result<bool, LockError> {
        let now = self.client.store.clock.now();
        let entry = match hold.enter(self.lease, now) {
            Entry::Grow { .. } => Box::pin(self.grow(hold)).await?,
            entry => entry,
        };
        match entry {
            Entry::Lost(reason) => Err(LockError::Lost { lock: self.name.clone(), reason }),
            Entry::TooDeep => {
                Err(LockError::TooDeep { lock: self.name.clone(), limit: Lock::MAX_HOLD_COUNT })
            }
            Entry::Ended | Entry::Grow { .. } => Ok(false),
            Entry::Entered => Ok(true),
        }
    }

    /// Has the backend extend the lease of a hold for a nested acquisition that asks for more.
    async fn grow(&self, hold: &Arc<Hold>) -> Result<Entry, LockError> {
        let store = &self.client.store;
        let _order = hold.storing().lock().await;
        let (count, lease) = match hold.enter(self.lease, store.clock.now()) {
            Entry::Grow { count, lease } => (count, lease),
            entry => return Ok(entry),
        };
        let stored = hold.stored();
        hold.set_stored(stored.max(count));
        let correction = CountCorrection { client: &self.client, hold };
        let request = AcquireRequest::new(self.name.clone(), hold.id.clone(), lease)
            .mode(hold.mode)
            .count(stored.max(count));
        let sent = store.clock.now();
        hold.asking(lease, sent);
        match store.answer(store.backend.acquire(&request)).await {
            Ok(AcquireOutcome::Acquired { .. }) => {
                let entry = hold.grown(self.lease, sent, store.clock.now());
                renewal::register(store, hold, sent);
                drop(correction);
                Ok(entry)
            }
            Ok(_) => {
                renewal::gone(store, hold);
                Ok(Entry::Lost(LossReason::Gone))
            }
            Err(error) => Err(error.with_lock(&self.name).into()),
        }
    }

    pub(crate) fn request(&self, hold_id: HoldId, waits: bool) -> AcquireRequest {
        let queues = waits && matches!(self.mode, Mode::Fair | Mode::Write);
        let queue = queues.then_some(self.client.settings.queue_timeout);
        AcquireRequest::new(self.name.clone(), hold_id, self.lease.duration())
            .mode(self.mode)
            .queue(queue)
    }

    /// Asks the backend once. Whatever goes wrong on the way, nothing is left behind. `since` is when this client began to have the lock
    /// by turns, `sent` is now.
    pub(crate) async fn attempt(
        &self,
        owner: &Owner,
        request: &AcquireRequest,
        cell: &Arc<Cell>,
        since: Option<Moment>,
        sent: Moment,
    ) -> Result<Attempt, LockError> {
        let store = &self.client.store;
        let lease = self.lease.duration();
        let unanswered = Undo::of(&self.client, request, cell);
        let answer = store.answer(store.backend.acquire(request)).await;
        let now = store.clock.now();
        match answer {
            Ok(AcquireOutcome::Acquired { token }) => {
                if now >= lease::deadline(sent, lease) {
                    drop(unanswered);
                    let reason = LossReason::LeaseEnded;
                    return Err(LockError::Lost { lock: self.name.clone(), reason });
                }
                unanswered.disarm();
                let until = store.names.hand_over.map(|time| since.unwrap_or(sent).after(time));
                let tenure = Tenure::new(request, token, self.lease, sent, until);
                let hold = Hold::granted(request, owner.clone(), token, tenure, &self.origin(cell));
                Ok(Attempt::Granted(hold))
            }
            Ok(AcquireOutcome::Held { remaining }) => {
                unanswered.disarm();
                // The store's clock ticks in milliseconds: come after the tick, not on it.
                let end =
                    remaining.map(|left| now.after(left.saturating_add(Duration::from_millis(1))));
                let next = now.next_multiple_of(ASK_EVERY);
                let until = end.map_or(next, |end| end.min(next));
                // A place in the queue is kept by asking again in time.
                let kept = request.queue.map_or(until, |queue| now.after(queue / 3));
                Ok(Attempt::Refused { until: until.min(kept) })
            }
            Ok(AcquireOutcome::TooMany { limit }) => {
                unanswered.disarm();
                let Mode::Permit { count: asked, .. } = self.mode else {
                    return Err(self.misunderstood("a lock was answered as a semaphore"));
                };
                Err(LockError::TooManyPermits { lock: self.name.clone(), asked, limit })
            }
            Ok(AcquireOutcome::NotHeld) => {
                Err(self.misunderstood("an outermost acquisition was answered as a nested one"))
            }
            Err(error) => {
                if !error.is_outcome_unknown() {
                    unanswered.disarm();
                }
                Err(error.with_lock(&self.name).into())
            }
        }
    }

    /// Takes over a hold that is parked for the waiter at `place`. `None` if somebody was quicker.
    pub(crate) fn take_over(
        &self,
        place: &mut Place<'_>,
        parked: &Arc<Hold>,
        now: Moment,
    ) -> Result<Option<LockGuard>, LockError> {
        let store = &self.client.store;
        let hold = parked.handed_on(place.owner().clone(), &self.origin(place.cell()), now);
        if place.take_over(parked, &hold, || !self.client.is_closed()) {
            let guard = self.guard(hold.clone());
            renewal::succeed(store, parked, &hold);
            Ok(Some(guard))
        } else if self.client.is_closed() {
            Err(self.closed())
        } else {
            Ok(None)
        }
    }

    fn misunderstood(&self, message: &str) -> LockError {
        BackendError::new(BackendErrorKind::Protocol, message).with_lock(&self.name).into()
    }

    /// Registers a new hold that was granted past the queue, and makes its first guard.
    pub(crate) fn enter_past_the_queue(&self, hold: Arc<Hold>) -> Result<LockGuard, LockError> {
        self.enter_first(hold, |hold| {
            self.client.store.names.register(hold, || !self.client.is_closed())
        })
    }

    /// Registers a new hold that was granted to who is at `place`, and makes its first guard.
    pub(crate) fn enter_in_turn(
        &self,
        place: &mut Place<'_>,
        hold: Arc<Hold>,
    ) -> Result<LockGuard, LockError> {
        self.enter_first(hold, |hold| place.enter(hold, || !self.client.is_closed()))
    }

    fn enter_first(
        &self,
        hold: Arc<Hold>,
        register: impl FnOnce(&Arc<Hold>) -> bool,
    ) -> Result<LockGuard, LockError> {
        // From here on the guard is what gives the hold back.
        let guard = self.guard(hold.clone());
        if !register(&hold) {
            return Err(self.closed());
        }
        renewal::register(&self.client.store, &hold, hold.sent());
        Ok(guard)
    }
}

/// Releases, when dropped, what a request may have left at the backend: a hold whose outcome is not known, or a place in a
/// fair queue.
pub(crate) struct Undo<'a, R: Borrow<AcquireRequest>> {
    client: &'a Client,
    cell: Arc<Cell>,
    request: Option<R>,
}

impl<'a, R: Borrow<AcquireRequest>> Undo<'a, R> {
    pub(crate) fn of(client: &'a Client, request: R, cell: &Arc<Cell>) -> Self {
        Self { client, cell: cell.clone(), request: Some(request) }
    }

    pub(crate) fn disarm(mut self) {
        self.request = None;
    }
}

impl<R: Borrow<AcquireRequest>> Drop for Undo<'_, R> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let request = request.borrow();
            // A place in a queue may outlive the lease that was asked for.
            let lease = request.lease.max(request.queue.unwrap_or_default());
            drop(self.client.pending_undo(request.undo(), &self.cell, lease));
        }
    }
}

/// Brings the backend's count down again after a growth that failed, was dropped, or has been overtaken.
struct CountCorrection<'a> {
    client: &'a Client,
    hold: &'a Arc<Hold>,
}

impl Drop for CountCorrection<'_> {
    fn drop(&mut self) {
        if self.hold.count_to_store().is_some() {
            self.client.background.submit(&self.client.store, Job::StoreCount(self.hold.clone()));
        }
    }
}

/// What an acquisition is struggling with: whoever stops waiting for it learns the true reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<LockError>>>);

impl Trouble {
    pub(crate) fn set(&self, error: Option<LockError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn take(&self) -> Option<LockError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
