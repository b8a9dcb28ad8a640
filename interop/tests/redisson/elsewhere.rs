//! Cases that depend on where commands and messages go, on Sentinel and on a Redis Cluster.

use std::sync::Arc;

use crate::{
    contention, crash,
    deployment::{Deployment, Topology},
    latch, messages, reentrant,
    section::Section,
    wakeups,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_share_locks_on_sentinel() {
    share_locks(Topology::Sentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_share_locks_on_a_cluster_with_sharded_messages() {
    share_locks(Topology::ShardedCluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_share_locks_on_a_cluster_with_plain_messages() {
    share_locks(Topology::PlainCluster).await;
}

/// Runs the cases on one deployment, each of them without data.
async fn share_locks(topology: Topology) {
    let servers = Arc::new(Deployment::start(topology).await);
    for section in [
        Section::Reentrant,
        Section::Fair,
        Section::ReadWrite,
        Section::Semaphore,
        Section::PlainSemaphore,
    ] {
        contention::exclude_each_other(section, &servers).await;
        servers.clear().await;
        wakeups::rust_wakes_java(section, &servers).await;
        servers.clear().await;
        wakeups::java_wakes_rust(section, &servers).await;
        servers.clear().await;
    }
    latch::count_down_together(&servers).await;
    latch::rust_wakes_java(&servers).await;
    servers.clear().await;
    latch::java_wakes_rust(&servers).await;
    servers.clear().await;
    if topology != Topology::Sentinel {
        latch::with_a_tag(&servers).await;
    }
    if topology == Topology::ShardedCluster {
        messages::of_either_set_reach_both(&servers).await;
        messages::of_the_other_set_are_missed(&servers).await;
    }
    reentrant::nesting::of_java(&servers).await;
    reentrant::nesting::of_rust(&servers).await;
    reentrant::tokens::of_both(&servers).await;
    crash::of_rust(Section::Reentrant, &servers).await;
    crash::of_java(Section::Reentrant, &servers).await;
}
