//! A Redis Cluster passes the kit.

use std::sync::Arc;

use lockcore::LockName;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, Fixture, RedisCluster, server_has};

struct ClusterFixture(Arc<RedisCluster>);

impl Fixture for ClusterFixture {
    type Backend = RedisBackend;

    async fn set_up() -> Self {
        Self(super::shared().await)
    }

    async fn client(&self) -> RedisBackend {
        RedisBackend::cluster(self.0.addresses()).connect().await.unwrap()
    }

    /// With sharded messages, the channel of such a latch is in another slot.
    fn refuses_latch(&self, name: &LockName) -> bool {
        name.as_str().contains('{') && server_has(Feature::ShardedChannels)
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let mut left = Vec::new();
        for index in 0..3 {
            let node = self.0.node(index);
            left.extend(node.keys_without_expiry().await);
            left.extend(node.channels().await);
            if server_has(Feature::ShardedChannels) {
                left.extend(node.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await);
            }
        }
        left.retain(|key| key.contains(name.as_str()));
        left
    }
}

lockcore_testkit::conformance_tests!(
    ClusterFixture,
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
