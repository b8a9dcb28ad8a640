//! The conditions of a [`MemoryBackend`].

use std::time::Duration;

use lockcore::{
    BackendError,
    backend::{ConditionId, Conditions, Departure, Wakeups, async_trait},
};

use crate::MemoryBackend;

#[async_trait]
impl Conditions for MemoryBackend {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        self.conditions.update(condition, |queue, now| queue.join(waiter, keep, now));
        Ok(())
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        Ok(self.conditions.update(condition, |queue, now| queue.stay(waiter, keep, now)))
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        Ok(self.conditions.update(condition, |queue, _| queue.leave(waiter, departure)))
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        Ok(self.conditions.update(condition, |queue, _| queue.notify(count)))
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.conditions.subscribe(condition, None, |queue| queue.subscribe(waiter)))
    }
}
