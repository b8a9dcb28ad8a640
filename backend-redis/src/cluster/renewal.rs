//! Renewal on a cluster: a call for each hold, since they are in different slots.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockcore::{BackendError, BackendErrorKind, backend::RenewOutcome};
use tokio::{sync::mpsc, time::Instant};

use super::{Cluster, slots::slot_of_call};
use crate::{
    renewal::Renewal,
    reply,
    script::{self, ScriptCall},
};

/// How much later than those of the first node the outcomes of the others may come, and which part
/// of a lease at most. The holds on a node that answers must not be lost because another one is
/// slow or down: the core waits for the outcomes for a third of the lease.
const LONGEST_GRACE: Duration = Duration::from_millis(500);
const GRACE_PER_LEASE: u32 = 12;

/// Renews holds, the shortest for `lease`. Each has its own outcome.
pub(crate) async fn renew(
    cluster: &Arc<Cluster>,
    renewals: Vec<Renewal>,
    lease: Duration,
) -> Vec<RenewOutcome> {
    let grace = LONGEST_GRACE.min(lease / GRACE_PER_LEASE);
    let mut outcomes: Vec<Option<RenewOutcome>> = renewals.iter().map(|_| None).collect();
    let mut by_node = HashMap::<_, Vec<_>>::new();
    for (index, renewal) in renewals.into_iter().enumerate() {
        let call = renewal.into_call();
        let node = slot_of_call(&call).ok().and_then(|slot| cluster.map().owner(slot).cloned());
        by_node.entry(node).or_default().push((index, call));
    }
    let (sender, mut renewed) = mpsc::unbounded_channel();
    for calls in by_node.into_values() {
        let (cluster, sender) = (cluster.clone(), sender.clone());
        // A task, so that a connection that does not answer is given up in the end.
        tokio::spawn(async move {
            let renewing = calls.iter().map(|(index, call)| renew_one(&cluster, *index, call));
            // The caller may have given up.
            let _ = sender.send(join_all(renewing).await);
        });
    }
    drop(sender);
    let mut limit: Option<Instant> = None;
    while outcomes.iter().any(Option::is_none) {
        let of_node = match limit {
            None => renewed.recv().await,
            Some(limit) => tokio::time::timeout_at(limit, renewed.recv()).await.unwrap_or(None),
        };
        let Some(of_node) = of_node else { break };
        limit = limit.or_else(|| Some(Instant::now() + grace));
        for (index, outcome) in of_node {
            outcomes[index] = outcome;
        }
    }
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
}

async fn renew_one(
    cluster: &Arc<Cluster>,
    index: usize,
    call: &ScriptCall,
) -> (usize, Option<RenewOutcome>) {
    let renewed = cluster.call(call, |reply| reply::renew(reply, 1)).await;
    let outcome = renewed.map(|mut one| one.pop());
    (index, outcome.unwrap_or_else(|error| Some(RenewOutcome::Failed(error))))
}

fn unanswered() -> RenewOutcome {
    let message = format!("{} on Redis failed: the node does not answer", script::RENEW.name);
    RenewOutcome::Failed(BackendError::new(BackendErrorKind::Timeout, message))
}
