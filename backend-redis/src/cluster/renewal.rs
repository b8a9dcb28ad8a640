//! Renewal on a cluster, for the holds of each node together.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockcore::{BackendError, BackendErrorKind, backend::RenewOutcome};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Cluster, ClusterRequest, Trail,
    slots::{NodeAddress, slot_of_keys},
};
use crate::{
    error,
    renewal::{self, Renewal},
    reply, script,
    server::Purpose,
};

/// The longest wait for outcomes: this fraction of the shortest lease, up to a maximum. The holds
/// on a node that answers must not be lost because another node is slow or down. The core waits for
/// a third of the lease.
const PART_OF_LEASE: u32 = 4;
const LONGEST_ANSWER: Duration = Duration::from_secs(4);

/// The holds of one node, with their places among all that are renewed.
type HoldsOfNode = (Vec<usize>, Vec<Renewal>);

/// Renews holds, the shortest for `lease`. Each has its own outcome.
pub(crate) async fn renew(
    cluster: &Arc<Cluster>,
    renewals: Vec<Renewal>,
    lease: Duration,
) -> Vec<RenewOutcome> {
    let limit = Instant::now() + LONGEST_ANSWER.min(lease / PART_OF_LEASE);
    let mut outcomes: Vec<Option<RenewOutcome>> = renewals.iter().map(|_| None).collect();
    let map = cluster.map();
    let mut by_node = HashMap::<_, HoldsOfNode>::new();
    for (index, renewal) in renewals.into_iter().enumerate() {
        let slot = slot_of_keys(&renewal.keys).ok();
        let node = slot.and_then(|slot| map.owner(slot).cloned());
        let (indices, renewals) = by_node.entry(node).or_default();
        indices.push(index);
        renewals.push(renewal);
    }
    let (sender, mut renewed) = mpsc::unbounded_channel();
    for (node, (indices, renewals)) in by_node {
        let (cluster, sender) = (cluster.clone(), sender.clone());
        let tell = move |position: usize, outcome| {
            // The caller may have given up.
            let _ = sender.send((indices[position], outcome));
        };
        // A task, so that a connection that does not answer is given up in the end.
        tokio::spawn(async move { cluster.renew_on(node, &renewals, tell).await });
    }
    drop(sender);
    while let Ok(Some((index, outcome))) = tokio::time::timeout_at(limit, renewed.recv()).await {
        outcomes[index] = Some(outcome);
    }
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
}

impl Cluster {
    /// Renews the holds of one node, which may not serve all of their slots any more. Tells each
    /// outcome as soon as it is known, with the position of the hold.
    async fn renew_on(
        self: &Arc<Self>,
        node: Option<NodeAddress>,
        renewals: &[Renewal],
        tell: impl Fn(usize, RenewOutcome),
    ) {
        self.refresh_if_old();
        let all = || 0..renewals.len();
        let slot = renewals.first().and_then(|renewal| slot_of_keys(&renewal.keys).ok());
        let (Some(node), Some(slot), 2..) = (node, slot, renewals.len()) else {
            return self.renew_each(renewals, all(), &tell).await;
        };
        match self.hop_to_owner(slot, Purpose::Commands).await {
            Ok(hop) if hop.node() == node => {}
            // The slots have moved during the wait for the node.
            Ok(_) => return self.renew_each(renewals, all(), &tell).await,
            Err(error) => {
                return all().for_each(|index| tell(index, RenewOutcome::Failed(error.clone())));
            }
        }
        let server = self.nodes.server(&node);
        let renewing = renewal::renew(&server, renewals, Some(self.publishing()));
        let mut elsewhere = Vec::new();
        for (index, outcome) in renewing.await.into_iter().enumerate() {
            match is_elsewhere(&outcome) {
                true => elsewhere.push(index),
                false => tell(index, outcome),
            }
        }
        self.renew_each(renewals, elsewhere, &tell).await;
    }

    /// Renews some of the holds in calls of their own, which follow their slots.
    async fn renew_each(
        self: &Arc<Self>,
        renewals: &[Renewal],
        indices: impl IntoIterator<Item = usize>,
        tell: &impl Fn(usize, RenewOutcome),
    ) {
        let renewing = indices.into_iter().map(async |index| {
            tell(index, self.renew_one(&renewals[index]).await);
        });
        join_all(renewing).await;
    }

    async fn renew_one(self: &Arc<Self>, renewal: &Renewal) -> RenewOutcome {
        let (call, trail) = (renewal.call(), Trail::new(Purpose::Commands));
        let decode = |reply| reply::renew(reply, 1);
        let renewed = self.send_on_trail(ClusterRequest::Alone(&call), &trail, decode).await;
        let outcome = renewed.and_then(|mut one| trail.still_leads().map(|()| one.pop()));
        let missing = || RenewOutcome::Failed(error::unexpected(script::RENEW.name));
        outcome.map_or_else(RenewOutcome::Failed, |outcome| outcome.unwrap_or_else(missing))
    }
}

/// Returns `true` if the node does not serve the slot of the hold, or not any more.
fn is_elsewhere(outcome: &RenewOutcome) -> bool {
    match outcome {
        RenewOutcome::Failed(error) => error::is_of_slot(&error.to_string()),
        _ => false,
    }
}

fn unanswered() -> RenewOutcome {
    let message = format!("{} on Redis failed: the node does not answer", script::RENEW.name);
    RenewOutcome::Failed(BackendError::new(BackendErrorKind::Timeout, message))
}
