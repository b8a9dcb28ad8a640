//! Tokens rise, whatever happens to the cluster.

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
    let error = backend.acquire(&request("many", "a").tokens((1 << 17) + 1)).await.unwrap_err();
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Unsupported, "{error}");
    enters(&backend, &request("many", "b").tokens(1 << 17)).await;
}
