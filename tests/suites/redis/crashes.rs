//! Answers of Redis outlast a crash, if it writes every command before it answers.

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Crashes, Fixture, RedisServer, crash_tests};
use tokio::sync::Mutex;

use crate::support::connect;

struct Crashing(Mutex<RedisServer>);

impl Fixture for Crashing {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "always"];
        Self(Mutex::new(RedisServer::start_with(&options)))
    }

    async fn client(&self) -> RedisBackend {
        let store = self.0.lock().await;
        connect(&store).await
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        self.0.lock().await.keys_without_expiry().await
    }
}

impl Crashes for Crashing {
    async fn crash(&self) {
        self.0.lock().await.restart();
    }
}

crash_tests!(Crashing, permits, direct_grant, proposed_tokens, latches);
