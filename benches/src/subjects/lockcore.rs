//! lockcore, on any store that a URL can name.

use std::time::Duration;

use futures_util::TryFutureExt;
use lockcore::{LockGuard, Locks};
use lockcore_etcd::EtcdBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::Quorum;
use lockcore_redis::RedisBackend;

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer(pub(crate) Locks);

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let builder = match url {
            _ if url.starts_with("postgresql://") => {
                Locks::builder(PostgresBackend::connect(url).await?)
            }
            _ if url.starts_with("etcd://") => {
                let endpoints = url.trim_start_matches("etcd://").split(',');
                Locks::builder(EtcdBackend::connect(endpoints).await?)
            }
            _ if url.contains(",redis://") => {
                let members = url.split(',').map(str::to_owned);
                let quorum = members.fold(Quorum::builder(), |quorum, url| {
                    quorum.member_from(move || RedisBackend::connect(url.clone()))
                });
                Locks::builder(quorum.connect().await?)
            }
            _ => Locks::builder(RedisBackend::connect(url).await?),
        };
        Ok(Self(builder.lease(lease).build()?))
    }

    /// A client that keeps released locks for a while.
    pub(crate) async fn keeping(url: &str, lease: Duration, linger: Duration) -> Result<Self> {
        let backend = RedisBackend::connect(url).await?;
        Ok(Self(Locks::builder(backend).lease(lease).linger(linger).build()?))
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        Handle(self.0.lock(name))
    }

    pub(crate) fn fair_lock(&self, name: &str) -> Handle {
        Handle(self.0.fair_lock(name))
    }
}

/// A handle of a lock, on any backend.
pub(crate) struct Handle(pub(crate) lockcore::Lock);

impl Lock for Handle {
    type Hold = LockGuard;

    async fn acquire(&self) -> Result<LockGuard> {
        Ok(self.0.acquire().await?)
    }

    /// Not an `async fn`, whose future would have room for the hold twice.
    fn release(&self, hold: LockGuard) -> impl Future<Output = Result<()>> + Send {
        hold.release().err_into()
    }
}
