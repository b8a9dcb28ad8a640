//! async-redis-lock, with its default pauses of 100 ms between attempts.

use std::{sync::Arc, time::Duration};

use async_redis_lock::{Locker, Options};

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer(Arc<Shared>);

struct Shared {
    locker: Locker,
    options: Options,
}

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let locker = Locker::from_redis_url(url).await?;
        // As its documentation recommends: renewed every third of the lease.
        let options = Options::new().timeout(None).ttl(lease).extend(lease / 3);
        Ok(Self(Arc::new(Shared { locker, options })))
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        Handle { client: self.0.clone(), name: name.to_owned() }
    }
}

pub(crate) struct Handle {
    client: Arc<Shared>,
    name: String,
}

impl Lock for Handle {
    type Hold = async_redis_lock::Lock;

    async fn acquire(&self) -> Result<async_redis_lock::Lock> {
        let Shared { locker, options } = &*self.client;
        Ok(locker.acquire_with_options(options, self.name.as_str()).await?)
    }

    async fn release(&self, hold: async_redis_lock::Lock) -> Result<()> {
        Ok(hold.release().await?)
    }
}
