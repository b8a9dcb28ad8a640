//! The etcd backend passes the kit on a cluster of three.
//!
//! There is no second run on a single server. Decisions are made in transactions, which are the
//! same on any number of members. Several members add other routes: followers forward requests to
//! the leader, leases are renewed at the leader only, and each client here has another member
//! first. Most of the other suites cover clients with a single endpoint.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use etcd_client::GetOptions;
use lockcore::LockName;
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{EtcdCluster, Fixture};

/// The shortest lease of the kit's servers. Every shorter one is rounded up to it.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long a hold may outlive its lease: the servers look for expired leases every half second,
/// and then agree to delete them.
const LATE: Duration = Duration::from_millis(800);

/// In whole seconds, and long enough for leases that end late.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(3);

/// Leases end later here than elsewhere. The kit waits for ends of leases that are at least a part
/// of [`SHORT_LEASE`], and for less than a ninth of it for everything else.
pub(crate) async fn pass(time: Duration) {
    let is_end_of_lease = time > SHORT_LEASE / 9;
    let time = if is_end_of_lease { time.max(SHORTEST) + LATE } else { time };
    tokio::time::sleep(time).await;
}

/// The keys of the name.
pub(crate) async fn keys_of(cluster: &EtcdCluster, name: &LockName) -> Vec<String> {
    let escaped = name.as_str().replace('%', "%25").replace('/', "%2F");
    let all = GetOptions::new().with_prefix().with_keys_only();
    let mut client = cluster.client().await;
    let found = client.get(format!("lockcore/{escaped}/"), Some(all)).await.unwrap();
    let key = |pair: &etcd_client::KeyValue| String::from_utf8_lossy(pair.key()).into_owned();
    found.kvs().iter().map(key).collect()
}

/// A cluster that all cases share, and the clients of one case.
pub(crate) struct EtcdFixture {
    pub(crate) cluster: Arc<EtcdCluster>,
    clients: Mutex<Vec<EtcdBackend>>,
}

impl EtcdFixture {
    pub(crate) fn of(cluster: Arc<EtcdCluster>) -> Self {
        Self { cluster, clients: Mutex::default() }
    }

    /// A client of the members at `addresses`. Each client has another member first.
    pub(crate) async fn connect(&self, mut addresses: Vec<String>) -> EtcdBackend {
        let first = self.clients.lock().unwrap().len() % addresses.len();
        addresses.rotate_left(first);
        let backend = EtcdBackend::connect(addresses).await.unwrap();
        self.clients.lock().unwrap().push(backend.clone());
        backend
    }
}

impl Fixture for EtcdFixture {
    type Backend = EtcdBackend;

    async fn set_up() -> Self {
        Self::of(EtcdCluster::shared_three())
    }

    async fn client(&self) -> EtcdBackend {
        self.connect(self.cluster.addresses()).await
    }

    /// Keys of the name, and names that a client watches.
    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let mut left = keys_of(&self.cluster, name).await;
        let watches: usize =
            self.clients.lock().unwrap().iter().map(EtcdBackend::watches_in_use).sum();
        left.extend((0..watches).map(|_| "a watch".to_owned()));
        left
    }

    async fn pass(&self, time: Duration) {
        pass(time).await;
    }

    fn short_lease(&self) -> Duration {
        SHORT_LEASE
    }
}

lockcore_testkit::conformance_tests!(EtcdFixture, fair, read_write, hand_over, directory);

mod races {
    crate::races::race_tests!(super::EtcdFixture);
}
