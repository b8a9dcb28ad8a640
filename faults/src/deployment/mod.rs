//! The servers, and how to make them fail.

mod between;
mod clients;
mod etcd;
mod network;
mod postgres;
mod process;
mod roles;
mod routes;
mod servers;
mod slots;

use std::{fmt, time::Duration};

use self::between::Between;
pub(crate) use self::{
    etcd::{ETCD_MEMBERS, Etcd},
    network::{Network, cut},
    postgres::Postgres,
    servers::{MEMBERS, ServerSetup, Servers},
    slots::{name_at_home, slot_of},
};
use crate::protocol::{Kind, Result, failure};

/// The store of the locks.
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
    /// A cluster of three members of etcd.
    Etcd,
}

impl Deployment {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 6] =
        [Self::Single, Self::Sentinel, Self::Cluster, Self::Quorum, Self::Postgres, Self::Etcd];

    /// The kinds of locks that it has.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Quorum => &[Kind::Exclusive],
            Self::Etcd => &[Kind::Exclusive, Kind::Fair, Kind::ReadWrite],
            _ => &Kind::ALL,
        }
    }

    /// Returns `true` if its servers are Redis.
    pub(crate) fn is_redis(self) -> bool {
        !matches!(self, Self::Postgres | Self::Etcd)
    }

    /// The number of servers that each request goes to.
    pub(crate) fn members(self) -> usize {
        match self {
            Self::Quorum => MEMBERS,
            _ => 1,
        }
    }

    /// The number of requests for each step of an acquisition.
    pub(crate) fn requests(self) -> usize {
        match self {
            // A read and the decision that follows from it, or the start and the end of a watch.
            Self::Etcd => 2,
            _ => self.members(),
        }
    }

    /// The failures that clients may see besides broken connections and timeouts.
    pub(crate) fn failures(self) -> &'static [&'static str] {
        match self {
            // A request that was sent to a second member, because the first one did not answer,
            // fails with this error if its outcome is unknown.
            Self::Etcd => &["Backend(Unavailable)"],
            _ => &[],
        }
    }

    /// The maximum number of working tasks of each client.
    pub(crate) fn tasks(self) -> usize {
        match self {
            // Each request keeps three processes busy. With more tasks, they would be too slow to
            // elect a leader in time on a machine with two processors.
            Self::Etcd => 6,
            _ => usize::MAX,
        }
    }

    /// How long the hold of a dead client may outlive its lease.
    pub(crate) fn late(self) -> Duration {
        match self {
            // It looks for expired leases twice a second, and then revokes them.
            Self::Etcd => Duration::from_secs(1),
            _ => Duration::ZERO,
        }
    }

    /// The number of servers that share the response timeout, because they are asked in turn.
    pub(crate) fn in_turn(self) -> u32 {
        match self {
            Self::Etcd => ETCD_MEMBERS as u32,
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
            Self::Etcd => "etcd",
        })
    }
}
