//! Records of clients.

use std::time::Duration;

use lockcore::backend::Backend;
use lockcore_testkit::EtcdCluster;

use crate::support::{connect, leases, until};

/// Longer than the test waits for anything.
const LIFETIME: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_write_that_is_given_up_leaves_no_lease_without_a_key() {
    let cluster = EtcdCluster::start(1);
    let (backend, client) = (connect(&cluster).await, cluster.client().await);
    let directory = backend.directory().unwrap();
    // A write takes some milliseconds, so some of them are given up in each of its steps.
    for step in 0..60 {
        let write = directory.put_client("client", "record", LIFETIME);
        let _ = tokio::time::timeout(Duration::from_micros(150 * step), write).await;
    }
    directory.put_client("client", "the last record", LIFETIME).await.unwrap();
    until("the other leases to go", || async { leases(&client).await.len() == 1 }).await;
    directory.remove_client("client").await.unwrap();
    until("the last lease to go", || async { leases(&client).await.is_empty() }).await;
}
