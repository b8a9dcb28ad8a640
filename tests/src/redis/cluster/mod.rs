//! A cluster, its options, and slots on their way.

mod builder;
mod migration;
mod nodes;
mod view;

pub use self::{builder::RedisClusterBuilder, migration::SlotMigration, nodes::RedisCluster};
