//! The cases of interruptions, with a breakable network in front of each member.

use std::time::Duration;

use lockcore::LockName;
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{EtcdCluster, Fixture, Interrupts, On, Proxy, Withholds};

use crate::conformance::EtcdFixture;

/// A cluster with a network between it and the clients.
struct Interrupted<const MEMBERS: usize> {
    store: EtcdFixture,
    proxies: Vec<Proxy>,
}

impl<const MEMBERS: usize> Fixture for Interrupted<MEMBERS> {
    type Backend = EtcdBackend;

    async fn set_up() -> Self {
        let store = EtcdFixture::of(match MEMBERS {
            1 => EtcdCluster::shared(),
            _ => EtcdCluster::shared_three(),
        });
        let mut proxies = Vec::new();
        for address in store.cluster.addresses() {
            let (_, port) = address.rsplit_once(':').unwrap();
            proxies.push(Proxy::start_opaque(port.parse().unwrap()).await.unwrap());
        }
        Self { store, proxies }
    }

    async fn client(&self) -> EtcdBackend {
        let address = |proxy: &Proxy| format!("127.0.0.1:{}", proxy.port());
        self.store.connect(self.proxies.iter().map(address).collect()).await
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.store.left_behind(name).await
    }

    fn short_lease(&self) -> Duration {
        self.store.short_lease()
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
