//! [`StoredEntry`]: a piece of the data that a store keeps about a name.

use std::{fmt, time::Duration};

use crate::LockName;

/// A key or a row that a store keeps for a name: see
/// [`Directory::storage`](crate::backend::Directory::storage).
///
/// ```
/// use std::time::Duration;
///
/// use lockcore::backend::{StoredEntry, StoredKind};
///
/// let entry = StoredEntry::new("redisson_lock_token:{nightly}", StoredKind::LastToken)
///     .with_number(Some(1_765_000_000_000_000))
///     .with_left(Some(Duration::from_secs(86_400)));
/// assert_eq!(entry.kind.to_string(), "last token");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredEntry {
    /// The key, or the table and the part that identifies the row.
    pub key: String,
    /// The purpose of the entry.
    pub kind: StoredKind,
    /// The number in it, if it has one: see [`StoredKind`].
    pub number: Option<u64>,
    /// How long the store keeps it if nothing else happens. [`None`] if it has no end.
    pub left: Option<Duration>,
}

impl StoredEntry {
    /// An entry without a number and without an end.
    #[must_use]
    pub fn new(key: impl Into<String>, kind: StoredKind) -> Self {
        Self { key: key.into(), kind, number: None, left: None }
    }

    /// Sets the number in it.
    #[must_use]
    pub fn with_number(mut self, number: Option<u64>) -> Self {
        self.number = number;
        self
    }

    /// Sets for how long the store keeps it.
    #[must_use]
    pub fn with_left(mut self, left: Option<Duration>) -> Self {
        self.left = left;
        self
    }
}

/// The purpose of a [`StoredEntry`], and the meaning of its number. It is displayed in a few words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoredKind {
    /// A hold, or all of them. The number is the fencing token of the hold.
    Hold,
    /// The last fencing token that was given for the name, which is the number.
    LastToken,
    /// The queue of a fair lock, writers that keep readers out, or one place. The number is the
    /// number of places.
    Queue,
    /// The permits of a semaphore. The number is that of all permits, or of the available ones.
    Permits,
    /// A latch. The number is its count.
    Latch,
    /// A condition with this name. The number is the number of waiters.
    Condition(LockName),
    /// The least fencing token with which the data behind the name may still be written, which is
    /// the number.
    Fence,
    /// A note of an answered request, or of one that must not take effect any more. It makes
    /// repetitions harmless.
    Request,
}

impl fmt::Display for StoredKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold => f.write_str("hold"),
            Self::LastToken => f.write_str("last token"),
            Self::Queue => f.write_str("queue"),
            Self::Permits => f.write_str("permits"),
            Self::Latch => f.write_str("latch"),
            Self::Condition(name) => write!(f, "condition {}", name.as_str()),
            Self::Fence => f.write_str("fence"),
            Self::Request => f.write_str("request"),
        }
    }
}
