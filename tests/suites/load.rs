//! Work that continues while a store fails.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lockcore::Locks;
use tokio::task::JoinSet;

use crate::{
    critical::Critical,
    waiting::{soon, until},
};

/// Four tasks of each client that visit the section until they are stopped.
pub(crate) struct Load {
    critical: Arc<Critical>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    pub(crate) fn of(clients: impl IntoIterator<Item = Locks>) -> Self {
        let (critical, stop) = (Arc::new(Critical::default()), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for locks in clients {
            for _ in 0..4 {
                let (lock, critical, stop) =
                    (locks.lock("contended"), critical.clone(), stop.clone());
                tasks.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = lock.acquire().await.unwrap();
                        critical.visit(&guard).await;
                        // The failure is reported elsewhere, and the lease ends.
                        let _ = guard.release().await;
                    }
                });
            }
        }
        Self { critical, stop, tasks }
    }

    /// Waits for more visits than can have been in progress.
    pub(crate) async fn goes_on(&self) {
        let before = self.critical.entries();
        until("more visits", async || self.critical.entries() > before + 50).await;
    }

    pub(crate) async fn ends(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(task) = soon("the end", self.tasks.join_next()).await {
            task.unwrap();
        }
    }
}
