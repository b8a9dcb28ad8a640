//! Renewal on a cluster: the holds of each node together.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockcore::{BackendError, BackendErrorKind, backend::RenewOutcome};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Cluster,
    slots::{NodeAddress, slot_of_keys},
};
use crate::{
    error,
    renewal::{self, Renewal},
    reply, script,
    server::Purpose,
};

/// How much later than those of the first node the outcomes of the others may come, and which part
/// of a lease at most. The holds on a node that answers must not be lost because another one is
/// slow or down: the core waits for the outcomes for a third of the lease.
const LONGEST_GRACE: Duration = Duration::from_millis(500);
const GRACE_PER_LEASE: u32 = 12;

/// The holds of one node, with their places among all that are renewed.
type HoldsOfNode = (Vec<usize>, Vec<Renewal>);

/// Renews holds, the shortest for `lease`. Each has its own outcome.
pub(crate) async fn renew(
    cluster: &Arc<Cluster>,
    renewals: Vec<Renewal>,
    lease: Duration,
) -> Vec<RenewOutcome> {
    let grace = LONGEST_GRACE.min(lease / GRACE_PER_LEASE);
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
        // A task, so that a connection that does not answer is given up in the end.
        tokio::spawn(async move {
            let outcomes = cluster.renew_on(node, &renewals).await;
            // The caller may have given up.
            let _ = sender.send((indices, outcomes));
        });
    }
    drop(sender);
    let mut limit: Option<Instant> = None;
    while outcomes.iter().any(Option::is_none) {
        let of_node = match limit {
            None => renewed.recv().await,
            Some(limit) => tokio::time::timeout_at(limit, renewed.recv()).await.unwrap_or(None),
        };
        let Some((indices, of_node)) = of_node else { break };
        limit = limit.or_else(|| Some(Instant::now() + grace));
        for (index, outcome) in indices.into_iter().zip(of_node) {
            outcomes[index] = Some(outcome);
        }
    }
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
}

impl Cluster {
    /// Renews the holds of one node, which may not serve all of their slots any more.
    async fn renew_on(
        self: &Arc<Self>,
        node: Option<NodeAddress>,
        renewals: &[Renewal],
    ) -> Vec<RenewOutcome> {
        self.refresh_if_old();
        let slot = renewals.first().and_then(|renewal| slot_of_keys(&renewal.keys).ok());
        let (Some(node), Some(slot)) = (node, slot) else { return self.renew_each(renewals).await };
        match self.hop_to_owner(slot, Purpose::Commands).await {
            Ok(hop) if hop.node == node => {}
            // The slots have moved while the node was waited for.
            Ok(_) => return self.renew_each(renewals).await,
            Err(error) => {
                return renewals.iter().map(|_| RenewOutcome::Failed(error.clone())).collect();
            }
        }
        let server = self.nodes.server(&node);
        let renewing = renewal::renew(&server, renewals, Some(self.publishing()));
        let mut outcomes = self.promptly(renewing).await;
        let elsewhere: Vec<usize> = (0..).zip(&outcomes).filter_map(is_elsewhere).collect();
        let others = elsewhere.iter().map(|index| self.renew_one(&renewals[*index]));
        for (index, outcome) in elsewhere.iter().zip(join_all(others).await) {
            outcomes[*index] = outcome;
        }
        outcomes
    }

    async fn renew_each(self: &Arc<Self>, renewals: &[Renewal]) -> Vec<RenewOutcome> {
        join_all(renewals.iter().map(|renewal| self.renew_one(renewal))).await
    }

    async fn renew_one(self: &Arc<Self>, renewal: &Renewal) -> RenewOutcome {
        let renewed = self.call(&renewal.call(), |reply| reply::renew(reply, 1)).await;
        let outcome = renewed.map(|mut one| one.pop());
        let missing = || RenewOutcome::Failed(error::unexpected(script::RENEW.name));
        outcome.map_or_else(RenewOutcome::Failed, |outcome| outcome.unwrap_or_else(missing))
    }
}

/// The place of a hold whose slot the node does not serve, or not any more.
fn is_elsewhere((index, outcome): (usize, &RenewOutcome)) -> Option<usize> {
    match outcome {
        RenewOutcome::Failed(error) if error::is_of_slot(&error.to_string()) => Some(index),
        _ => None,
    }
}

fn unanswered() -> RenewOutcome {
    let message = format!("{} on Redis failed: the node does not answer", script::RENEW.name);
    RenewOutcome::Failed(BackendError::new(BackendErrorKind::Timeout, message))
}
