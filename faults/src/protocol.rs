//! The protocol between the battery and its client processes: one JSON document per line.

use std::{io, path::PathBuf, time::Duration};

use lockcore_testkit::Share;
use serde::{Deserialize, Serialize};

use crate::store::{Connecting, Store};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An error with a message.
pub(crate) fn failure(message: impl Into<String>) -> Box<dyn std::error::Error + Send + Sync> {
    io::Error::other(message.into()).into()
}

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Kind {
    Exclusive,
    Fair,
    ReadWrite,
    Semaphore,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Exclusive, Self::Fair, Self::ReadWrite, Self::Semaphore];

    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Exclusive => "lock",
            Self::Fair => "fair",
            Self::ReadWrite => "rw",
            Self::Semaphore => "sem",
        }
    }

    /// The share of a hold that excludes all others.
    pub(crate) fn whole(self) -> Share {
        match self {
            Self::Semaphore => Share::Permits { count: PERMITS, of: PERMITS },
            Self::Exclusive | Self::Fair | Self::ReadWrite => Share::Alone,
        }
    }
}

/// The number of permits of every semaphore.
pub(crate) const PERMITS: u32 = 3;

/// A lock of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// The configuration of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientConfig {
    pub(crate) client: String,
    pub(crate) store: Store,
    pub(crate) connecting: Connecting,
    pub(crate) retry_for: Duration,
    pub(crate) queue_timeout: Duration,
    /// `true` if suspensions of the host can be simulated on the lease clock.
    pub(crate) can_suspend: bool,
    pub(crate) tasks: usize,
    pub(crate) places: Vec<Place>,
    /// How long a task stays inside, in ms.
    pub(crate) hold_ms: (u64, u64),
    /// `true` if some tasks stay inside for up to two leases.
    pub(crate) long_holds: bool,
    /// Write without checking whether the hold still exists: the case that fencing is for.
    pub(crate) careless: bool,
    pub(crate) log: PathBuf,
    pub(crate) resource: PathBuf,
    pub(crate) seed: u64,
}

/// An order to a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make the tasks work.
    Play,
    /// Make the tasks finish and stop.
    Rest,
    /// Acquire this lock, and keep it.
    Hold(Place),
    /// Wait for this lock, then release it; the order has no answer to wait for.
    Wait(Place),
    /// Release the kept locks, and report the results.
    Release,
    /// Block all threads of the runtime for this long.
    Block(Duration),
    /// Advance the lease clock by this much, as after a suspension of the host.
    Suspend(Duration),
    /// Report the vitals.
    Vitals,
    /// End.
    Exit,
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// Releases and their errors, by name.
    Released(Vec<(String, Option<String>)>),
    Vitals {
        tasks: usize,
        descriptors: usize,
        memory: usize,
        /// The wall clock, in seconds.
        wall: u64,
    },
    Failed(String),
}
