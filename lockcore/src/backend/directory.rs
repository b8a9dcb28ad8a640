//! [`Directory`]: the part of a backend that reports which names are in use, and by which clients.

use std::{fmt, time::Duration};

use super::stored::StoredEntry;
use crate::{BackendError, BackendErrorKind, LockName, backend::async_trait};

/// The names in use at a store, and the records of its clients.
///
/// It serves people who inspect a store, and the graph of who waits for whom. No lock depends on
/// it: the core goes on without it, and never treats its errors as errors of a lock. As with
/// [`Backend`](crate::backend::Backend), any future may be dropped.
///
/// # The contract
/// A *walk* begins with [`Start::Beginning`], goes on with the cursor of each page, and ends with
/// a page that has none.
///
/// - **C41 (names)** A walk MUST report every name of a lock, semaphore or latch that is in use for
///   the whole time of the walk: one that is held or has places in a queue, a semaphore whose
///   number of permits was set, or a latch that is not open. It MUST NOT report a name that is in
///   use at no time of the walk. It may report a name more than once.
/// - **C42 (steps)** A page MUST NOT hold up other requests, however many names the store has.
///   *Wrong:* `KEYS`. *Right:* a step of `SCAN`, or a limited number of rows of an index. A page
///   may be empty although the walk goes on, and pages may differ in length.
/// - **C43 (records)** Once `put_client` was answered, every walk that begins within the lifetime
///   MUST report the last record of the client, exactly as it was written, until `remove_client`
///   was answered. It MUST NOT report a record whose lifetime has passed, or which was removed or
///   replaced before the walk began.
/// - **C44 (apart)** Records MUST NOT affect locks, and names of locks MUST NOT affect records.
///   The keys and rows of records are not reported as names.
/// - **C45 (storage)** `storage` MUST change nothing. It MUST report something for a name that is
///   held, nothing for a name that was never used, and for a condition that it is asked about the
///   number of waiters. It MUST NOT report what is stored of other names. Alternatively, it answers
///   that it cannot tell.
#[async_trait]
pub trait Directory: Send + Sync {
    /// The next page of the names in use.
    ///
    /// # Errors
    /// [`Other`](crate::BackendErrorKind::Other) for a cursor that this store did not give.
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError>;

    /// Writes the record of the client `id`, replacing its former one. It is forgotten when the
    /// `lifetime`, 1 s to 1 h, has passed. The `id` has 1 to 64 ASCII letters, digits and hyphens,
    /// and the record up to 64 KiB without control characters.
    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError>;

    /// Forgets the record of the client `id`, if it has one.
    async fn remove_client(&self, id: &str) -> Result<(), BackendError>;

    /// The next page of the ids and records of clients.
    ///
    /// # Errors
    /// As for [`names`](Self::names).
    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError>;

    /// Returns the store's data about a name: its keys or rows, with the rest of their lifetimes.
    /// It is for people, and no lock depends on it.
    ///
    /// Some stores can only look up the given `conditions` of the name. Others report all
    /// conditions that have waiters, whichever are given.
    ///
    /// # Errors
    /// [`Unsupported`](crate::BackendErrorKind::Unsupported) from a store that cannot tell.
    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError>;
}

/// The place where a page begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// With the first entry.
    Beginning,
    /// Where the page that returned the cursor ends.
    At(Cursor),
}

/// A place in a walk. Only the store that gave it understands it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Cursor(String);

impl Cursor {
    /// A cursor that a backend gives.
    #[must_use]
    pub fn new(place: impl Into<String>) -> Self {
        Self(place.into())
    }

    /// The place, as the backend wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The error for a cursor that the store did not give.
    #[must_use]
    pub fn refused(&self) -> BackendError {
        let message = format!("{self:?} is no cursor of this store");
        BackendError::new(BackendErrorKind::Other, message).not_applied()
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({:?})", self.0)
    }
}

/// A part of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// The entries of this part.
    pub entries: Vec<T>,
    /// The place where the next page begins, or [`None`] if this is the last one.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// A page of a walk that goes on at `next`.
    #[must_use]
    pub fn new(entries: Vec<T>, next: Option<Cursor>) -> Self {
        Self { entries, next }
    }
}
