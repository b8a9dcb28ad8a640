//! The latches of a [`MemoryBackend`].

use lockcore::{
    BackendError, LockName,
    backend::{Latches, Wakeups, async_trait},
};

use crate::{MemoryBackend, state::Cell};

#[async_trait]
impl Latches for MemoryBackend {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        self.cells.with(name, |cell, now| cell.set_count(count, id, now))
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        self.cells.with(name, |cell, now| cell.count_down(id, now))
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        self.cells.with(name, |cell, _| cell.count())
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        self.cells.with(name, |cell, _| cell.open())
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.cells.subscribe(name, Cell::subscribe))
    }
}
