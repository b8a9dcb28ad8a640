//! lockcore, on Redis.

use std::time::Duration;

use futures_util::TryFutureExt;
use lockcore::{LockGuard, Locks};
use lockcore_redis::RedisBackend;

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer(pub(crate) Locks);

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let backend = RedisBackend::connect(url).await?;
        Ok(Self(Locks::builder(backend).lease(lease).build()?))
    }

    /// A client that keeps its locks for a while.
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

/// A handle of a lock, on whatever backend.
pub(crate) struct Handle(pub(crate) lockcore::Lock);

impl Lock for Handle {
    type Hold = LockGuard;

    async fn acquire(&self) -> Result<LockGuard> {
        Ok(self.0.acquire().await?)
    }

    /// Not an `async fn`, which would have room for the hold twice.
    fn release(&self, hold: LockGuard) -> impl Future<Output = Result<()>> + Send {
        hold.release().err_into()
    }
}
