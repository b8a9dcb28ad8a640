//! Acquisitions: sending them, having replicas acknowledge them if requested, and undoing them if
//! their outcome is unknown.

use std::sync::Arc;

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{AcquireOutcome, AcquireRequest, ReleaseOutcome, Replicas},
};

use crate::{
    RedisBackend,
    backend::Deployment,
    cluster::{Cluster, Trail},
    dispatch::Dispatch,
    reply,
    server::{CommandConnection, Purpose},
};

pub(crate) async fn acquire(
    backend: &RedisBackend,
    request: &AcquireRequest,
) -> Result<AcquireOutcome, BackendError> {
    let keys = backend.keys(&request.name)?;
    let demand = demand(backend, request);
    let purpose = if demand.is_some() { Purpose::Acknowledged } else { Purpose::Commands };
    // A nested acquisition is not undone: the release would end the outer hold as well.
    let undone = (request.count == 1).then_some(request);
    match backend.deployment() {
        Deployment::Single(server) => {
            let dispatch = Dispatch::acquire(keys, request)?;
            let connection = server.connection_for(purpose).await?;
            let sent = Sent::Single(&connection);
            let unanswered = ReleaseUnanswered { backend, sent, request: undone };
            let outcome = dispatch.send(&connection, reply::acquire).await;
            unanswered.end_with(outcome, demand).await
        }
        Deployment::Cluster(cluster) => {
            let dispatch = Dispatch::acquire(keys, request)?.on_cluster(cluster);
            let trail = Trail::new(purpose);
            let sent = Sent::Cluster(cluster, &trail);
            let unanswered = ReleaseUnanswered { backend, sent, request: undone };
            let outcome = dispatch.send_on_trail(cluster, &trail, reply::acquire).await;
            unanswered.end_with(outcome, demand).await
        }
    }
}

/// The replicas that have to acknowledge the hold, if any. For the growth of a hold, none is asked,
/// because the growth cannot be undone on its own.
fn demand(backend: &RedisBackend, request: &AcquireRequest) -> Option<Replicas> {
    let demand = request.replicas.or(backend.replicas())?;
    (demand.count > 0 && request.count == 1).then_some(demand)
}

/// Sends a release behind an acquisition whose reply is lost, on the same connection.
///
/// The core releases such a hold as well. But it may do so through a new connection, and the server
/// may read that connection first.
struct ReleaseUnanswered<'a> {
    backend: &'a RedisBackend,
    sent: Sent<'a>,
    request: Option<&'a AcquireRequest>,
}

/// Where an acquisition was sent.
enum Sent<'a> {
    Single(&'a Arc<CommandConnection>),
    Cluster(&'a Arc<Cluster>, &'a Trail),
}

impl ReleaseUnanswered<'_> {
    /// Ends the acquisition with `outcome`, once the `demand` is met if there is one. After a reply
    /// that says whether the hold was granted, nothing needs to be undone.
    async fn end_with(
        mut self,
        outcome: Result<AcquireOutcome, BackendError>,
        demand: Option<Replicas>,
    ) -> Result<AcquireOutcome, BackendError> {
        let outcome = match (outcome, self.request.zip(demand)) {
            (Ok(AcquireOutcome::Acquired { token }), Some((request, demand))) => {
                // Boxed, because this future is large and rarely needed.
                let acknowledged = Box::pin(self.acknowledged(request, demand)).await;
                acknowledged.map(|replicas| AcquireOutcome::Acknowledged { token, replicas })
            }
            (outcome, _) => outcome,
        };
        let outcome = match outcome {
            Ok(granted) if granted.token().is_some() && self.is_too_late() => {
                Err(granted_too_late())
            }
            outcome => outcome,
        };
        if !matches!(&outcome, Err(error) if error.is_outcome_unknown()) {
            self.request = None;
        }
        outcome
    }

    /// Returns `true` if the primary may have been succeeded by one that does not know the hold.
    fn is_too_late(&self) -> bool {
        match self.sent {
            Sent::Single(connection) => self.backend.has_sentinels() && !connection.is_usable(),
            Sent::Cluster(_, trail) => trail.is_given_up(),
        }
    }

    /// Waits until replicas have acknowledged the hold, and returns their number. If too few do,
    /// ends the hold.
    async fn acknowledged(
        &self,
        request: &AcquireRequest,
        demand: Replicas,
    ) -> Result<u32, BackendError> {
        let replicas = match self.sent {
            Sent::Single(connection) => connection.wait_for_replicas(demand, None).await,
            Sent::Cluster(_, trail) => {
                let key = self.backend.keys(&request.name)?.lock();
                trail.wait_for_replicas(demand, key).await
            }
        };
        let error = match replicas {
            Ok(replicas) if replicas >= demand.count => return Ok(replicas),
            Ok(replicas) => too_few(replicas, demand),
            Err(error) => error,
        };
        match self.undo(request).await {
            Ok(_) if !self.backend.has_sentinels() => Err(error.not_applied()),
            // A failover may bring the hold back. So the core is to undo it as well: its releases
            // are repeated then, and its next request has another id.
            Ok(_) => Err(error.maybe_applied()),
            // A server that is no primary any more refuses `WAIT` for good.
            Err(undo) if undo.is_retryable() && !error.is_retryable() => Err(undo.maybe_applied()),
            Err(_) => Err(error.maybe_applied()),
        }
    }

    /// Ends the hold, on the connection of the acquisition.
    async fn undo(&self, request: &AcquireRequest) -> Result<ReleaseOutcome, BackendError> {
        let undo = Dispatch::release(self.backend.keys(&request.name)?, &request.undo())?;
        match self.sent {
            Sent::Single(connection) => undo.send(connection, reply::release).await,
            Sent::Cluster(cluster, trail) => {
                let undo = undo.on_cluster(cluster);
                undo.send_on_trail(cluster, trail, reply::release).await
            }
        }
    }
}

fn granted_too_late() -> BackendError {
    let message = "the connection to the primary was given up before it granted the hold";
    BackendError::new(BackendErrorKind::Connection, message)
}

fn too_few(replicas: u32, demand: Replicas) -> BackendError {
    let Replicas { count, timeout, .. } = demand;
    let message = format!(
        "{replicas} of the {count} replicas that were asked for acknowledged the hold within \
         {timeout:?}, so it is released; check the replicas of the server, or ask for fewer or \
         for a longer time"
    );
    BackendError::new(BackendErrorKind::Unavailable, message)
}

impl Drop for ReleaseUnanswered<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        // Without a runtime, the connection does not work either.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(keys) = self.backend.keys(&request.name) else { return };
        let Ok(undo) = Dispatch::release(keys, &request.undo()) else { return };
        match self.sent {
            Sent::Single(connection) => {
                let connection = connection.clone();
                runtime.spawn(async move { report(undo.send(&connection, |_| Ok(())).await) });
            }
            Sent::Cluster(cluster, trail) => {
                // Without a trail, no node may have granted the hold.
                let Some(trail) = trail.take() else { return };
                let (undo, cluster) = (undo.on_cluster(cluster), cluster.clone());
                runtime.spawn(async move {
                    let undoing = undo.send_on_trail(&cluster, &trail, reply::release);
                    report(undoing.await.map(drop));
                });
            }
        }
    }
}

fn report(undone: Result<(), BackendError>) {
    if let Err(error) = undone {
        tracing::debug!(%error, "failed to release a hold after a lost reply to acquire");
    }
}
