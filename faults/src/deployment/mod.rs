//! Where the servers are, and how to break them.

mod between;
mod clients;
mod network;
mod postgres;
mod process;
mod roles;
mod routes;
mod servers;
mod slots;

use std::fmt;

use self::between::Between;
pub(crate) use self::{
    network::{Network, cut},
    postgres::Postgres,
    servers::{MEMBERS, ServerSetup, Servers},
    slots::{name_at_home, slot_of},
};
use crate::protocol::{Kind, Result, failure};

/// Where locks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One Redis server.
    #[default]
    Single,
    /// A primary with two replicas, and three Sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
    /// Five Redis servers that know nothing of each other.
    Quorum,
    /// PostgreSQL, with a streaming replica where a fault needs one.
    Postgres,
}

impl Deployment {
    /// All, in the order of the table.
    pub(crate) const ALL: [Self; 5] =
        [Self::Single, Self::Sentinel, Self::Cluster, Self::Quorum, Self::Postgres];

    /// The kinds of locks that it has.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Quorum => &[Kind::Exclusive],
            _ => &Kind::ALL,
        }
    }

    /// How many servers each request goes to.
    pub(crate) fn members(self) -> usize {
        match self {
            Self::Quorum => MEMBERS,
            _ => 1,
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|deployment| deployment.to_string() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|deployment| deployment.to_string()).join(", ");
            failure(format!("`{name}` is none of {names}"))
        })
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
            Self::Postgres => "postgres",
        })
    }
}
