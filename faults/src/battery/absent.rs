//! Faults that a deployment cannot have, and why.

use crate::{
    deployment::Deployment,
    protocol::{Result, failure},
    report::{Report, Run},
};

/// Why there is no such fault on a deployment; `None` if there is.
pub(super) fn why(number: u32, on: Deployment) -> Option<&'static str> {
    use Deployment::{Cluster, Sentinel, Single};
    Some(match (number, on) {
        (23..=26 | 63..=65, Single) => "a single server has no replica",
        (27, Single | Cluster) => "there are no Sentinels",
        (25, Cluster) => "there are no Sentinels; 29 is the same in a cluster",
        (28 | 66, Single | Sentinel) => "there are no slots",
        (29, Single) => "a single server has no replica",
        (29, Sentinel) => "25 is the same with Sentinels",
        (55..=57, _) => "the battery has no clients of a quorum; its own suite has these faults",
        (21, Cluster) => "a node of a cluster refuses REPLICAOF; 64 demotes a primary",
        (43, Cluster) => {
            "nodes judge each other by their wall clocks: one whose clock jumps is replaced, as in \
             29"
        }
        (50 | 54, Sentinel | Cluster) => {
            "it is about one connection to a server of its own, which is the same in every \
             deployment"
        }
        _ => return None,
    })
}

/// What a fault that no deployment has is made with.
pub(super) async fn never(run: Run) -> Result<Report> {
    Err(failure(format!("this fault cannot be made on {}", run.on)))
}
