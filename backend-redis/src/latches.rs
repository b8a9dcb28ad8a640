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
        let mut call = latch_call(&script::LATCH_SET, &self.keys(name)?, id);
        call.args.push(count.to_string());
        self.call(&call, |reply| reply::flag(&reply, "set_count")).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        let call = latch_call(&script::LATCH_COUNT_DOWN, &self.keys(name)?, id);
        self.call(&call, |reply| reply::number(reply, "count_down")).await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        let call = latch_call(&script::LATCH_COUNT, &self.keys(name)?, "");
        self.call(&call, |reply| reply::number(reply, "count")).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        let call = latch_call(&script::LATCH_OPEN, &self.keys(name)?, "");
        self.call(&call, |reply| reply::number(reply, "open")).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(self.keys(name)?.latch_channel()).await
    }
}

/// A call with the keys and arguments that all scripts of latches have in common.
fn latch_call(script: &'static LuaScript, keys: &LockKeys, id: &str) -> ScriptCall {
    let names = vec![keys.lock(), keys.latch_state(), keys.permit_holds()];
    ScriptCall { script, keys: names, args: vec![id.into(), keys.latch_channel()] }
}
