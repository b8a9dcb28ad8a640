//! The lock service of etcd, through etcd-client: with an existing lease for each task.

use std::time::Duration;

use etcd_client::{Client, LockOptions};
use tokio::sync::OnceCell;

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer {
    client: Client,
    lease: Duration,
}

impl Peer {
    /// `url` is `etcd://host:port,host:port`.
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let endpoints: Vec<_> = url.trim_start_matches("etcd://").split(',').collect();
        Ok(Self { client: Client::connect(endpoints, None).await?, lease })
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        let (client, lease) = (self.client.clone(), self.lease);
        Handle { client, lease, name: name.to_owned(), session: OnceCell::new() }
    }
}

/// The lock of a task. Its lease is granted with the first acquisition.
pub(crate) struct Handle {
    client: Client,
    lease: Duration,
    name: String,
    session: OnceCell<i64>,
}

impl Lock for Handle {
    /// The key of the hold in the queue.
    type Hold = Vec<u8>;

    async fn acquire(&self) -> Result<Vec<u8>> {
        let grant = async || {
            let seconds = self.lease.as_secs().max(1).cast_signed();
            Ok::<_, crate::error::Error>(self.client.clone().lease_grant(seconds, None).await?.id())
        };
        let lease = *self.session.get_or_try_init(grant).await?;
        let options = Some(LockOptions::new().with_lease(lease));
        Ok(self.client.clone().lock(self.name.as_str(), options).await?.key().to_vec())
    }

    async fn release(&self, key: Vec<u8>) -> Result<()> {
        self.client.clone().unlock(key).await?;
        Ok(())
    }
}
