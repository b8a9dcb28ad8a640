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
        let call = ScriptCall { script: &script::CONDITION_JOIN, keys, args, optional: 0 };
        self.call(&call, |reply| reply::flag(&reply, "join").map(drop)).await
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        let keys = self.keys(&condition.lock)?.condition(&condition.name).to_vec();
        let args = vec![waiter.into(), millis(keep).to_string()];
        let call = ScriptCall { script: &script::CONDITION_STAY, keys, args, optional: 0 };
        self.call(&call, |reply| reply::flag(&reply, "stay")).await
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
        let call = ScriptCall { script: &script::CONDITION_LEAVE, keys, args, optional: 0 };
        self.call(&call, |reply| reply::flag(&reply, "leave")).await
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let names = self.keys(&condition.lock)?;
        let keys = names.condition(&condition.name).to_vec();
        let args = vec![count.to_string(), names.condition_channel()];
        let call = ScriptCall { script: &script::CONDITION_NOTIFY, keys, args, optional: 0 };
        self.call(&call, |reply| reply::number(reply, "notify")).await
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(format!("{}:{waiter}", self.keys(&condition.lock)?.condition_channel())).await
    }
}
