//! The end of a client, and of holds by an operator's order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::{
    lanes::HoldFacts,
    shared::{ABANDONED, CLOSED, Client, OPEN},
};
use crate::{
    BackendError, BackendErrorKind, LockError, LockName, LossReason, Mode,
    backend::HoldId,
    engine::{HoldNumber, Lane},
    time::Moment,
};

/// How long `close()` waits for acquisitions that it cut off. One that is never polled again delays
/// it no longer.
const CUT_OFF: Duration = Duration::from_secs(1);

/// How long `close()` waits for the recorder of the metrics.
const RECORDER: Duration = Duration::from_secs(10);

/// The live holds of a lane, each with its mode and the time since which it was held.
fn live<W>(lane: &Lane<W, HoldFacts>, now: Moment) -> SmallVec<[(Mode, Moment); 1]> {
    let live = lane.holds().iter().filter(|hold| hold.is_live(now));
    live.map(|hold| (hold.mode, hold.facts.acquired_at)).collect()
}

impl Client {
    /// Releases everything, and refuses later acquisitions.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<(), LockError> {
        let _ = self.life.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
        self.closing.notify_waiters();
        let now = self.clock.now();
        let mut releases = JoinSet::new();
        for cell in self.lanes.all() {
            let (closed, taken_back) = self.with(&cell, |lane, fx| {
                let (closed, taken_back) = (live(lane, now), lane.close(now, fx));
                taken_back.iter().for_each(|_| self.pending_releases.add());
                (closed, taken_back)
            });
            self.report_closed(&cell, &closed, now);
            for release in taken_back {
                release.facts.tell(Some(LossReason::Closed));
                releases.spawn(self.release_of(&cell, release).confirm());
            }
        }
        let mut result = Ok(());
        while let Some(released) = releases.join_next().await {
            match released {
                // A hold that was lost before needs no release.
                Ok(Ok(()) | Err(LockError::Lost { .. })) | Err(_) => {}
                Ok(Err(error)) => result = Err(error),
            }
        }
        // Acquisitions that are cut off leave their undo to the background.
        let _ = tokio::time::timeout(CUT_OFF, self.acquiring.none()).await;
        // Other holds are being released by their tasks or in the background.
        let patience = self.settings.retry_for.max(Duration::from_millis(100));
        let is_done = tokio::time::timeout(patience, self.pending_releases.none()).await.is_ok();
        // A place in a condition lapses by itself, and is no release.
        let _ = tokio::time::timeout(CUT_OFF, self.leaving.none()).await;
        self.leftover().remove().await;
        self.background.dismiss();
        let _ = tokio::time::timeout(RECORDER, self.measure.publish_all()).await;
        if !is_done {
            result = result.and(Err(self.unconfirmed().into()));
        }
        result
    }

    /// The error for releases that began before `close()` and are not confirmed.
    fn unconfirmed(&self) -> BackendError {
        let message = "releases that began before `close()` are not confirmed yet";
        let error = BackendError::new(BackendErrorKind::Timeout, message);
        let lanes = self.lanes.all();
        match lanes.iter().find(|cell| cell.look(|lane| lane.is_releasing())) {
            Some(cell) => error.with_lock(cell.name()),
            None => error,
        }
    }

    /// Ends like a process that crashes: nothing is released, and no background work goes on.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.life.store(ABANDONED, Ordering::SeqCst);
        self.presence.abandon();
        self.background.stop();
        self.closing.notify_waiters();
        let now = self.clock.now();
        for cell in self.lanes.all() {
            // Every waiter is woken, and every guard finds its hold closed.
            let (closed, abandoned) =
                self.with(&cell, |lane, fx| (live(lane, now), lane.close(now, fx)));
            self.report_closed(&cell, &closed, now);
            for release in abandoned {
                release.facts.tell(Some(LossReason::Closed));
                self.with(&cell, |lane, fx| lane.end_release(release.number, fx));
            }
        }
        self.measure.publish();
    }

    /// The backend freed `name` in a forced release: this client's holds of it are over.
    ///
    /// `ids` are the holds that the backend may have had before the forced release. A hold granted
    /// since then may be the next holder's, and stays.
    pub(crate) fn forced(self: &Arc<Self>, name: &LockName, ids: &[HoldId]) {
        for cell in self.lanes.of(name) {
            self.with(&cell, |lane, fx| {
                let over = lane.holds().iter().filter(|hold| ids.contains(&hold.facts.id));
                let over: Vec<HoldNumber> = over.map(|hold| hold.number).collect();
                for hold in over {
                    lane.gone(hold, fx);
                    lane.forget_parked(hold, fx);
                }
            });
        }
    }
}
