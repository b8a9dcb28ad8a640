//! The cases of interruptions, with a network in front of each member that can break.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use etcd_client::GetOptions;
use lockcore::LockName;
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{EtcdCluster, Fixture, Interrupts, On, Proxy, Withholds};

/// A cluster that all cases share, and the network and the clients of one case.
struct Interrupted<const MEMBERS: usize> {
    cluster: Arc<EtcdCluster>,
    proxies: Vec<Proxy>,
    clients: Mutex<Vec<EtcdBackend>>,
}

impl<const MEMBERS: usize> Fixture for Interrupted<MEMBERS> {
    type Backend = EtcdBackend;

    async fn set_up() -> Self {
        let cluster = match MEMBERS {
            1 => EtcdCluster::shared(),
            _ => EtcdCluster::shared_three(),
        };
        let mut proxies = Vec::new();
        for address in cluster.addresses() {
            let (_, port) = address.rsplit_once(':').unwrap();
            proxies.push(Proxy::start_opaque(port.parse().unwrap()).await.unwrap());
        }
        Self { cluster, proxies, clients: Mutex::default() }
    }

    /// Each client has another member first.
    async fn client(&self) -> EtcdBackend {
        let mut addresses: Vec<_> =
            self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let first = self.clients.lock().unwrap().len() % addresses.len();
        addresses.rotate_left(first);
        let backend = EtcdBackend::connect(addresses).await.unwrap();
        self.clients.lock().unwrap().push(backend.clone());
        backend
    }

    /// Keys of the name, and names that a client listens to.
    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        // Keys have the names of the kit as they are.
        let keys = format!("lockcore/{}/", name.as_str());
        let all = GetOptions::new().with_prefix().with_keys_only();
        let found = self.cluster.client().await.get(keys, Some(all)).await.unwrap();
        let key = |pair: &etcd_client::KeyValue| String::from_utf8_lossy(pair.key()).into_owned();
        let mut left: Vec<String> = found.kvs().iter().map(key).collect();
        let watches: usize =
            self.clients.lock().unwrap().iter().map(EtcdBackend::watches_in_use).sum();
        left.extend((0..watches).map(|_| "a watch".to_owned()));
        left
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(3)
    }
}

impl<const MEMBERS: usize> Interrupts for Interrupted<MEMBERS> {
    async fn interrupt(&self) {
        self.proxies.iter().for_each(Proxy::reset);
    }
}

impl<const MEMBERS: usize> Withholds for Interrupted<MEMBERS> {
    async fn withhold(&self) {
        self.proxies.iter().for_each(|proxy| proxy.freeze(On::All));
    }

    async fn abandon(&self) {
        self.proxies.iter().for_each(Proxy::abandon);
    }

    async fn deliver(&self) {
        for proxy in &self.proxies {
            proxy.deliver().await;
        }
    }
}

mod one_member {
    lockcore_testkit::interruption_tests!(super::Interrupted<1>, late);
}

mod three_members {
    lockcore_testkit::interruption_tests!(super::Interrupted<3>, late);
}
