//! [`RwLock`].

use std::sync::Arc;

use crate::{Lock, LockError, LockName, LockState, Mode, client::Client};

/// A handle of a read-write lock: many readers hold it together, or a single writer.
///
/// [`Locks::rw_lock`](crate::Locks::rw_lock) makes one. [`read`](Self::read) and
/// [`write`](Self::write) are locks like any other, with the same methods, guards, leases and
/// tokens. Both are reentrant.
///
/// # Downgrade and upgrade
/// - A writer may acquire the read lock as well, at once, and then release the write lock. It
///   becomes a reader, and no other writer comes in between.
/// - A reader cannot become a writer, because two readers that tried would wait for each other. An
///   owner that asks for the write lock while it holds the read lock gets [`LockError::Upgrade`] at
///   once.
///
/// # Fairness
/// A writer that waits for readers keeps new readers out, in this client and in all other clients
/// of this library, so that it enters once the present readers are gone. After a writer, waiting
/// readers may enter before the next writer. A writer that crashes while it waits keeps readers out
/// for at most the [`queue_timeout`](crate::LocksBuilder::queue_timeout). Readers in Java do not
/// take part in this, and may keep a writer waiting.
///
/// # Leases
/// Each reader has a hold and a lease of its own. A nested acquisition with a longer lease extends
/// that of the hold, and the hold keeps it when the nested guard is gone.
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
/// // A writer becomes a reader.
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

    /// The read lock, which many readers hold together.
    #[must_use]
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The write lock, which a single writer holds.
    #[must_use]
    pub fn write(&self) -> Lock {
        self.write.clone()
    }

    /// The name of the lock, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if the name is not valid.
    pub fn name(&self) -> Result<&str, LockError> {
        self.read.name()
    }

    /// The present holders of the lock, readers and writers. Like [`Lock::state`].
    ///
    /// # Errors
    /// As for [`Lock::state`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn state(&self) -> Result<LockState, LockError> {
        self.read.state().await
    }

    /// Frees the lock, whoever holds it, readers and writers. Like [`Lock::force_release`], which
    /// does the same for either side.
    ///
    /// # Errors
    /// As for [`Lock::force_release`].
    ///
    /// # Cancel safety
    /// As for [`Lock::force_release`].
    pub async fn force_release(&self) -> Result<bool, LockError> {
        self.write.force_release().await
    }
}
