//! rslock, on one server.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::{error::Result, measure::load::Lock};

/// How often an attempt is repeated by default before the next call begins anew, which `acquire` does for ever.
const RETRIES: u32 = 3;

pub(crate) struct Peer {
    manager: LockManager,
    lease: Duration,
}

impl Peer {
    /// With the pauses of its defaults, or shorter ones: each is of a random length up to that.
    pub(crate) fn connect(url: &str, lease: Duration, pause: Option<Duration>) -> Self {
        let mut manager = LockManager::new(vec![url]);
        if let Some(pause) = pause {
            manager.set_retry(RETRIES, pause);
        }
        Self { manager, lease }
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        Handle { manager: self.manager.clone(), name: name.to_owned(), lease: self.lease }
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
