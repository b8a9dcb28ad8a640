//! [`Client`]: what a [`Locks`](crate::Locks) and everything made from it share.

use std::{
    future::Future,
    num::NonZeroU64,
    pin::{Pin, pin},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, task::JoinSet};
use uuid::Uuid;

use crate::{
    BackendError, BackendErrorKind, LockError, LockName, LossReason, Mode, Owner,
    acquiring::waiters::{Cell, Releasing},
    acquiring::{acquisition::Trouble, retry::Backoff},
    backend::{HoldId, ReleaseRequest, RenewOutcome, RenewRequest},
    leases::background::{Background, Job},
    leases::clock::Moment,
    leases::hold::{Departure, Hold},
    leases::lease::Lease,
    leases::release::PendingRelease,
    leases::renewal,
    store::Store,
    unless::unless,
};

/// What the user has chosen for all locks of a client.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The lease of acquisitions that name none.
    pub(crate) lease: Duration,
    /// How long a place in a fair queue outlives a waiter that has stopped asking.
    pub(crate) queue_timeout: Duration,
    /// For how long failures of the backend are borne without an answer in between.
    pub(crate) retry_for: Duration,
    pub(crate) namespace: String,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) store: Arc<Store>,
    pub(crate) background: Arc<Background>,
    pub(crate) settings: Settings,
    /// Its id, and a colon: what its requests begin with.
    prefix: String,
    /// How many numbers were drawn.
    drawn: AtomicU64,
    closed: AtomicBool,
    /// Signals it.
    closing: Notify,
    /// How many acquisitions are under way, and the signal that a closed client has none any more.
    acquiring: AtomicUsize,
    settled: Notify,
}

/// An acquisition that is under way, or being undone.
#[derive(Debug)]
pub(crate) struct Acquiring<'a>(&'a Client);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if self.0.acquiring.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_closed() {
            self.0.settled.notify_one();
        }
    }
}

impl Client {
    pub(crate) fn new(store: Store, settings: Settings) -> Self {
        Self {
            store: Arc::new(store),
            background: Arc::default(),
            settings,
            prefix: format!("{}:", Uuid::new_v4()),
            drawn: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            acquiring: AtomicUsize::new(0),
            settled: Notify::new(),
        }
    }

    /// The identity of a new outermost acquisition: never the same twice, so that a late duplicate of an old request
    /// cannot touch a newer hold.
    pub(crate) fn hold_id(&self, owner: &Owner, number: NonZeroU64) -> HoldId {
        let id = self.id(number);
        match owner.name() {
            None => HoldId::unique(id),
            Some(name) => HoldId::named(name, id),
        }
    }

    /// What no other request of any client is called.
    pub(crate) fn request_id(&self) -> Arc<str> {
        self.id(self.draw_number())
    }

    /// A number that no other request of this client has.
    pub(crate) fn draw_number(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Made for each acquisition: without the machinery of `format!`, and without a `String` in between.
    fn id(&self, number: NonZeroU64) -> Arc<str> {
        let mut digits = SmallVec::<[u8; 20]>::new();
        let mut rest = number.get();
        while rest > 0 {
            digits.push(b"0123456789"[(rest % 10) as usize]);
            rest /= 10;
        }
        let mut id = SmallVec::<[u8; 64]>::from_slice(self.prefix.as_bytes());
        id.extend(digits.into_iter().rev());
        // All of it is ASCII.
        str::from_utf8(&id).unwrap_or_default().into()
    }

    /// Makes a request that may be repeated, until it is answered or has gone unanswered for too long.
    pub(crate) async fn repeat<T, F>(
        &self,
        name: &LockName,
        request: impl Fn() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        self.repeat_troubled(name, self.settings.retry_for, &Trouble::default(), request).await
    }

    /// As [`repeat`](Self::repeat), for no longer than `limit`, and keeps `trouble` informed of what it is struggling with.
    pub(crate) async fn repeat_troubled<T, F>(
        &self,
        name: &LockName,
        limit: Duration,
        trouble: &Trouble,
        request: impl Fn() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let start = self.store.clock.now();
        let mut backoff = Backoff::default();
        loop {
            match self.store.answer(request()).await {
                Ok(answer) => {
                    trouble.set(None);
                    return Ok(answer);
                }
                Err(error)
                    if error.is_retryable() && self.store.clock.now().since(start) < limit =>
                {
                    tracing::debug!(lock = %name, %error, "request failed, will be repeated");
                    trouble.set(Some(error.with_lock(name).into()));
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error.with_lock(name).into()),
            }
        }
    }

    /// Refuses a mode that the backend does not have.
    pub(crate) fn require(&self, mode: Mode, name: &LockName) -> Result<(), LockError> {
        if self.store.backend.capabilities().supports(mode) {
            return Ok(());
        }
        Err(LockError::Unsupported { lock: name.clone(), what: mode.plural() })
    }

    pub(crate) fn pending_undo(
        &self,
        request: ReleaseRequest,
        cell: &Arc<Cell>,
        lease: Duration,
    ) -> PendingRelease {
        PendingRelease::undoing(&self.store, &self.background, request, cell, lease)
    }

    /// Counts a guard out of its hold. Returns what has to be released, if it was the last one, or why it cannot be.
    pub(crate) fn depart(
        &self,
        hold: &Arc<Hold>,
        lease: Lease,
    ) -> Result<Option<PendingRelease>, LockError> {
        let lock = || hold.name().clone();
        let now = self.store.clock.now();
        match hold.leave(lease, now) {
            Departure::Nested { store: false } => Ok(None),
            Departure::Nested { store: true } => {
                self.background.submit(&self.store, Job::StoreCount(hold.clone()));
                Ok(None)
            }
            Departure::Last => {
                let held_for = now.since(hold.acquired_at);
                if self.store.names.park(hold, now, || !self.is_closed()) {
                    tracing::debug!(parent: hold.span(), lock = %hold.name(), token = %hold.token, ?held_for, "handed on");
                    return Ok(None);
                }
                let pending = self.withdraw(hold, now);
                tracing::debug!(parent: hold.span(), lock = %hold.name(), token = %hold.token, ?held_for, "released");
                Ok(Some(pending))
            }
            Departure::Lost { reason, last } => {
                if last {
                    self.clear_away(hold, reason, now);
                }
                Err(LockError::Lost { lock: lock(), reason })
            }
            Departure::Ended => Err(LockError::NotHeld { lock: lock() }),
        }
    }

    /// Takes a hold that is over out of the local layer, and prepares its release.
    fn withdraw(&self, hold: &Arc<Hold>, now: Moment) -> PendingRelease {
        self.store.schedule.remove(hold);
        self.pending(hold, self.store.names.withdraw(hold, now))
    }

    fn pending(&self, hold: &Hold, releasing: Releasing) -> PendingRelease {
        PendingRelease::of(&self.store, &self.background, hold, releasing)
    }

    /// Takes a lost hold out. If only our own clock says that it is over, the backend may still have it: it is freed
    /// there, so that others need not wait for the rest of the lease.
    fn clear_away(&self, hold: &Arc<Hold>, reason: LossReason, now: Moment) {
        let pending = self.withdraw(hold, now);
        if reason == LossReason::LeaseEnded {
            drop(pending);
        } else {
            pending.disarm();
        }
    }

    /// Until the result is dropped, `close()` waits.
    pub(crate) fn acquiring(&self) -> Acquiring<'_> {
        self.acquiring.fetch_add(1, Ordering::SeqCst);
        Acquiring(self)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Resolves when the client is closed.
    pub(crate) async fn closed(&self) {
        // From here on it is not missed.
        let closing = self.closing.notified();
        if !self.is_closed() {
            closing.await;
        }
    }

    /// Does `work`, unless the client is closed first.
    ///
    /// `work` is pinned by the caller: futures that take others by value have room for them twice.
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

    pub(crate) async fn close(&self) -> Result<(), LockError> {
        if self.background.is_abandoned() {
            return Ok(());
        }
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
        self.store.names.signal_all();
        let now = self.store.clock.now();
        let mut releases = JoinSet::new();
        for hold in self.store.names.all_holds() {
            let pending = self.withdraw(&hold, now);
            if hold.take_back(now) {
                releases.spawn(pending.confirm());
            } else {
                pending.disarm();
            }
        }
        for parked in self.store.names.all_parked() {
            self.store.schedule.remove(&parked);
            if let Some(releasing) = self.store.names.unpark_anyway(&parked) {
                releases.spawn(self.pending(&parked, releasing).confirm());
            }
        }
        let mut result = Ok(());
        while let Some(released) = releases.join_next().await {
            match released {
                // What was lost before needs no release.
                Ok(Ok(()) | Err(LockError::Lost { .. })) | Err(_) => {}
                Ok(Err(error)) => result = Err(error),
            }
        }
        // Acquisitions that are cut off leave their undoing to the background. One that nobody polls is not waited for long.
        let cut_off = async {
            while self.acquiring.load(Ordering::SeqCst) > 0 {
                self.settled.notified().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), cut_off).await;
        // Guards that were dropped before are being released there.
        let patience = self.settings.retry_for.max(Duration::from_millis(100));
        if tokio::time::timeout(patience, self.background.finish()).await.is_err() {
            let message =
                "releases of guards that were dropped before `close()` are not confirmed yet";
            result = result.and(Err(BackendError::new(BackendErrorKind::Timeout, message).into()));
        }
        result
    }

    /// Has the backend keep the hold for at least `lease` from now.
    pub(crate) async fn extend(&self, hold: &Arc<Hold>, lease: Duration) -> Result<(), LockError> {
        let (store, name) = (&self.store, hold.name());
        let request = RenewRequest::new(name.clone(), hold.id.clone(), lease).mode(hold.mode);
        let sent = store.clock.now();
        // A hold for which a request may be under way is not handed on.
        hold.close_window();
        hold.asking(lease, sent);
        let failed = |error: BackendError| LockError::from(error.with_lock(name));
        let renewed = pin!(async {
            let renewed = store.answer(store.backend.renew(slice::from_ref(&request))).await;
            renewed.map_err(failed)
        });
        match self.unless_closed(name, renewed).await?.as_slice() {
            [RenewOutcome::Renewed] => {
                hold.promise(lease, sent);
                renewal::register(store, hold, sent);
                Ok(())
            }
            [RenewOutcome::NotHeld] => {
                renewal::gone(store, hold);
                Err(LockError::Lost { lock: name.clone(), reason: LossReason::Gone })
            }
            [RenewOutcome::Failed(error)] => Err(failed(error.clone())),
            _ => {
                let message = "the extension of one lease was not answered as one";
                Err(failed(BackendError::new(BackendErrorKind::Protocol, message)))
            }
        }
    }

    /// Stops as a crash would: nothing is released any more, and nothing renewed.
    pub(crate) fn abandon(&self) {
        self.background.abandon();
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
        self.store.names.signal_all();
        let now = self.store.clock.now();
        for hold in self.store.names.all_holds() {
            self.store.schedule.remove(&hold);
            hold.take_back(now);
        }
    }

    /// The backend has freed `name` on somebody's order: our own holds of it are over.
    ///
    /// `ids` are what the backend may have had before the order: one that was granted since may be the next holder.
    pub(crate) fn forced(&self, name: &LockName, ids: &[HoldId]) {
        let names = &self.store.names;
        names.forget_parked(name, ids);
        // Others learn of it as they learn of any release.
        for hold in names.holds_of(name).iter().filter(|hold| ids.contains(&hold.id)) {
            renewal::gone(&self.store, hold);
        }
    }
}
