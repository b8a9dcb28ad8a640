//! What the suites share.

use std::time::Duration;

use etcd_client::{Client, GetOptions};
use lockcore::{
    FencingToken, LockName,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;

pub(crate) use crate::waiting::{soon, until};

/// Longer than any test.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn connect(cluster: &EtcdCluster) -> EtcdBackend {
    EtcdBackend::connect(cluster.addresses()).await.unwrap()
}

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn request(lock: &str, hold: &str) -> AcquireRequest {
    AcquireRequest::new(name(lock), HoldId::unique(hold), LEASE)
}

/// The hold is granted.
pub(crate) async fn enters(backend: &EtcdBackend, request: &AcquireRequest) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("refused: {outcome:?}"),
    }
}

pub(crate) async fn is_held(backend: &EtcdBackend, lock: &str) -> bool {
    backend.inspect(&name(lock)).await.unwrap().is_held()
}

/// The keys that begin with the default prefix.
pub(crate) async fn keys(client: &Client) -> Vec<String> {
    let all = GetOptions::new().with_prefix().with_keys_only();
    let found = client.kv_client().get("lockcore/", Some(all)).await.unwrap();
    found.kvs().iter().map(|pair| String::from_utf8_lossy(pair.key()).into_owned()).collect()
}

/// The leases that there are.
pub(crate) async fn leases(client: &Client) -> Vec<i64> {
    client.lease_client().leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect()
}
