//! [`CountDownLatch`].

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use crate::{
    BackendError, LockError, LockName, acquiring::acquisition::Trouble, backend::Latches,
    client::Client,
};

/// For how long a request is repeated at most: a backend need not know it again after a minute.
const REPEATED: Duration = Duration::from_secs(50);

/// A handle of a count-down latch: it is set to a count, and whoever waits goes on when that has been counted down to zero.
///
/// Made by [`Locks::latch`](crate::Locks::latch). A latch that has no count is open: whoever waits for it goes on at once. So it has to be
/// set before anybody waits; and once it is open, it can be set again. Whoever waits may miss an opening that is followed by a new count
/// at once: use another name for each round.
///
/// Nobody holds a latch, and it has no lease: if somebody dies who was to count it down, it stays closed until an operator
/// [opens](Self::open) it. Wait with a [time-out](Self::wait_timeout) where that matters.
///
/// # Examples
/// ```
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let ready = locks.latch("ready");
///
/// ready.set_count(2).await?;
/// let waiter = tokio::spawn({
///     let ready = ready.clone();
///     async move { ready.wait().await }
/// });
/// assert_eq!(ready.count_down().await?, 1);
/// assert_eq!(ready.count_down().await?, 0);
/// waiter.await.expect("no panic")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CountDownLatch {
    client: Arc<Client>,
    name: Result<LockName, LockError>,
}

impl CountDownLatch {
    pub(crate) fn new(client: Arc<Client>, name: Result<LockName, LockError>) -> Self {
        Self { client, name }
    }

    /// The name of the latch, with the namespace.
    ///
    /// # Errors
    /// [`LockError::InvalidName`] if it is no valid name.
    pub fn name(&self) -> Result<&str, LockError> {
        self.name.as_ref().map(LockName::as_str).map_err(LockError::clone)
    }

    /// Sets the count of a latch that is open: at least 1.
    ///
    /// # Errors
    /// - [`LockError::AlreadySet`] if it has a count: that stays as it is.
    /// - [`LockError::InvalidOption`] for zero.
    /// - [`LockError::InvalidName`], [`LockError::Unsupported`], [`LockError::Closed`]: before any I/O.
    /// - [`LockError::Backend`] at once for what a retry cannot help, and for the rest when the backend has given no answer for
    ///   [`retry_for`](crate::LocksBuilder::retry_for). The count may be set then.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the count may or may not be set.
    pub async fn set_count(&self, count: u32) -> Result<(), LockError> {
        let (name, latches) = self.parts()?;
        if count == 0 {
            let reason =
                "a latch is set to at least 1; with a count of zero it would be open".into();
            return Err(LockError::InvalidOption {
                lock: Some(name.clone()),
                option: "set_count",
                reason,
            });
        }
        let id = self.client.request_id();
        match self.ask(name, || latches.set_count(name, count, &id)).await? {
            true => Ok(()),
            false => Err(LockError::AlreadySet { lock: name.clone() }),
        }
    }

    /// Counts down by one, and returns what is left. At zero, all who wait go on. A latch that is open stays so.
    ///
    /// # Errors
    /// As [`set_count`](Self::set_count), as far as they apply. After a failure that leaves the outcome open, it may have been counted.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, it may or may not have been counted, but never twice.
    pub async fn count_down(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        let id = self.client.request_id();
        self.ask(name, || latches.count_down(name, &id)).await
    }

    /// What is left to be counted down; zero if the latch is open.
    ///
    /// # Errors
    /// As [`set_count`](Self::set_count), as far as they apply.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn count(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        self.ask(name, || latches.count(name)).await
    }

    /// Opens the latch, whatever is left to be counted down: an operator's tool. Returns what was left.
    ///
    /// # Errors
    /// As [`set_count`](Self::set_count), as far as they apply.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the latch may or may not be open.
    pub async fn open(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        self.ask(name, || latches.open(name)).await
    }

    /// Waits until the latch is open, as long as it takes. There is no polling: whoever waits is woken.
    ///
    /// # Errors
    /// As [`set_count`](Self::set_count), as far as they apply; and [`LockError::TooManyWaiters`] if as many wait already as
    /// [may](crate::LocksBuilder::max_waiters).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait(&self) -> Result<(), LockError> {
        self.wait_troubled(&Trouble::default()).await
    }

    /// Waits, and keeps `trouble` informed of what it is struggling with.
    async fn wait_troubled(&self, trouble: &Trouble) -> Result<(), LockError> {
        let (name, latches) = self.parts()?;
        if self.ask_troubled(name, trouble, || latches.count(name)).await? == 0 {
            return Ok(());
        }
        let _seat = self.client.store.names.seats.take(name)?;
        let mut wakeups = self.ask_troubled(name, trouble, || latches.subscribe(name)).await?;
        while self.ask_troubled(name, trouble, || latches.count(name)).await? > 0 {
            let opened = async {
                wakeups.woken().await;
                Ok(())
            };
            self.client.unless_closed(name, pin!(opened)).await?;
        }
        Ok(())
    }

    /// Waits until the latch is open, at most `timeout`. With zero, it is looked at once.
    ///
    /// # Errors
    /// [`LockError::LatchTimeout`] if it was not open in time; otherwise as [`wait`](Self::wait). If the time ran out while the backend gave no
    /// answer, its last error.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_timeout(&self, timeout: Duration) -> Result<(), LockError> {
        let (name, _) = self.parts()?;
        let trouble = Trouble::default();
        let waited = if timeout.is_zero() {
            (self.count().await? == 0).then_some(())
        } else {
            tokio::time::timeout(timeout, self.wait_troubled(&trouble)).await.ok().transpose()?
        };
        let timed_out = || LockError::LatchTimeout { lock: name.clone(), waited: timeout };
        waited.ok_or_else(|| trouble.take().unwrap_or_else(timed_out))
    }

    fn parts(&self) -> Result<(&LockName, &dyn Latches), LockError> {
        let name = self.name.as_ref().map_err(LockError::clone)?;
        let latches = self.client.store.backend.latches();
        latches
            .map(|latches| (name, latches))
            .ok_or_else(|| LockError::Unsupported { lock: name.clone(), what: "latches" })
    }

    async fn ask<T, F>(&self, name: &LockName, request: impl Fn() -> F) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        self.ask_troubled(name, &Trouble::default(), request).await
    }

    async fn ask_troubled<T, F>(
        &self,
        name: &LockName,
        trouble: &Trouble,
        request: impl Fn() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let limit = self.client.settings.retry_for.min(REPEATED);
        self.client
            .unless_closed(name, pin!(self.client.repeat_troubled(name, limit, trouble, request)))
            .await
    }
}
