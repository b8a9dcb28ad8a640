//! distkit's mutex, with its default pauses of 50 ms between attempts.

use std::{sync::Arc, time::Duration};

use distkit::{
    DistkitRedisKey,
    lock::{LockOptions, Mutex, MutexGuard},
};
use redis::aio::ConnectionManager;

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer {
    connection: ConnectionManager,
    lease: Duration,
}

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        Ok(Self { connection: redis::Client::open(url)?.get_connection_manager().await?, lease })
    }

    pub(crate) fn lock(&self, name: &str) -> Result<Handle> {
        let key = DistkitRedisKey::try_from(name.to_owned())?;
        let options = LockOptions::builder(key, self.connection.clone()).ttl(self.lease).build();
        Ok(Handle(Mutex::new(options)))
    }
}

/// The owner is the mutex, not each of its holds: one mutex for each task.
pub(crate) struct Handle(Arc<Mutex>);

impl Lock for Handle {
    type Hold = MutexGuard;

    async fn acquire(&self) -> Result<MutexGuard> {
        Ok(self.0.lock().await?)
    }

    async fn release(&self, hold: MutexGuard) -> Result<()> {
        hold.release().await?;
        Ok(())
    }
}
