//! [`Event`] and [`EventLog`]: the observations of clients, of resources and of the fault injector,
//! on one clock for all processes.

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

/// The time of this machine in nanoseconds, the same in all its processes: `CLOCK_MONOTONIC`.
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

/// How a hold can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Share {
    /// Shared with nobody.
    Alone,
    /// Shared with other readers.
    Read,
    /// Shared while there are permits.
    Permits {
        /// The number of permits of this hold.
        count: u32,
        /// The total number of permits.
        of: u32,
    },
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time, by [`monotonic`].
    pub t: u64,
    /// The name of the process.
    pub client: String,
    /// The number of the acquisition in that process; 0 for events without one.
    pub op: u64,
    /// The kind of event, with its details.
    #[serde(flatten)]
    pub what: What,
}

/// The kind of an event, with its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "e")]
#[non_exhaustive]
pub enum What {
    /// An acquisition begins.
    Asked {
        /// The name of the lock.
        name: String,
        /// How the hold can be shared.
        share: Share,
        /// The acquisition of the same owner that this one is nested in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nested_in: Option<u64>,
    },
    /// The acquisition was granted.
    Granted {
        /// The fencing token.
        token: u64,
        /// The owner as known to the store.
        owner: String,
        /// The deadline that the owner knows now.
        until: u64,
    },
    /// The acquisition was refused because the lock is held, or timed out.
    Refused,
    /// The acquisition failed.
    Failed {
        /// The kind of failure.
        kind: String,
        /// `true` if the request may have been applied.
        unknown: bool,
    },
    /// The future of the acquisition was dropped before it completed.
    Cancelled,
    /// The owner checked the hold, and believes in it.
    Held {
        /// The deadline that the owner knows now.
        until: u64,
    },
    /// The owner begins to release, and no longer believes in the hold.
    Leaving,
    /// The release was confirmed.
    Released,
    /// The release was not confirmed.
    NotReleased {
        /// The kind of failure.
        kind: String,
        /// `true` if the hold had been lost before.
        lost: bool,
    },
    /// The guard was dropped; the release goes on in the background.
    Dropped,
    /// The owner was told that the hold is lost.
    Lost {
        /// The reason for the loss.
        reason: String,
    },
    /// The resource was asked to write.
    Wrote {
        /// The name of the value, the same as that of the lock.
        name: String,
        /// The token that was presented.
        token: u64,
        /// The version that the writer had read.
        base: u64,
        /// The version of the write.
        value: u64,
        /// `true` if the resource accepted the write.
        accepted: bool,
    },
    /// The process was stopped.
    Stopped,
    /// The process was resumed.
    Continued,
    /// The process was killed.
    Killed,
    /// A fault that affects all processes begins.
    Fault {
        /// The name of the fault.
        what: String,
    },
    /// The fault has ended.
    Healed,
    /// Information for a reader of the log.
    Note {
        /// The text.
        what: String,
    },
}

/// A file of [`Event`]s, one per line. Each is written at once, so that the log of a killed process
/// is complete.
#[derive(Debug)]
pub struct EventLog {
    client: String,
    /// Locked for short writes without awaits.
    file: Mutex<File>,
    next_op: AtomicU64,
}

impl EventLog {
    /// Appends the events of `client` to the file at `path`.
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

    /// Writes an event of this moment.
    ///
    /// # Panics
    /// If the file cannot be written, since an incomplete log would pass for a good one. The same
    /// holds for all methods that write.
    pub fn now(&self, op: u64, what: What) {
        self.at(monotonic(), op, what);
    }

    /// Writes an event that happened at `t`.
    ///
    /// # Panics
    /// As [`now`](Self::now).
    pub fn at(&self, t: u64, op: u64, what: What) {
        self.of(t, &self.client, op, what);
    }

    /// Writes an event of another process.
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

    /// Reads the complete lines of a log. The last line may be cut off because its writer was
    /// killed, or is still writing it.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is not an event.
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
