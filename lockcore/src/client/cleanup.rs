//! [`OnDrop`]: the one way in which work that a dropped future leaves is carried out.

use std::{fmt, sync::Arc};

use super::{Client, condition::ConditionPlace, lanes::LaneCell, release::ReleaseWork};
use crate::{backend::ReleaseRequest, engine::HoldNumber, time::Moment};

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

impl Client {
    /// Has the background carry out `cleanup`.
    pub(crate) fn clean_up(self: &Arc<Self>, cleanup: Cleanup) {
        let cleanup = match cleanup {
            Cleanup::Undo(undo) => Cleanup::Release(ReleaseWork::undo(self, *undo)),
            cleanup => cleanup,
        };
        self.submit(cleanup);
    }

    /// Carries out `cleanup`.
    pub(super) async fn carry_out_cleanup(self: &Arc<Self>, cleanup: Cleanup) {
        match cleanup {
            Cleanup::Release(work) => work.carry_out().await,
            Cleanup::Undo(undo) => ReleaseWork::undo(self, *undo).carry_out().await,
            Cleanup::StoreCount { cell, hold } => self.store_count(&cell, hold).await,
            Cleanup::LeaveCondition(place) => place.leave(self).await,
        }
    }
}
