//! [`Store`]: the store of a client's locks.

use std::time::{Duration, Instant};

use lockcore::{
    BackendError, Locks, LocksBuilder,
    backend::{Backend, Capabilities},
};
use lockcore_etcd::EtcdBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::{Quorum, QuorumBuilder};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use serde::{Deserialize, Serialize};

use crate::protocol::Result;

/// The store of a client's locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Store {
    /// Redis: one server, one behind Sentinels, or a cluster.
    Redis(String),
    /// A majority of several Redis servers.
    Quorum(Vec<String>),
    Postgres(String),
    /// The members of a cluster of etcd.
    Etcd(Vec<String>),
}

/// How a client connects, and what it requires of its store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connecting {
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) allow_eviction: bool,
    pub(crate) lease: Duration,
    /// How long the grants of a member of a quorum do not count after it was away.
    pub(crate) rejoin_after: Duration,
    /// How long it keeps unwanted locks, where it can hear of the demand.
    pub(crate) linger: Duration,
}

/// The time limit to connect, on a machine that is busy starting others.
const PATIENCE: Duration = Duration::from_secs(10);

impl Store {
    /// Connects. The options for locks go to the builder.
    pub(crate) async fn connect(&self, how: &Connecting) -> Result<LocksBuilder> {
        let start = Instant::now();
        loop {
            match self.attempt(how).await {
                Err(error) if error.is_retryable() && start.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                connected => return Ok(connected?),
            }
        }
    }

    async fn attempt(&self, how: &Connecting) -> std::result::Result<LocksBuilder, BackendError> {
        Ok(match self {
            Self::Redis(url) => how.locks(how.redis(url).connect().await?),
            Self::Quorum(urls) => {
                let longest = *QuorumBuilder::MEMBER_TIMEOUTS.end();
                let mut quorum = Quorum::builder()
                    .member_timeout(how.response_timeout.min(longest))
                    .rejoin_after(how.rejoin_after);
                for url in urls.clone() {
                    let how = how.clone();
                    quorum = quorum.member_from(move || how.redis(&url).connect());
                }
                how.locks(quorum.connect().await?)
            }
            Self::Postgres(url) => {
                let postgres = PostgresBackend::builder(url)
                    .response_timeout(how.response_timeout)
                    .connect_timeout(how.connect_timeout);
                how.locks(postgres.connect().await?)
            }
            Self::Etcd(members) => {
                let etcd = EtcdBackend::builder(members.clone())
                    .response_timeout(how.response_timeout)
                    .connect_timeout(how.connect_timeout);
                how.locks(etcd.connect().await?)
            }
        })
    }
}

impl Connecting {
    fn redis(&self, url: &str) -> RedisBackendBuilder {
        let redis = RedisBackend::builder()
            .url(url)
            .response_timeout(self.response_timeout)
            .connect_timeout(self.connect_timeout);
        if self.allow_eviction { redis.allow_eviction() } else { redis }
    }

    fn locks(&self, backend: impl Backend) -> LocksBuilder {
        let hears_demand = backend.capabilities().contains(Capabilities::DEMAND);
        let linger = if hears_demand { self.linger } else { Duration::ZERO };
        Locks::builder(backend).lease(self.lease).linger(linger)
    }
}
