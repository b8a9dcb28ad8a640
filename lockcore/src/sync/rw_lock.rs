//! [`RwLock`].

use std::sync::Arc;

use crate::{Lock, LockError, LockName, LockState, Mode, client::Client};

/// A handle of a lock that many readers hold together, or one writer alone.
///
/// Made by [`Locks::rw_lock`](crate::Locks::rw_lock). [`read`](Self::read) and [`write`](Self::write) are locks like any other, with the same
/// verbs, guards, leases and tokens. Both are reentrant for their owner.
///
/// # From one to the other
/// - A writer may read as well, at once, and then release the write lock: so it becomes a reader, with nobody in between
///   (downgrade).
/// - A reader cannot become a writer: two readers that tried would wait for each other. An owner that asks for the write lock while
///   it holds the read lock gets [`LockError::Upgrade`], at once.
///
/// # Who comes first
/// A writer that waits for readers keeps new readers out, in this client and in all others of this library, so that it comes in when those
/// have gone that are in. After a writer, readers that wait may come in before the next writer. A writer that crashes while it
/// waits keeps readers out for the [`queue_timeout`](crate::LocksBuilder::queue_timeout) at most. Readers in Java do not know of
/// this, and may keep a writer waiting.
///
/// # Examples
/// ```
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let prices = locks.rw_lock("prices");
///
/// let one = prices.read().acquire().await?;
/// let other = prices.read().acquire().await?;
/// assert!(prices.write().try_acquire().await?.is_none(), "readers keep writers out");
/// drop((one, other));
///
/// // A writer that goes on as a reader.
/// let reading = prices.write().run(async |_writing| prices.read().acquire().await).await??;
/// assert!(prices.write().try_acquire().await?.is_none());
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    pub(crate) fn new(client: &Arc<Client>, name: &Result<LockName, LockError>) -> Self {
        let side = |mode| Lock::new(client.clone(), name.clone(), mode);
        Self { read: side(Mode::Read), write: side(Mode::Write) }
    }

    /// The lock for readers, which they hold together.
    #[must_use]
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The lock for a writer, who holds it alone.
    #[must_use]
    pub fn write(&self) -> Lock {
        self.write.clone()
    }

    /// The name of the lock, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if it is no valid name.
    pub fn name(&self) -> Result<&str, LockError> {
        self.read.name()
    }

    /// Who holds the lock now, readers and writers; as [`Lock::state`].
    ///
    /// # Errors
    /// As [`Lock::state`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        self.read.state().await
    }

    /// Frees the lock, whoever holds it, readers and writers; as [`Lock::force_release`].
    ///
    /// # Errors
    /// As [`Lock::force_release`].
    ///
    /// # Cancel safety
    /// As [`Lock::force_release`].
    pub async fn force_release(&self) -> Result<bool, LockError> {
        self.write.force_release().await
    }
}
