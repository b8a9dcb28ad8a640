//! Requests that are not answered yet.

use std::{future::poll_fn, task::Poll, time::Duration};

use lockcore::{Mode, backend::Backend};
use lockcore_testkit::RedisCluster;

use super::backend;
use crate::steps::{enters, hold, releases, request};

/// The map is refreshed while the cluster is in use, or a node is silent.
#[tokio::test]
async fn a_request_that_nobody_polls_has_the_map_refreshed_no_more() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let request = request("lock", &hold("a:1"), Mode::Exclusive);
    enters(&backend, &request).await;
    releases(&backend, &request).await;
    let mut acquiring = backend.acquire(&request);
    assert!(poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_pending())).await);
    // The server answers at once. This is longer than the response timeout.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = refreshes(&cluster).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(refreshes(&cluster).await - before, 0);
    drop(acquiring);
}

async fn refreshes(cluster: &RedisCluster) -> u64 {
    let mut refreshes = 0;
    for node in 0..3 {
        refreshes += cluster.node(node).calls_of("cluster|slots").await;
    }
    refreshes
}
