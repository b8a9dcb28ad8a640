//! [`Event`] and [`EventLog`]: what clients, resources and the one who injects faults have seen, on one clock for all processes.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The time of this machine in nanoseconds, the same for all its processes: `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The wall clock of this machine in nanoseconds since 1970.
#[must_use]
pub fn wall_clock() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let [seconds, rest] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + rest
}

/// A span in the unit of [`monotonic`].
#[must_use]
pub fn span(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// With whom a hold can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Share {
    /// With nobody.
    Alone,
    /// With others that read.
    Read,
    /// With others, as long as there are permits.
    Permits {
        /// How many this hold takes.
        count: u32,
        /// How many there are.
        of: u32,
    },
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, by [`monotonic`].
    pub t: u64,
    /// Which process.
    pub client: String,
    /// Which acquisition of that process; 0 for what belongs to none.
    pub op: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "e")]
#[non_exhaustive]
pub enum What {
    /// An acquisition begins.
    Asked {
        /// The lock.
        name: String,
        /// How it is to be shared.
        share: Share,
        /// The acquisition of the same owner that it is nested in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nested_in: Option<u64>,
    },
    /// It has the lock.
    Granted {
        /// The fencing token.
        token: u64,
        /// The owner as the store has it.
        owner: String,
        /// Until when the holder believes in it, as it knows now.
        until: u64,
    },
    /// It was told that the lock is not free, or not in time.
    Refused,
    /// It failed.
    Failed {
        /// The kind of failure.
        kind: String,
        /// Whether the request may have been carried out.
        unknown: bool,
    },
    /// Its future was dropped before it was done.
    Cancelled,
    /// The holder looked, and believes in the hold.
    Held {
        /// Until when, as it knows now.
        until: u64,
    },
    /// The holder begins to release, and believes no longer.
    Leaving,
    /// The release was confirmed.
    Released,
    /// The release was not confirmed.
    NotReleased {
        /// The kind of failure.
        kind: String,
        /// Whether the hold had been lost before.
        lost: bool,
    },
    /// The guard was dropped; the release goes on in the background.
    Dropped,
    /// The holder was told that the hold is lost.
    Lost {
        /// How.
        reason: String,
    },
    /// The resource was asked to write.
    Wrote {
        /// The value's name, which is that of the lock.
        name: String,
        /// The token that was shown.
        token: u64,
        /// The version that the writer had read.
        base: u64,
        /// The version that it wrote.
        value: u64,
        /// Whether it was let through.
        accepted: bool,
    },
    /// The process was stopped.
    Stopped,
    /// The process goes on.
    Continued,
    /// The process was killed.
    Killed,
    /// A fault begins that touches everybody.
    Fault {
        /// What it is.
        what: String,
    },
    /// The fault is over.
    Healed,
    /// Anything that a reader should know.
    Note {
        /// What.
        what: String,
    },
}

/// A file of [`Event`]s, one a line. Each is written at once, so that a killed process leaves all it has seen.
#[derive(Debug)]
pub struct EventLog {
    client: String,
    /// Short writes without awaits.
    file: Mutex<File>,
    next_op: AtomicU64,
}

impl EventLog {
    /// Appends to `path` what `client` sees.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path, client: impl Into<String>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { client: client.into(), file: Mutex::new(file), next_op: AtomicU64::new(1) })
    }

    /// A number for a new acquisition.
    pub fn next_op(&self) -> u64 {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes what happens now.
    ///
    /// # Panics
    /// As all that write: if the file cannot be written, since an incomplete log would pass for a good one.
    pub fn now(&self, op: u64, what: What) {
        self.at(monotonic(), op, what);
    }

    /// Writes what happened at `t`.
    ///
    /// # Panics
    /// As [`now`](Self::now).
    pub fn at(&self, t: u64, op: u64, what: What) {
        self.of(t, &self.client, op, what);
    }

    /// Writes what happened to another process.
    ///
    /// # Panics
    /// As [`now`](Self::now).
    pub fn of(&self, t: u64, client: &str, op: u64, what: What) {
        let event = Event { t, client: client.into(), op, what };
        let Ok(mut line) = serde_json::to_vec(&event) else { return };
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&line) {
            panic!("the event log cannot be written: {error}");
        }
    }

    /// Reads a log, as far as it has whole lines. The last one may be cut off by the end of its
    /// writer, or be about to be written.
    ///
    /// # Errors
    /// If the file cannot be read, or has a line that is no event.
    pub fn read(path: &Path) -> io::Result<Vec<Event>> {
        let bytes = std::fs::read(path)?;
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
        whole.map(|line| Ok(serde_json::from_slice(line)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_but_for_a_line_that_was_cut_off() {
        let path = std::env::temp_dir().join(format!("lockcore-events-{}", std::process::id()));
        let log = EventLog::open(&path, "one").unwrap();
        log.at(
            5,
            1,
            What::Asked {
                name: "a".into(),
                share: Share::Permits { count: 1, of: 3 },
                nested_in: None,
            },
        );
        log.at(6, 1, What::Granted { token: 7, owner: "one:1".into(), until: 9 });
        log.file.lock().unwrap().write_all(b"{\"t\":8,\"cli").unwrap();
        let events = EventLog::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].what, What::Granted { token: 7, owner: "one:1".into(), until: 9 });
        assert_eq!((events[1].t, events[1].client.as_str(), events[1].op), (6, "one", 1));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let before = monotonic();
        assert!(monotonic() >= before && before > 0);
        assert!(wall_clock() > 1_600_000_000_000_000_000);
    }
}
