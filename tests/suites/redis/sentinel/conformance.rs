//! The backend passes the kit on a group of servers with Sentinels.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fixture, RedisSentinel};
use tokio::sync::Mutex;

/// The group that the cases share. It is stopped when none of them uses it.
static GROUP: Mutex<Weak<RedisSentinel>> = Mutex::const_new(Weak::new());

/// A shared use of the group, in which every name begins with `prefix`.
struct SentinelFixture {
    group: Arc<RedisSentinel>,
    prefix: String,
}

impl SentinelFixture {
    fn new(group: Arc<RedisSentinel>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self { group, prefix: format!("case-{}:", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl Fixture for SentinelFixture {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        let mut shared = GROUP.lock().await;
        if let Some(group) = shared.upgrade() {
            return Self::new(group);
        }
        let group = Arc::new(RedisSentinel::start().await);
        *shared = Arc::downgrade(&group);
        Self::new(group)
    }

    async fn client(&self) -> RedisBackend {
        super::backend(&self.group).key_prefix(&*self.prefix).connect().await.unwrap()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let mut left = self.group.server(0).keys_without_expiry().await;
        left.extend(self.group.server(0).channels().await);
        left.retain(|left| left.contains(&self.prefix));
        left
    }
}

lockcore_testkit::conformance_tests!(
    SentinelFixture,
    fair,
    read_write,
    permits,
    hand_over,
    demand,
    direct_grant,
    proposed_tokens,
    latches,
    conditions,
    directory,
);

mod signals {
    crate::signals::signal_tests!(super::SentinelFixture, run_case);
}
