//! What the battery and its client processes say to each other: one JSON document a line.

use std::{io, path::PathBuf, time::Duration};

use lockcore_testkit::Share;
use serde::{Deserialize, Serialize};

use crate::store::{Connecting, Store};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An error with a sentence.
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

    /// The hold that keeps everybody else out.
    pub(crate) fn whole(self) -> Share {
        match self {
            Self::Semaphore => Share::Permits { count: PERMITS, of: PERMITS },
            Self::Exclusive | Self::Fair | Self::ReadWrite => Share::Alone,
        }
    }
}

/// Of every semaphore.
pub(crate) const PERMITS: u32 = 3;

/// A lock of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// What a client process is and does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientConfig {
    pub(crate) client: String,
    pub(crate) store: Store,
    pub(crate) connecting: Connecting,
    pub(crate) retry_for: Duration,
    pub(crate) queue_timeout: Duration,
    /// Whether the clock of leases can be told that the host was suspended.
    pub(crate) can_suspend: bool,
    pub(crate) tasks: usize,
    pub(crate) places: Vec<Place>,
    /// How long a task stays inside, in ms.
    pub(crate) hold_ms: (u64, u64),
    /// Whether some stay inside for up to two leases.
    pub(crate) long_holds: bool,
    /// Write without looking whether the hold is still there: what fencing is for.
    pub(crate) careless: bool,
    pub(crate) log: PathBuf,
    pub(crate) resource: PathBuf,
    pub(crate) seed: u64,
}

/// An order to a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Have the tasks work.
    Play,
    /// Have the tasks end what they do.
    Rest,
    /// Acquire this, and keep it.
    Hold(Place),
    /// Wait for this, then give it up; there is no answer to wait for.
    Wait(Place),
    /// Release what is kept, and say how that went.
    Release,
    /// Keep all threads of the runtime busy for so long.
    Block(Duration),
    /// Make the clock of leases go ahead by so much, as after a suspension of the host.
    Suspend(Duration),
    /// Tell the vitals.
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
