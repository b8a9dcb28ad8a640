//! [`WaitError`] and [`WaitOutcome`]: how a wait for a condition ends.

use std::{error::Error, fmt};

use crate::{LockError, LockGuard};

/// How [`Condition::wait_timeout`](crate::Condition::wait_timeout) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The waiter was notified, or may have been.
    Notified,
    /// The time was up before a notification came.
    TimedOut,
}

/// A failed wait for a [`Condition`](crate::Condition), with the guard if the lock was not given
/// up.
///
/// With `?` it becomes a [`LockError`], and the guard is dropped.
///
/// # Examples
/// ```
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let inbox = locks.lock("inbox").acquire().await?;
///
/// let failed = locks.lock("outbox").condition("emptied").wait(inbox).await.unwrap_err();
/// assert!(matches!(failed.error(), LockError::WrongGuard { .. }));
/// let inbox = failed.into_guard().expect("the lock was not given up");
/// assert!(inbox.is_held());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct WaitError {
    error: LockError,
    /// Boxed, to keep the error small.
    guard: Option<Box<LockGuard>>,
}

impl WaitError {
    /// An error after the lock was given up.
    pub(crate) fn without_guard(error: LockError) -> Self {
        Self { error, guard: None }
    }

    /// An error before the lock was given up.
    pub(crate) fn giving_back(error: LockError, guard: LockGuard) -> Self {
        Self { error, guard: Some(Box::new(guard)) }
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &LockError {
        &self.error
    }

    /// The guard that was given to the wait, if the wait failed before it gave the lock up. It is
    /// still held, unless [`error`](Self::error) says that the hold was lost.
    #[must_use]
    pub fn into_guard(self) -> Option<LockGuard> {
        self.guard.map(|guard| *guard)
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl From<WaitError> for LockError {
    fn from(failed: WaitError) -> Self {
        failed.error
    }
}
