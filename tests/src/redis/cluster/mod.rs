//! A cluster, its options, and slot migrations.

mod builder;
mod migration;
mod nodes;
mod view;

pub use self::{builder::RedisClusterBuilder, migration::SlotMigration, nodes::RedisCluster};
