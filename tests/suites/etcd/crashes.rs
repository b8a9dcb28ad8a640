//! Answers of etcd outlast a crash of all its members at once.

use std::time::Duration;

use lockcore::LockName;
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{Crashes, EtcdCluster, Fixture, crash_tests};
use tokio::sync::Mutex;

use crate::{
    conformance::{SHORT_LEASE, keys_of, pass},
    support::connect,
};

/// A private cluster.
struct Crashing(Mutex<EtcdCluster>);

impl Fixture for Crashing {
    type Backend = EtcdBackend;

    async fn set_up() -> Self {
        Self(Mutex::new(EtcdCluster::start(3)))
    }

    async fn client(&self) -> EtcdBackend {
        let store = self.0.lock().await;
        connect(&store).await
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let store = self.0.lock().await;
        keys_of(&store, name).await
    }

    async fn pass(&self, time: Duration) {
        pass(time).await;
    }

    fn short_lease(&self) -> Duration {
        SHORT_LEASE
    }
}

impl Crashes for Crashing {
    async fn crash(&self) {
        let mut cluster = self.0.lock().await;
        let all: Vec<usize> = (0..cluster.len()).collect();
        all.iter().for_each(|member| cluster.kill(*member));
        cluster.restart_all(&all);
    }
}

crash_tests!(Crashing);
