//! The latches of a [`MemoryBackend`].

use lockcore::{
    BackendError, LockName,
    backend::{Awaited, Latches, Wakeups, async_trait},
};

use crate::MemoryBackend;

#[async_trait]
impl Latches for MemoryBackend {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        self.names.update(name, |state, now| state.set_count(count, id, now))
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        self.names.update(name, |state, now| state.count_down(id, now))
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        self.names.update(name, |state, _| state.count())
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        self.names.update(name, |state, _| state.open())
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.names.subscribe(name, None, |state| state.subscribe(Awaited::End)))
    }
}
