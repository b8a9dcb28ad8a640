//! Giving holds back: at once and confirmed, or in the background until the lease is over.

use std::{sync::Arc, time::Duration};

use crate::{
    BackendError, LockError, LossReason,
    acquiring::retry::Backoff,
    acquiring::waiters::{Cell, Releasing},
    backend::{ReleaseOutcome, ReleaseRequest},
    leases::background::{Background, Job},
    leases::clock::Moment,
    leases::hold::Hold,
    store::Store,
};

/// How often a caller of `release()` is kept waiting for another attempt.
const ATTEMPTS: u32 = 3;

/// A hold that has to be given back. Dropped before that is done, it is done in the background.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    store: Arc<Store>,
    background: Arc<Background>,
    work: Option<ReleaseWork>,
}

/// What is to be released, and until when it is worth trying.
#[derive(Debug)]
pub(crate) struct ReleaseWork {
    request: ReleaseRequest,
    /// When the hold ends by itself at the latest.
    until: Moment,
    /// Until the first answer, no acquisition of this client asks for the name.
    releasing: Releasing,
    /// An attempt went unanswered, so the hold may be gone already.
    unanswered: bool,
}

impl ReleaseWork {
    /// The release of a hold that nobody can enter any more.
    fn of(hold: &Hold, releasing: Releasing) -> Self {
        Self { request: hold.release_request(), until: hold.asked(), releasing, unanswered: false }
    }

    /// The release of a parked hold, unless somebody may still take it over, or has.
    pub(crate) fn of_parked(store: &Store, hold: &Arc<Hold>, now: Moment) -> Option<Self> {
        store.names.unpark(hold, now).map(|releasing| Self::of(hold, releasing))
    }

    /// One attempt. Its answer, or its failure, lets local waiters go on.
    async fn attempt(&mut self, store: &Store) -> Result<ReleaseOutcome, BackendError> {
        let answer = store.answer(store.backend.release(&self.request)).await;
        if let Err(error) = &answer {
            self.unanswered |= error.is_outcome_unknown();
        }
        self.releasing.end();
        answer.map_err(|error| error.with_lock(&self.request.name))
    }

    /// Attempts until it is done, hopeless or needless.
    pub(crate) async fn carry_out(mut self, store: &Store) {
        let mut backoff = Backoff::default();
        loop {
            match self.attempt(store).await {
                Ok(_) => break,
                Err(error) if error.is_retryable() && store.clock.now() < self.until => {
                    tracing::debug!(lock = %self.request.name, %error, "release failed, will be retried");
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::warn!(lock = %self.request.name, %error, "release failed; the lock is free when its lease ends");
                    break;
                }
            }
        }
        store.names.wake(&self.releasing.cell);
    }
}

impl PendingRelease {
    /// Prepares the release of a hold that nobody can enter any more.
    pub(crate) fn of(
        store: &Arc<Store>,
        background: &Arc<Background>,
        hold: &Hold,
        releasing: Releasing,
    ) -> Self {
        let work = ReleaseWork::of(hold, releasing);
        Self { store: store.clone(), background: background.clone(), work: Some(work) }
    }

    /// Prepares the release of what `request` may have left, with a lease of at most `lease`.
    pub(crate) fn undoing(
        store: &Arc<Store>,
        background: &Arc<Background>,
        request: ReleaseRequest,
        cell: &Arc<Cell>,
        lease: Duration,
    ) -> Self {
        let work = ReleaseWork {
            request,
            until: store.clock.now().after(lease),
            releasing: store.names.releasing(cell),
            unanswered: false,
        };
        Self { store: store.clone(), background: background.clone(), work: Some(work) }
    }

    /// Releases now. After a failure that may pass, the background goes on.
    pub(crate) async fn confirm(mut self) -> Result<(), LockError> {
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        loop {
            let Some(work) = &mut self.work else { return Ok(()) };
            attempts += 1;
            match work.attempt(&self.store).await {
                // An earlier attempt that went unanswered may be what freed it.
                Ok(ReleaseOutcome::NotHeld) if !work.unanswered => {
                    let lock = work.request.name.clone();
                    self.work = None;
                    return Err(LockError::Lost { lock, reason: LossReason::Gone });
                }
                Ok(_) => {
                    if attempts > 1 {
                        self.store.names.wake(&work.releasing.cell);
                    }
                    self.work = None;
                    return Ok(());
                }
                Err(error) if !error.is_retryable() => {
                    self.work = None;
                    return Err(error.into());
                }
                Err(error) if attempts == ATTEMPTS => return Err(error.into()),
                Err(_) => tokio::time::sleep(backoff.next()).await,
            }
        }
    }

    /// It turned out that there is nothing to release.
    pub(crate) fn disarm(mut self) {
        self.work = None;
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.background.submit(&self.store, Job::Release(work));
        }
    }
}

/// Brings the count at the backend down to the one that is true here, for a hold whose nested growth had to be
/// told to the backend.
pub(crate) async fn store_count(store: &Store, hold: &Hold) {
    let mut backoff = Backoff::default();
    loop {
        let order = hold.storing().lock().await;
        let Some(count) = hold.count_to_store() else { return };
        let request = hold.release_request().remaining(count);
        match store.answer(store.backend.release(&request)).await {
            Ok(_) => hold.set_stored(count),
            Err(error) if error.is_retryable() && hold.is_live(store.clock.now()) => {
                drop(order);
                tokio::time::sleep(backoff.next()).await;
            }
            Err(error) => {
                let error = error.with_lock(hold.name());
                tracing::warn!(lock = %hold.name(), %error, "the hold count at the backend stays too high until the release");
                return;
            }
        }
    }
}
