//! The Redis backend passes the kit.

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Fixture, RedisServer};

struct RedisFixture(RedisServer);

impl Fixture for RedisFixture {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        Self(RedisServer::start())
    }

    async fn client(&self) -> RedisBackend {
        RedisBackend::connect(self.0.url()).await.unwrap()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let mut left = self.0.keys_without_expiry().await;
        left.extend(self.0.channels().await);
        left
    }
}

lockcore_testkit::conformance_tests!(
    RedisFixture,
    fair,
    read_write,
    permits,
    hand_over,
    demand,
    direct_grant,
    proposed_tokens,
    latches,
    conditions,
);

mod signals {
    crate::signals::signal_tests!(super::RedisFixture, run_case);
}
