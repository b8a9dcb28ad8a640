//! The latches of a [`RedisBackend`].

use lockcore::{
    BackendError, LockName,
    backend::{Latches, Wakeups, async_trait},
};

use crate::{
    RedisBackend,
    keys::LockKeys,
    reply,
    script::{self, LuaScript, ScriptCall},
};

#[async_trait]
impl Latches for RedisBackend {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let mut call = self.latch_call(&script::LATCH_SET, name, id)?;
        call.args.push(count.to_string());
        self.call(&call, |reply| reply::flag(&reply, "set_count")).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        let call = self.latch_call(&script::LATCH_COUNT_DOWN, name, id)?;
        self.call(&call, |reply| reply::number(reply, "count_down")).await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        let call = self.latch_call(&script::LATCH_COUNT, name, "")?;
        self.call(&call, |reply| reply::number(reply, "count")).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        let call = self.latch_call(&script::LATCH_OPEN, name, "")?;
        self.call(&call, |reply| reply::number(reply, "open")).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(self.latch_keys(name)?.latch_channel()).await
    }
}

impl RedisBackend {
    /// A call with the keys and arguments that all scripts of latches have in common. A latch has
    /// no holds of a semaphore.
    fn latch_call(
        &self,
        script: &'static LuaScript,
        name: &LockName,
        id: &str,
    ) -> Result<ScriptCall, BackendError> {
        let names = self.latch_keys(name)?;
        let keys = vec![names.lock(), names.latch_state(), names.permit_holds()];
        let args = vec![id.into(), names.latch_channel()];
        Ok(ScriptCall { script, keys, args, optional: 1 })
    }

    fn latch_keys(&self, name: &LockName) -> Result<LockKeys, BackendError> {
        let keys = self.keys(name)?;
        if let Some(cluster) = self.cluster_if_any() {
            cluster.check_latch(keys.as_str(), &keys.latch_channel())?;
        }
        Ok(keys)
    }
}
