//! [`EtcdCluster`]: private etcd servers for tests, as real processes.

mod cluster;
mod launch;

pub use self::{cluster::EtcdCluster, launch::EtcdStartError};
