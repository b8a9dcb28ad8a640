//! The Redis backend passes the kit while every hold is acknowledged by a replica.

use std::sync::{Arc, Weak};

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::Fixture;
use tokio::sync::Mutex;

use super::{ENOUGH, Group};

struct ReplicatedFixture(Arc<Group>);

impl Fixture for ReplicatedFixture {
    type Backend = RedisBackend;

    /// One group for all tests. It is stopped when no test uses it.
    async fn set_up() -> Self {
        static SHARED: Mutex<Weak<Group>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(group) = shared.upgrade() {
            return Self(group);
        }
        let group = Arc::new(Group::start(1).await);
        *shared = Arc::downgrade(&group);
        Self(group)
    }

    async fn client(&self) -> RedisBackend {
        self.0.backend().replicas(1, ENOUGH).connect().await.unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let mut left = self.0.primary.keys_without_expiry().await;
        left.extend(self.0.primary.channels().await);
        left.retain(|key| key.contains(name.as_str()));
        left
    }
}

lockcore_testkit::conformance_tests!(
    ReplicatedFixture,
    fair,
    read_write,
    permits,
    hand_over,
    demand,
    proposed_tokens,
    latches,
    conditions,
    directory,
);
