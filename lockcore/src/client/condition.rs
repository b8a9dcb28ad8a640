//! [`ConditionPlace`]: the place of a waiter that waits to be notified.

use std::{sync::Arc, time::Duration};

use super::shared::Client;
use crate::{
    LockError,
    backend::{ConditionId, Departure},
};

/// A place in the queue of a condition.
#[derive(Debug)]
pub(crate) struct ConditionPlace {
    id: ConditionId,
    waiter: Arc<str>,
    /// How long the place is kept if it is not left.
    keep: Duration,
    /// The way of leaving, which decides what happens to a notification that it got.
    departure: Departure,
}

impl ConditionPlace {
    pub(crate) fn new(
        id: &ConditionId,
        waiter: &Arc<str>,
        keep: Duration,
        departure: Departure,
    ) -> Self {
        let (id, waiter) = (id.clone(), waiter.clone());
        Self { id, waiter, keep, departure }
    }

    /// The same place, but passing on a notification that it got.
    pub(super) fn cancelled(self) -> Self {
        Self { departure: Departure::Cancelled, ..self }
    }

    /// Leaves, or logs a warning. A place that cannot be left lapses.
    pub(super) async fn leave_or_warn(&self, client: &Arc<Client>) {
        if let Err(error) = self.leave(client).await {
            tracing::warn!(%error, "a waiter could not leave its condition; its place lapses");
        }
    }

    /// Leaves, retrying until that is done, hopeless or no longer needed. Returns `true` if the
    /// place was still there.
    pub(super) async fn leave(&self, client: &Arc<Client>) -> Result<bool, LockError> {
        let Some(conditions) = client.backend.conditions() else { return Ok(true) };
        let leave = || conditions.leave(&self.id, &self.waiter, self.departure);
        client.repeat(&self.id.lock, self.keep, &mut None, leave).await
    }
}
