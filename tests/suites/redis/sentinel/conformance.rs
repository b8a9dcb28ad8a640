//! The backend passes the kit on a group of servers with Sentinels.

use std::sync::{Arc, Weak};

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fixture, RedisSentinel};
use tokio::sync::Mutex;

/// The group that the cases share. It is stopped when none of them uses it.
static GROUP: Mutex<Weak<RedisSentinel>> = Mutex::const_new(Weak::new());

struct SentinelFixture(Arc<RedisSentinel>);

impl Fixture for SentinelFixture {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        let mut shared = GROUP.lock().await;
        if let Some(group) = shared.upgrade() {
            return Self(group);
        }
        let group = Arc::new(RedisSentinel::start().await);
        *shared = Arc::downgrade(&group);
        Self(group)
    }

    async fn client(&self) -> RedisBackend {
        super::backend(&self.0).connect().await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let mut left = self.0.server(0).keys_without_expiry().await;
        left.extend(self.0.server(0).channels().await);
        left.retain(|left| left.contains(name.as_str()));
        left
    }
}

lockcore_testkit::conformance_tests!(
    SentinelFixture,
    fair,
    read_write,
    permits,
    hand_over,
    latches,
    conditions,
);
