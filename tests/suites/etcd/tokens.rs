//! Tokens rise, whatever happens to the cluster.

use std::time::Duration;

use lockcore::{FencingToken, backend::Backend};
use lockcore_testkit::EtcdCluster;

use crate::support::{connect, enters, request};

async fn next_token(cluster: &EtcdCluster) -> FencingToken {
    let backend = connect(cluster).await;
    let request = request("order", "a");
    let token = enters(&backend, &request).await;
    backend.release(&request.release()).await.unwrap();
    token
}

#[tokio::test]
async fn tokens_rise_past_new_leaders_restarts_and_compaction() {
    let mut cluster = EtcdCluster::start(3);
    let mut tokens = vec![next_token(&cluster).await];
    let leader = cluster.leader().await;
    cluster.kill(leader);
    tokens.push(next_token(&cluster).await);
    cluster.restart(leader);
    cluster.restart_all(&[0, 1, 2]);
    tokens.push(next_token(&cluster).await);
    let mut client = cluster.client().await;
    let revision = client.get("x", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, None).await.unwrap();
    tokens.push(next_token(&cluster).await);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

#[tokio::test]
async fn more_tokens_than_a_revision_stands_for_are_refused_without_effect() {
    let cluster = EtcdCluster::shared();
    let backend = connect(&cluster).await;
    let most = backend.limits().most_tokens;
    let error = backend.acquire(&request("many", "a").tokens(most + 1)).await.unwrap_err();
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Unsupported, "{error}");
    enters(&backend, &request("many", "b").tokens(most)).await;
}

/// One and a half of the election timeout, in whole seconds.
#[tokio::test]
async fn the_shortest_lease_is_that_of_the_cluster() {
    let cluster = EtcdCluster::shared();
    assert_eq!(connect(&cluster).await.limits().shortest_lease, Duration::from_secs(1));
    let times = ["--heartbeat-interval", "200", "--election-timeout", "2000"];
    let slow = EtcdCluster::start_with(1, &times);
    assert_eq!(connect(&slow).await.limits().shortest_lease, Duration::from_secs(3));
}
