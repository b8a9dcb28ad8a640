//! [`Client`]: what a [`Locks`](crate::Locks) and everything made from it share.

use std::{
    future::Future,
    num::NonZeroU64,
    pin::Pin,
    sync::{
        Arc, Once, Weak,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, mpsc::UnboundedReceiver};
use uuid::Uuid;

use super::{
    answer::{answer, unless},
    background::{Background, Job},
    calendar::Calendar,
    lanes::LaneMap,
    looks::LatchLooks,
    measure::{ClientMetrics, Grouping, MeasuredAnswer},
    outcome::BackendCall,
    presence::Presence,
    tally::{Counting, Tally},
    waiters::Waiters,
};
use crate::{
    BackendError, LockError, LockName, Mode, Owner,
    backend::{Backend, HoldId},
    engine::{HandOver, WaiterLimits},
    time::{Backoff, Clock},
    waits::ClientDescription,
};

/// The options of a client, for all its locks.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The lease of acquisitions that do not set one.
    pub(crate) lease: Duration,
    /// How long a place in a queue of the backend outlives a waiter that has stopped asking.
    pub(crate) queue_timeout: Duration,
    /// How long failures of the backend are tolerated without an answer in between.
    pub(crate) retry_for: Duration,
    pub(crate) namespace: String,
    /// How much earlier than due a hold may be renewed, to be renewed together with others.
    pub(crate) batching: Duration,
    /// For how long holds are handed over, if at all.
    pub(crate) hand_over: Option<HandOver>,
    pub(crate) limits: WaiterLimits,
    /// The description that the client writes to the store, if any.
    pub(crate) description: Option<ClientDescription>,
}

pub(super) const OPEN: u8 = 0;
pub(super) const CLOSED: u8 = 1;
pub(super) const ABANDONED: u8 = 2;

/// The length of a UUID and a colon.
const PREFIX: usize = 37;

/// The beginning of the ids of the requests of a new client.
fn prefix() -> [u8; PREFIX] {
    let mut prefix = [b':'; PREFIX];
    Uuid::new_v4().hyphenated().encode_lower(&mut prefix);
    prefix
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) measure: ClientMetrics,
    pub(crate) waiters: Waiters,
    pub(crate) lanes: LaneMap,
    /// The requests that waiters of a latch share.
    pub(super) looks: LatchLooks,
    /// The schedule. Shared with the background task, which does not keep the client alive.
    pub(super) calendar: Arc<Calendar>,
    pub(super) background: Background,
    /// The body of the background task: it looks after the client and does the jobs that it gets.
    serve: fn(Weak<Self>, UnboundedReceiver<Job>) -> Job,
    /// The client's id and a colon: the prefix of the ids of its requests.
    prefix: [u8; PREFIX],
    /// The count of numbers that were drawn.
    drawn: AtomicU64,
    /// `OPEN`, `CLOSED` or `ABANDONED`.
    pub(super) life: AtomicU8,
    /// Signals that the client is closed.
    pub(super) closing: Notify,
    /// Acquisitions that are under way, or being undone.
    pub(super) acquiring: Tally,
    /// Releases that were submitted and are not done.
    pub(super) pending_releases: Arc<Tally>,
    /// Places in conditions that are being left.
    pub(super) leaving: Arc<Tally>,
    /// The record of this client at the store.
    pub(super) presence: Arc<Presence>,
    /// Used to warn once that the demand for locks cannot be heard.
    pub(super) is_deaf: Once,
}

impl Client {
    /// Makes a client. `serve` is the body of its background task.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        clock: Clock,
        settings: Settings,
        grouping: Grouping,
        serve: fn(Weak<Self>, UnboundedReceiver<Job>) -> Job,
    ) -> Arc<Self> {
        let described = settings.description.clone();
        let presence = Presence::new(described, settings.lease, clock.now());
        let (calendar, background) = (Arc::<Calendar>::default(), Background::default());
        let wake = {
            let calendar = calendar.clone();
            move || calendar.wake()
        };
        Arc::new(Self {
            backend,
            clock,
            measure: ClientMetrics::new(grouping, wake, background.up()),
            waiters: Waiters::new(settings.limits),
            lanes: LaneMap::new(settings.hand_over),
            looks: LatchLooks::default(),
            settings,
            calendar,
            background,
            serve,
            prefix: prefix(),
            drawn: AtomicU64::new(0),
            life: AtomicU8::new(OPEN),
            closing: Notify::new(),
            acquiring: Tally::default(),
            pending_releases: Arc::default(),
            leaving: Arc::default(),
            presence,
            is_deaf: Once::new(),
        })
    }

    /// The identity of a new outermost acquisition: never the same twice, so that a late duplicate
    /// of an old request cannot touch a newer hold.
    pub(super) fn hold_id(&self, owner: &Owner, number: NonZeroU64) -> HoldId {
        let id = self.id(number);
        match owner.name() {
            None => HoldId::unique(id),
            Some(name) => HoldId::named(name, id),
        }
    }

    /// The id of this client, with which the owners of its holds begin on the wire.
    pub(crate) fn client_id(&self) -> &str {
        str::from_utf8(&self.prefix[..PREFIX - 1]).unwrap_or_default()
    }

    /// An id that is unique across all clients.
    pub(crate) fn request_id(&self) -> Arc<str> {
        self.id(self.draw_number())
    }

    /// A number that is unique among the requests of this client.
    pub(super) fn draw_number(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Called for each acquisition, and so written without `format!` and an intermediate `String`.
    fn id(&self, number: NonZeroU64) -> Arc<str> {
        let (mut id, mut at, mut rest) = ([0; PREFIX + 20], PREFIX, number.get());
        id[..PREFIX].copy_from_slice(&self.prefix);
        at += rest.ilog10() as usize + 1;
        let end = at;
        while rest > 0 {
            at -= 1;
            id[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // All of it is ASCII.
        str::from_utf8(&id[..end]).unwrap_or_default().into()
    }

    /// Calls the backend, and waits for its answer for a limited time.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        answer(call).await
    }

    /// As [`answer`](Self::answer), for a call that is measured.
    pub(crate) async fn call<T: MeasuredAnswer>(
        &self,
        operation: BackendCall,
        call: impl Future<Output = Result<T, BackendError>> + Unpin,
    ) -> Result<T, BackendError> {
        answer(self.measure.call(operation, call)).await
    }

    /// Repeats a request until it is answered, or was not answered for `limit`. `last_error` is set
    /// to the latest failure.
    pub(crate) async fn repeat<T, F>(
        &self,
        name: &LockName,
        limit: Duration,
        last_error: &mut Option<LockError>,
        request: impl Fn() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let start = self.clock.now();
        let mut backoff = Backoff::default();
        // Set if an attempt without an answer may have been carried out.
        let mut is_unknown = false;
        loop {
            let answer = self.answer(request()).await;
            is_unknown |= answer.as_ref().is_err_and(BackendError::is_outcome_unknown);
            let answer = answer.map_err(|error| match is_unknown {
                true => error.maybe_applied(),
                false => error,
            });
            match answer {
                Ok(answer) => {
                    *last_error = None;
                    return Ok(answer);
                }
                Err(error) if error.is_retryable() && self.clock.now().since(start) < limit => {
                    tracing::debug!(lock = %name, %error, "request failed, will be repeated");
                    *last_error = Some(error.with_lock(name).into());
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error.with_lock(name).into()),
            }
        }
    }

    /// Refuses a mode that the backend does not support.
    pub(crate) fn require(&self, mode: Mode, name: &LockName) -> Result<(), LockError> {
        if self.backend.capabilities().supports(mode) {
            return Ok(());
        }
        Err(LockError::Unsupported { lock: name.clone(), what: mode.plural() })
    }

    /// The shortest lease that the backend can keep.
    pub(crate) fn shortest_lease(&self) -> Duration {
        self.backend.limits().shortest_lease
    }

    /// Counts an acquisition: `close()` waits until the result is dropped.
    pub(crate) fn acquiring(&self) -> Counting<&Tally> {
        self.acquiring.count()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.life.load(Ordering::SeqCst) != OPEN
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.life.load(Ordering::SeqCst) == ABANDONED
    }

    /// Makes sure that the background task runs, on the current runtime if it has to be started.
    ///
    /// # Errors
    /// [`LockError::NoRuntime`] if it does not run, and there is no runtime to run it on.
    pub(super) fn ensure_running(self: &Arc<Self>, lock: &LockName) -> Result<(), LockError> {
        match self.start() {
            true => Ok(()),
            false => Err(LockError::NoRuntime { lock: lock.clone() }),
        }
    }

    /// Fails outside of a tokio runtime, where timers panic.
    pub(crate) fn require_runtime(&self, lock: &LockName) -> Result<(), LockError> {
        let is_inside = tokio::runtime::Handle::try_current().is_ok();
        is_inside.then_some(()).ok_or_else(|| LockError::NoRuntime { lock: lock.clone() })
    }

    /// Returns `true` if the background task runs.
    pub(super) fn is_running(&self) -> bool {
        self.background.is_up()
    }

    /// Starts the background task unless it runs. Returns `false` if there is no runtime for it.
    fn start(self: &Arc<Self>) -> bool {
        self.background.start(|jobs| (self.serve)(Arc::downgrade(self), jobs))
    }

    /// Hands `work` to the background task. Can be called outside of a runtime, as long as the
    /// task's own runtime exists.
    pub(super) fn submit(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        if self.is_abandoned() {
            return;
        }
        self.start();
        if let Err(unsent) = self.background.send(Box::pin(work)) {
            // Dropped while nothing is locked: it wakes others, which may call back into the
            // client.
            drop(unsent);
            tracing::warn!("no runtime to release a lock on; it is free when its lease ends");
        }
    }

    /// Resolves when the client is closed.
    pub(super) async fn closed(&self) {
        // From here on, the signal is not missed.
        let closing = self.closing.notified();
        if !self.is_closed() {
            closing.await;
        }
    }

    /// Does `work`, unless the client is closed first.
    ///
    /// `work` is pinned by the caller, because a future that takes another by value holds room for
    /// it twice.
    pub(crate) async fn unless_closed<T>(
        &self,
        name: &LockName,
        work: Pin<&mut impl Future<Output = Result<T, LockError>>>,
    ) -> Result<T, LockError> {
        let closed = || Err(LockError::Closed { lock: name.clone() });
        if self.is_closed() {
            return closed();
        }
        unless(|| self.closed(), work).await.unwrap_or_else(|()| closed())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The background task ends.
        self.calendar.wake();
        self.measure.publish();
    }
}
