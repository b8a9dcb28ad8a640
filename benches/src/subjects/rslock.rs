//! rslock, on one server, on several as Redlock, or with one manager per primary of a cluster.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::{error::Result, measure::load::Lock, subjects::nodes::Nodes};

/// The default number of retries before the next call starts over, which `acquire` does forever.
const RETRIES: u32 = 3;

pub(crate) struct Peer {
    managers: Vec<LockManager>,
    nodes: Nodes,
    lease: Duration,
}

impl Peer {
    /// With its default pauses or shorter ones: each has a random length up to that.
    pub(crate) async fn connect(
        url: &str,
        lease: Duration,
        pause: Option<Duration>,
    ) -> Result<Self> {
        let nodes = Nodes::find(url).await?;
        let manager = |urls: &String| {
            let mut manager = LockManager::new(urls.split(',').collect());
            if let Some(pause) = pause {
                manager.set_retry(RETRIES, pause);
            }
            manager
        };
        Ok(Self { managers: nodes.urls().iter().map(manager).collect(), nodes, lease })
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        let manager = self.managers[self.nodes.of(name)].clone();
        Handle { manager, name: name.to_owned(), lease: self.lease }
    }
}

pub(crate) struct Handle {
    manager: LockManager,
    name: String,
    lease: Duration,
}

impl Lock for Handle {
    type Hold = LockGuard;

    async fn acquire(&self) -> Result<LockGuard> {
        Ok(self.manager.acquire(self.name.as_str(), self.lease).await?)
    }

    async fn release(&self, hold: LockGuard) -> Result<()> {
        hold.release().await;
        Ok(())
    }
}
