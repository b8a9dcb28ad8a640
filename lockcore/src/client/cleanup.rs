//! [`OnDrop`]: carries out the work that a dropped future leaves behind.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{condition::ConditionPlace, lanes::LaneCell, release::ReleaseWork, shared::Client};
use crate::{LockError, backend::ReleaseRequest, engine::HoldNumber, time::Moment};

/// Work that has to happen, whatever becomes of the future that began it.
#[derive(Debug)]
pub(crate) enum Cleanup {
    /// Gives back a hold.
    Release(ReleaseWork),
    /// Undoes whatever a request may have left behind.
    Undo(Undo),
    /// Lowers the backend's hold count to the number of guards.
    StoreCount { client: Arc<Client>, cell: Arc<LaneCell>, hold: HoldNumber },
    /// Leaves a condition.
    LeaveCondition { client: Arc<Client>, place: ConditionPlace },
}

/// The undoing of a request, which may have left a hold or a place in a queue at the backend.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(crate) client: Arc<Client>,
    pub(crate) cell: Arc<LaneCell>,
    pub(crate) request: ReleaseRequest,
    /// The latest time at which it ends by itself.
    pub(crate) until: Moment,
}

/// Carries out a [`Cleanup`] in the background when it is dropped, unless it is disarmed before.
#[derive(Debug)]
pub(crate) struct OnDrop(Option<Cleanup>);

impl OnDrop {
    pub(crate) fn new(cleanup: Cleanup) -> Self {
        Self(Some(cleanup))
    }

    /// Disarms it, and returns the clean-up.
    pub(crate) fn disarm(mut self) -> Option<Cleanup> {
        self.0.take()
    }

    /// The clean-up, while it is armed.
    pub(crate) fn cleanup(&mut self) -> Option<&mut Cleanup> {
        self.0.as_mut()
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(cleanup) = self.0.take() {
            cleanup.submit();
        }
    }
}

impl OnDrop {
    /// Leaves a condition in the background when it is dropped.
    pub(crate) fn leaving(client: &Arc<Client>, place: ConditionPlace) -> Self {
        Self::new(Cleanup::LeaveCondition { client: client.clone(), place })
    }

    /// Leaves a condition in the background, and reports whether the waiter was notified before it
    /// left: `None` if not. Otherwise the notification is passed on when the report is dropped.
    pub(crate) fn leave_and_report(
        client: &Arc<Client>,
        place: ConditionPlace,
    ) -> oneshot::Receiver<Result<Option<Self>, LockError>> {
        let (reporter, report) = oneshot::channel();
        let (client, counting) = (client.clone(), client.leaving.count_owned());
        client.clone().submit(async move {
            let was_in = place.leave(&client).await;
            let unheard = reporter.send(was_in.map(|was_in| match was_in {
                true => None,
                false => Some(Self::leaving(&client, place.cancelled())),
            }));
            drop((unheard, counting));
        });
        report
    }
}

impl Cleanup {
    /// Hands the clean-up to the background task.
    pub(super) fn submit(self) {
        match self {
            Self::Release(work) => work.submit(),
            Self::Undo(undo) => ReleaseWork::undo(undo).submit(),
            Self::StoreCount { client, cell, hold } => {
                let counting = client.pending_releases.count_owned();
                client.clone().submit(async move {
                    client.store_count(&cell, hold).await;
                    drop(counting);
                });
            }
            Self::LeaveCondition { client, place } => {
                let counting = client.leaving.count_owned();
                client.clone().submit(async move {
                    place.leave_or_warn(&client).await;
                    drop(counting);
                });
            }
        }
    }
}
