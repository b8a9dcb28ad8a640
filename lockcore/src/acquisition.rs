//! One acquisition: nest where the owner holds the lock already, else queue; and each single attempt at the backend. The waiting in
//! between is in `waiting.rs`.

use std::{
    panic::Location,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tracing::{Instrument, Span};

use crate::{
    AcquireOutcome, AcquireRequest, BackendError, BackendErrorKind, HoldId, LockError, LockGuard, LockName,
    LossReason, Mode, Owner, ReleaseRequest,
    background::Job,
    client::Client,
    clock::Moment,
    hold::{Entry, Hold},
    lease::{self, Lease},
    renewal,
    waiters::{Arrival, Lane, Place},
    waiting::Waiting,
};

/// How long after a refusal without an end in sight the backend is asked again. Only locks that others have written
/// without an expiry have none.
const NO_END_IN_SIGHT: Duration = Duration::from_secs(10);

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
    pub(crate) trouble: Trouble,
    /// Where the caller was when the acquisition began to run.
    pub(crate) caller: Span,
}

/// How the wait of one that has queued ended.
pub(crate) enum Turn {
    Granted(LockGuard),
    Refused,
    /// Its owner got the lock by another acquisition.
    Nest(Arc<Hold>),
}

/// How one attempt ended.
pub(crate) enum Attempt {
    Granted(Arc<Hold>, Moment),
    Refused { until: Moment },
}

impl Acquisition {
    /// Acquires, or returns `None` if the lock is not free and `waits` is false.
    pub(crate) async fn acquire(mut self, waits: bool) -> Result<Option<LockGuard>, LockError> {
        self.caller = Span::current();
        let owner = self.owner.clone().or_else(Owner::current).unwrap_or_default();
        let span = tracing::debug_span!(
            "lockcore.acquire", lock = %self.name, owner = %owner, mode = %self.mode,
            wait = tracing::field::Empty, token = tracing::field::Empty,
        );
        let start = self.client.store.clock.now();
        let acquired = self.run(owner, waits).instrument(span.clone()).await;
        if let Ok(Some(guard)) = &acquired {
            let wait = self.client.store.clock.now().since(start);
            span.record("wait", tracing::field::debug(wait));
            span.record("token", u64::from(guard.token()));
            tracing::debug!(parent: &span, lock = %self.name, token = %guard.token(), ?wait, "acquired");
        }
        acquired
    }

    async fn run(&self, owner: Owner, waits: bool) -> Result<Option<LockGuard>, LockError> {
        owner.check()?;
        if !self.client.store.backend.capabilities().supports(self.mode) {
            return Err(LockError::Unsupported { lock: self.name.clone(), mode: self.mode });
        }
        let _acquiring = self.client.acquiring();
        if self.client.is_closed() {
            return Err(self.closed());
        }
        self.client.background.ensure_running(&self.client.store);
        tokio::select! {
            biased;
            acquired = self.nest_or_queue(&owner, waits) => acquired,
            () = self.client.closed() => Err(self.closed()),
        }
    }

    fn closed(&self) -> LockError {
        LockError::Closed { lock: self.name.clone() }
    }

    async fn nest_or_queue(&self, owner: &Owner, waits: bool) -> Result<Option<LockGuard>, LockError> {
        loop {
            let store = &self.client.store;
            let hold = match store.names.arrive(&self.lane(owner), owner, waits, store.clock.now()) {
                Arrival::Nested(hold) => hold,
                Arrival::Contended => return Ok(None),
                Arrival::Queued(place) => match Waiting::new(self, place, owner, waits).take_turn().await? {
                    Turn::Granted(guard) => return Ok(Some(guard)),
                    Turn::Refused => return Ok(None),
                    Turn::Nest(hold) => hold,
                },
            };
            if self.nest(&hold).await? {
                return Ok(Some(self.guard(hold)));
            }
        }
    }

    pub(crate) fn lane(&self, owner: &Owner) -> Lane {
        Lane::new(&self.name, self.mode, owner)
    }

    fn guard(&self, hold: Arc<Hold>) -> LockGuard {
        LockGuard::new(self.client.clone(), hold, self.lease)
    }

    /// Enters a hold of the same owner. False if it ended meanwhile.
    async fn nest(&self, hold: &Arc<Hold>) -> Result<bool, LockError> {
        let now = self.client.store.clock.now();
        let entry = match hold.enter(self.lease, now) {
            Entry::Grow { .. } => self.grow(hold).await?,
            entry => entry,
        };
        match entry {
            Entry::Lost(reason) => Err(LockError::Lost { lock: self.name.clone(), reason }),
            Entry::Ended | Entry::Grow { .. } => Ok(false),
            Entry::Entered => Ok(true),
        }
    }

    /// Has the backend extend the lease of a hold for a nested acquisition that asks for more.
    async fn grow(&self, hold: &Arc<Hold>) -> Result<Entry, LockError> {
        let store = &self.client.store;
        let _order = hold.storing.lock().await;
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

    pub(crate) fn request(&self, hold_id: &HoldId, waits: bool) -> AcquireRequest {
        let queue = (waits && self.mode == Mode::Fair).then_some(self.client.settings.queue_timeout);
        AcquireRequest::new(self.name.clone(), hold_id.clone(), self.lease.duration())
            .mode(self.mode)
            .queue(queue)
    }

    /// Asks the backend once. Whatever goes wrong on the way, nothing is left behind.
    pub(crate) async fn attempt(
        &self,
        owner: &Owner,
        hold_id: &HoldId,
        waits: bool,
    ) -> Result<Attempt, LockError> {
        let store = &self.client.store;
        let lease = self.lease.duration();
        let request = self.request(hold_id, waits);
        let unanswered = Undo::of(self, &request, owner);
        let sent = store.clock.now();
        let answer = store.answer(store.backend.acquire(&request)).await;
        let now = store.clock.now();
        match answer {
            Ok(AcquireOutcome::Acquired { token }) => {
                if now >= lease::deadline(sent, lease) {
                    drop(unanswered);
                    let reason = LossReason::LeaseEnded;
                    return Err(LockError::Lost { lock: self.name.clone(), reason });
                }
                unanswered.disarm();
                let hold =
                    Hold::granted(&request, owner.clone(), token, self.lease, sent, self.site, &self.caller);
                Ok(Attempt::Granted(hold, sent))
            }
            Ok(AcquireOutcome::Held { remaining }) => {
                unanswered.disarm();
                // The store's clock ticks in milliseconds: come after the tick, not on it.
                let wait = remaining.unwrap_or(NO_END_IN_SIGHT).saturating_add(Duration::from_millis(1));
                // A place in the queue is kept by asking again in time.
                let wait = request.queue.map_or(wait, |queue| wait.min(queue / 3));
                Ok(Attempt::Refused { until: now.after(wait) })
            }
            Ok(AcquireOutcome::TooMany { limit }) => {
                unanswered.disarm();
                let Mode::Permit { count: asked, .. } = self.mode else { unreachable!() };
                Err(LockError::TooMany { lock: self.name.clone(), asked, limit })
            }
            Ok(AcquireOutcome::NotHeld) => {
                let error = BackendError::new(
                    BackendErrorKind::Protocol,
                    "an outermost acquisition was answered as a nested one",
                );
                Err(error.with_lock(&self.name).into())
            }
            Err(error) => {
                if !error.is_outcome_unknown() {
                    unanswered.disarm();
                }
                Err(error.with_lock(&self.name).into())
            }
        }
    }

    /// Registers a new hold and makes its first guard.
    pub(crate) fn enter_first(&self, place: Place, hold: Arc<Hold>, sent: Moment) -> Result<Turn, LockError> {
        let store = &self.client.store;
        // From here on the guard is what gives the hold back.
        let guard = self.guard(hold.clone());
        if place.granted(&hold, hold.deadline(), || !self.client.is_closed()) {
            renewal::register(store, &hold, sent);
            Ok(Turn::Granted(guard))
        } else {
            Err(self.closed())
        }
    }
}

/// Releases, when dropped, what a request may have left at the backend: a hold whose outcome is not known, or a place in a
/// fair queue.
pub(crate) struct Undo<'a> {
    client: &'a Client,
    lane: Lane,
    lease: Duration,
    request: Option<ReleaseRequest>,
}

impl<'a> Undo<'a> {
    pub(crate) fn of(acquisition: &'a Acquisition, request: &AcquireRequest, owner: &Owner) -> Self {
        Self {
            client: &acquisition.client,
            lane: acquisition.lane(owner),
            // A place in a queue may outlive the lease that was asked for.
            lease: request.lease.max(request.queue.unwrap_or_default()),
            request: Some(request.undo()),
        }
    }

    pub(crate) fn disarm(mut self) {
        self.request = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            drop(self.client.pending_release(request, self.lane.clone(), self.lease));
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
