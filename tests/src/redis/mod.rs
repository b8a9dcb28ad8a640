//! Private servers for tests, as real processes: one server, a primary with Sentinels, a cluster.

mod cluster;
mod feature;
mod launch;
mod sentinel;
mod server;
mod settle;
mod version;

pub use self::{
    cluster::{RedisCluster, RedisClusterBuilder, SlotMigration},
    feature::{Feature, server_has, server_lacks},
    launch::StartError,
    sentinel::{RedisSentinel, RedisSentinelBuilder},
    server::RedisServer,
    version::Version,
};
