//! Locks in the memory of one process: lockcore's, and the floor, a sharded map of tokio's mutexes.

use std::sync::Arc;

use dashmap::DashMap;
use lockcore::Locks;
use lockcore_memory::MemoryBackend;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{error::Result, measure::load::Lock, subjects::lockcore::Handle};

/// lockcore on its memory backend.
pub(crate) struct Memory(Locks);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(Locks::new(MemoryBackend::new()))
    }

    pub(crate) fn lock(&self, name: &str) -> Arc<Handle> {
        Arc::new(Handle(self.0.lock(name)))
    }
}

/// Looks a name up in a sharded map, and locks the mutex that is there.
#[derive(Default)]
pub(crate) struct Floor(Arc<DashMap<String, Arc<Mutex<()>>>>);

impl Floor {
    pub(crate) fn lock(&self, name: &str) -> Arc<FloorLock> {
        Arc::new(FloorLock { map: self.0.clone(), name: name.to_owned() })
    }
}

pub(crate) struct FloorLock {
    map: Arc<DashMap<String, Arc<Mutex<()>>>>,
    name: String,
}

impl FloorLock {
    fn mutex(&self) -> Arc<Mutex<()>> {
        if let Some(mutex) = self.map.get(&self.name) {
            return mutex.clone();
        }
        self.map.entry(self.name.clone()).or_default().clone()
    }
}

impl Lock for FloorLock {
    type Hold = OwnedMutexGuard<()>;

    async fn acquire(&self) -> Result<OwnedMutexGuard<()>> {
        Ok(self.mutex().lock_owned().await)
    }

    async fn release(&self, hold: OwnedMutexGuard<()>) -> Result<()> {
        drop(hold);
        Ok(())
    }
}
