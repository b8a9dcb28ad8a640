//! Where the servers are, and how to break them.

mod between;
mod network;
mod routes;
mod servers;
mod slots;

use std::fmt;

pub(crate) use self::{
    between::Between,
    network::{Network, cut},
    servers::{ServerSetup, Servers},
    slots::{name_at_home, slot_of},
};
use crate::protocol::{Result, failure};

/// How Redis is deployed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server.
    #[default]
    Single,
    /// A primary with two replicas, and three Sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
}

impl Deployment {
    /// All, in the order of the table.
    pub(crate) const ALL: [Self; 3] = [Self::Single, Self::Sentinel, Self::Cluster];

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|deployment| deployment.to_string() == name);
        found.ok_or_else(|| failure(format!("`{name}` is not single, sentinel or cluster")))
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}
