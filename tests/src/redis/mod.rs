//! Private servers for tests, as real processes: one server, a primary with Sentinels, a cluster.

mod cluster;
mod feature;
mod launch;
mod migration;
mod nodes;
mod sentinel;
mod server;
mod settle;
mod version;

pub use self::{
    cluster::{RedisCluster, RedisClusterBuilder},
    feature::{Feature, server_lacks},
    launch::StartError,
    migration::SlotMigration,
    sentinel::{RedisSentinel, RedisSentinelBuilder},
    server::RedisServer,
    version::Version,
};
