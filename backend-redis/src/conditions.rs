//! The conditions of a [`RedisBackend`].

use std::time::Duration;

use lockcore::{
    BackendError,
    backend::{ConditionId, Conditions, Departure, Wakeups, async_trait},
};

use crate::{
    RedisBackend, reply,
    script::{self, ScriptCall},
    wire::millis,
};

#[async_trait]
impl Conditions for RedisBackend {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        let keys = self.keys(&condition.lock)?.condition(&condition.name).to_vec();
        let args = vec![waiter.into(), millis(keep).to_string()];
        self.call(&ScriptCall { script: &script::CONDITION_JOIN, keys, args }).await.map(|_| ())
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        let keys = self.keys(&condition.lock)?.condition(&condition.name).to_vec();
        let args = vec![waiter.into(), millis(keep).to_string()];
        let reply = self.call(&ScriptCall { script: &script::CONDITION_STAY, keys, args }).await?;
        reply::flag(&reply, "stay")
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let names = self.keys(&condition.lock)?;
        let keys = names.condition(&condition.name).to_vec();
        let pass_on = u8::from(departure == Departure::Cancelled);
        let args = vec![waiter.into(), pass_on.to_string(), names.condition_channel()];
        let reply = self.call(&ScriptCall { script: &script::CONDITION_LEAVE, keys, args }).await?;
        reply::flag(&reply, "leave")
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let names = self.keys(&condition.lock)?;
        let keys = names.condition(&condition.name).to_vec();
        let args = vec![count.to_string(), names.condition_channel()];
        let reply =
            self.call(&ScriptCall { script: &script::CONDITION_NOTIFY, keys, args }).await?;
        reply::number(reply, "notify")
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(format!("{}:{waiter}", self.keys(&condition.lock)?.condition_channel())).await
    }
}
