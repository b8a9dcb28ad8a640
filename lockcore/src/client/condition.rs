//! [`ConditionPlace`]: the place of one that waits to be notified.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Client,
    cleanup::{Cleanup, OnDrop},
};
use crate::{
    BackendError,
    backend::{ConditionId, Departure},
    time::Backoff,
};

/// A place in the queue of a condition. Left by [`leave`](Self::leave).
#[derive(Debug)]
pub(crate) struct ConditionPlace {
    id: ConditionId,
    waiter: Arc<str>,
    /// How long the place would be kept otherwise.
    keep: Duration,
    /// What becomes of a notification that it got.
    departure: Departure,
    /// Where it is reported whether the waiter was notified before it left.
    report: Option<oneshot::Sender<Report>>,
}

/// If the waiter was notified before it left: what passes the notification on if it is dropped,
/// with the report or by who got that.
pub(crate) type Report = Result<Option<OnDrop>, BackendError>;

impl ConditionPlace {
    pub(crate) fn new(
        id: &ConditionId,
        waiter: &Arc<str>,
        keep: Duration,
        departure: Departure,
    ) -> Self {
        let (id, waiter) = (id.clone(), waiter.clone());
        Self { id, waiter, keep, departure, report: None }
    }

    /// Reports whether the waiter was notified before it left.
    pub(crate) fn reporting_to(mut self, report: oneshot::Sender<Report>) -> Self {
        self.report = Some(report);
        self
    }

    /// Attempts until it is done, hopeless or needless.
    pub(super) async fn leave(mut self, client: &Arc<Client>) {
        let Some(report) = self.report.take() else {
            return self.leave_as(client, self.departure).await.map_or_else(warn, |_| ());
        };
        let was_in = self.leave_as(client, Departure::TimedOut).await;
        self.departure = Departure::Cancelled;
        let unheard = report.send(was_in.map(|was_in| match was_in {
            true => None,
            false => Some(OnDrop::leaving(client, self)),
        }));
        drop(unheard);
    }

    /// Returns whether it was in.
    async fn leave_as(
        &self,
        client: &Arc<Client>,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let Some(conditions) = client.backend.conditions() else { return Ok(true) };
        let until = client.clock.now().after(self.keep);
        let mut backoff = Backoff::default();
        loop {
            let call = conditions.leave(&self.id, &self.waiter, departure);
            match client.answer(call).await {
                Ok(was_in) => return Ok(was_in),
                Err(error) if !error.is_retryable() || client.clock.now() >= until => {
                    return Err(error.with_lock(&self.id.lock));
                }
                Err(_) => tokio::time::sleep(backoff.next()).await,
            }
        }
    }
}

fn warn(error: BackendError) {
    tracing::warn!(%error, "a waiter could not leave its condition; its place lapses");
}

/// Leaves a condition in the background when it is dropped.
impl OnDrop {
    pub(crate) fn leaving(client: &Arc<Client>, place: ConditionPlace) -> Self {
        Self::new(client, Cleanup::LeaveCondition(Box::new(place)))
    }
}
