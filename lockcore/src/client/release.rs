//! Releases, either immediate and confirmed, or in the background until the lease is over.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    cleanup::{Cleanup, OnDrop, Undo},
    foreign::foreign,
    lanes::LaneCell,
    outcome::BackendCall,
    shared::Client,
};
use crate::{
    BackendError, BackendErrorKind, LockError, LossReason,
    backend::{ReleaseOutcome, ReleaseRequest},
    engine::{HoldNumber, ReleaseNumber},
    time::{Backoff, Moment},
};

/// The number of attempts that a caller of `release()` waits for.
const ATTEMPTS: u32 = 3;

/// A release, and the time until which it is worth trying. `close()` waits until this value is
/// dropped.
///
/// It is counted among the pending releases while the lane that it comes from is still locked,
/// because `close()` looks at the lanes first and at the count after that.
#[derive(Debug)]
pub(crate) struct ReleaseWork {
    client: Arc<Client>,
    cell: Arc<LaneCell>,
    /// Until the first answer, acquisitions of this client that would meet the hold do not ask.
    number: Option<ReleaseNumber>,
    request: ReleaseRequest,
    /// The latest time at which the hold ends by itself.
    until: Moment,
    /// Set if an attempt was not answered, so that the hold may be gone already.
    is_unanswered: bool,
}

impl ReleaseWork {
    /// The work of a release that was [counted](Client::pending_releases).
    pub(super) fn new(
        client: &Arc<Client>,
        cell: &Arc<LaneCell>,
        number: ReleaseNumber,
        request: ReleaseRequest,
        until: Moment,
    ) -> Self {
        let (client, cell, number) = (client.clone(), cell.clone(), Some(number));
        Self { client, cell, number, request, until, is_unanswered: false }
    }

    /// The release of whatever a request may have left behind.
    pub(super) fn undo(undo: Undo) -> Self {
        let Undo { client, cell, request, until } = undo;
        client.pending_releases.add();
        let (cell, number) = client.begin_release(&cell);
        let mut work = Self::new(&client, &cell, number, request, until);
        work.is_unanswered = true;
        work
    }

    /// One attempt. Its answer, or its failure, lets local waiters go on.
    async fn attempt(&mut self) -> Result<ReleaseOutcome, BackendError> {
        let client = &self.client;
        if client.is_abandoned() {
            // The task of this release is about to be stopped, and may run once more before that.
            let message = "the client was abandoned";
            let error = BackendError::new(BackendErrorKind::Unavailable, message);
            return Err(error.with_lock(&self.request.name));
        }
        let answer = client.call(BackendCall::Release, client.backend.release(&self.request)).await;
        if let Err(error) = &answer {
            self.is_unanswered |= error.is_outcome_unknown();
        }
        self.end();
        answer.map_err(|error| error.with_lock(&self.request.name))
    }

    /// As [`attempt`](Self::attempt), but treats a panic of the backend as a temporary failure,
    /// since nobody else is there to try again.
    async fn attempt_in_background(&mut self) -> Result<ReleaseOutcome, BackendError> {
        let mut attempt = Box::pin(self.attempt());
        let attempted = poll_fn(|context| {
            let poll = AssertUnwindSafe(|| attempt.as_mut().poll(context));
            match catch_unwind(poll) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            }
        })
        .await;
        drop(attempt);
        if let Some(answer) = attempted {
            return answer;
        }
        self.is_unanswered = true;
        self.end();
        let error = BackendError::new(BackendErrorKind::Unavailable, "the backend panicked");
        Err(error.with_lock(&self.request.name))
    }

    fn end(&mut self) {
        if let Some(number) = self.number.take() {
            self.client.with(&self.cell, |lane, fx| lane.end_release(number, fx));
        }
    }

    /// Tells the waiters that a later attempt succeeded.
    fn tell(&self) {
        let (cell, number) = self.client.begin_release(&self.cell);
        self.client.with(&cell, |lane, fx| lane.end_release(number, fx));
    }

    /// Hands the release to the background task.
    pub(super) fn submit(self) {
        self.client.clone().submit(self.carry_out());
    }

    /// Retries until the release is done, hopeless or no longer needed.
    async fn carry_out(mut self) {
        let lock = self.request.name.clone();
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt_in_background().await {
                Ok(_) => break,
                Err(error) if error.is_retryable() && self.client.clock.now() < self.until => {
                    foreign(|| tracing::debug!(%lock, %error, "release failed, will be retried"));
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::warn!(
                        %lock, %error, "release failed; the lock is free when its lease ends"
                    );
                    return;
                }
            }
        }
        if attempts > 1 {
            self.tell();
        }
    }

    /// Releases, and returns when that is done or after `limit`. After `limit`, the background goes
    /// on.
    pub(crate) async fn carry_out_within(self, limit: Duration) {
        let mut pending = OnDrop::new(Cleanup::Release(self));
        let Some(Cleanup::Release(work)) = pending.cleanup() else { return };
        if let Ok(Ok(_)) = tokio::time::timeout(limit, work.attempt()).await {
            pending.disarm();
        }
    }

    /// Releases now. After a temporary failure, or if the future is dropped, the background goes
    /// on.
    pub(crate) fn confirm(
        self,
    ) -> impl Future<Output = Result<(), LockError>> + Send + 'static + use<> {
        confirm(OnDrop::new(Cleanup::Release(self)))
    }
}

#[expect(clippy::manual_async_fn, reason = "an `async fn` has room for its arguments twice")]
fn confirm(mut pending: OnDrop) -> impl Future<Output = Result<(), LockError>> + Send + 'static {
    async move {
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        loop {
            let Some(Cleanup::Release(work)) = pending.cleanup() else { return Ok(()) };
            if work.client.is_abandoned() {
                let lock = work.request.name.clone();
                pending.disarm();
                return Err(LockError::NotHeld { lock });
            }
            attempts += 1;
            match work.attempt().await {
                // An earlier attempt that was not answered may have freed it.
                Ok(ReleaseOutcome::NotHeld) if !work.is_unanswered => {
                    let lock = work.request.name.clone();
                    pending.disarm();
                    return Err(LockError::Lost { lock, reason: LossReason::Gone });
                }
                Ok(_) => {
                    if attempts > 1 {
                        work.tell();
                    }
                    pending.disarm();
                    return Ok(());
                }
                // Abandoned meanwhile, whatever the reason of the failure.
                Err(_) if work.client.is_abandoned() => {}
                Err(error) if !error.is_retryable() => {
                    pending.disarm();
                    return Err(error.into());
                }
                Err(error) if attempts == ATTEMPTS => return Err(error.into()),
                // Boxed, because hardly any release needs room for it.
                Err(_) => Box::pin(tokio::time::sleep(backoff.next())).await,
            }
        }
    }
}

impl Drop for ReleaseWork {
    fn drop(&mut self) {
        self.end();
        self.client.pending_releases.subtract();
    }
}

impl Client {
    /// Notes in a lane that a release is on its way. The lane is another cell if this one went
    /// idle.
    pub(super) fn begin_release(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
    ) -> (Arc<LaneCell>, ReleaseNumber) {
        self.in_lane(cell.clone(), |slot, _| slot.lane.begin_release())
    }

    /// Lowers the backend's hold count to the actual number of guards, for a hold whose nested
    /// growth the backend was told of.
    pub(super) async fn store_count(self: &Arc<Self>, cell: &Arc<LaneCell>, hold: HoldNumber) {
        let mut backoff = Backoff::default();
        loop {
            let Some(watch) = cell.watch(hold) else { return };
            let Ok(turn) = watch.turn().await else { continue };
            let due = cell.look(|lane| {
                let count = lane.count_to_store(hold)?;
                let hold = lane.hold(hold)?;
                Some((count, hold.facts.id.clone(), hold.mode))
            });
            let Some((count, id, mode)) = due else { return };
            let request = ReleaseRequest::new(cell.name().clone(), id).mode(mode).remaining(count);
            match self.call(BackendCall::Release, self.backend.release(&request)).await {
                Ok(_) => cell.look(|lane| lane.stored(hold, count)),
                Err(error) if error.is_retryable() => {
                    drop(turn);
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => {
                    let (lock, error) = (cell.name(), error.with_lock(cell.name()));
                    tracing::warn!(
                        %lock, %error, "the backend counts too many guards until the release"
                    );
                    return;
                }
            }
        }
    }
}
