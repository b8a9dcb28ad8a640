//! [`OnDrop`]: the one way in which work that a dropped future leaves is carried out.

use std::{fmt, sync::Arc};

use tokio::sync::oneshot;

use super::{condition::ConditionPlace, lanes::LaneCell, release::ReleaseWork, shared::Client};
use crate::{BackendError, backend::ReleaseRequest, engine::HoldNumber, time::Moment};

/// Work that has to happen, whatever becomes of the future that began it.
#[derive(Debug)]
pub(crate) enum Cleanup {
    /// Gives back a hold.
    Release(Box<ReleaseWork>),
    /// Takes back what a request may have left.
    Undo(Box<Undo>),
    /// Brings the backend's count of a hold down to the number of guards that there are.
    StoreCount { cell: Arc<LaneCell>, hold: HoldNumber },
    /// Leaves a condition.
    LeaveCondition(Box<ConditionPlace>),
}

/// What a request may have left at the backend: a hold, or a place in a queue.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(crate) cell: Arc<LaneCell>,
    pub(crate) request: ReleaseRequest,
    /// When it ends by itself at the latest.
    pub(crate) until: Moment,
}

/// Carries out a [`Cleanup`] when it is dropped, unless it is disarmed before.
pub(crate) struct OnDrop {
    client: Arc<Client>,
    cleanup: Option<Cleanup>,
}

impl OnDrop {
    pub(crate) fn new(client: &Arc<Client>, cleanup: Cleanup) -> Self {
        Self { client: client.clone(), cleanup: Some(cleanup) }
    }

    /// There is nothing to be done any more. Returns what would have been.
    pub(crate) fn disarm(mut self) -> Option<Cleanup> {
        self.cleanup.take()
    }

    /// What would be done.
    pub(crate) fn cleanup(&mut self) -> Option<&mut Cleanup> {
        self.cleanup.as_mut()
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(cleanup) = self.cleanup.take() {
            self.client.clean_up(cleanup);
        }
    }
}

impl fmt::Debug for OnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnDrop").field(&self.cleanup).finish()
    }
}

impl OnDrop {
    /// Leaves a condition in the background when it is dropped.
    pub(crate) fn leaving(client: &Arc<Client>, place: ConditionPlace) -> Self {
        Self::new(client, Cleanup::LeaveCondition(Box::new(place)))
    }

    /// Leaves a condition in the background, and reports whether the waiter was notified before it
    /// left: `None` if not. Otherwise the notification is passed on when the report is dropped.
    pub(crate) fn leave_and_report(
        client: &Arc<Client>,
        place: ConditionPlace,
    ) -> oneshot::Receiver<Result<Option<Self>, BackendError>> {
        let (reporter, report) = oneshot::channel();
        let of_place = client.clone();
        client.submit(&client.leaving, async move {
            let client = of_place;
            let was_in = place.leave(&client).await;
            let unheard = reporter.send(was_in.map(|was_in| match was_in {
                true => None,
                false => Some(Self::leaving(&client, place.cancelled())),
            }));
            drop(unheard);
        });
        report
    }
}

impl Client {
    /// Has the background carry out `cleanup`.
    pub(crate) fn clean_up(self: &Arc<Self>, cleanup: Cleanup) {
        let client = self.clone();
        match cleanup {
            Cleanup::Release(work) => self.submit(&self.pending_releases, work.carry_out()),
            Cleanup::Undo(undo) => {
                let work = ReleaseWork::undo(self, *undo);
                self.submit(&self.pending_releases, work.carry_out());
            }
            Cleanup::StoreCount { cell, hold } => {
                let stored = async move { client.store_count(&cell, hold).await };
                self.submit(&self.pending_releases, stored);
            }
            Cleanup::LeaveCondition(place) => {
                let left = async move { place.leave_or_warn(&client).await };
                self.submit(&self.leaving, left);
            }
        }
    }
}
