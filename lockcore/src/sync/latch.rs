//! [`CountDownLatch`].

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use crate::{
    BackendError, LockError, LockName,
    backend::{Latches, Wakeups},
    client::Client,
    time::Backoff,
};

/// The longest time for which a request is repeated: a backend may forget it after a minute.
const REPEATED: Duration = Duration::from_secs(50);

/// How often a waiter asks again if no wake-up comes.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// A handle of a count-down latch, which is set to a count and opens when it has been counted down
/// to zero.
///
/// [`Locks::latch`](crate::Locks::latch) makes one. A latch without a count is open, and waiting
/// for it returns at once. So set the count before anybody waits. An open latch can be set again,
/// but a waiter may miss an opening that is followed by a new count at once; use another name for
/// each round.
///
/// A latch has no holder and no lease. If a process dies that should count it down, the latch stays
/// closed until an operator [opens](Self::open) it. Wait with a [time-out](Self::wait_timeout)
/// where that matters.
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
    /// [`LockError::InvalidName`] if the name is not valid.
    pub fn name(&self) -> Result<&str, LockError> {
        self.name.as_ref().map(LockName::as_str).map_err(LockError::clone)
    }

    /// Sets the count of an open latch: at least 1.
    ///
    /// # Errors
    /// - [`LockError::AlreadySet`] if the latch has a count, which stays.
    /// - [`LockError::InvalidOption`] for zero.
    /// - [`LockError::InvalidName`], [`LockError::Unsupported`] and [`LockError::Closed`], before
    ///   any I/O.
    /// - [`LockError::Backend`], at once if a retry cannot help, and otherwise when the backend has
    ///   not responded for [`retry_for`](crate::LocksBuilder::retry_for). The count may be set
    ///   then.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the count may or may not be set.
    pub async fn set_count(&self, count: u32) -> Result<(), LockError> {
        let (name, latches) = self.parts()?;
        if count == 0 {
            let reason =
                "it is zero, and a latch with a count of zero is open; give at least 1".into();
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

    /// Counts down by one, and returns the count that is left. At zero the latch opens, and all
    /// waiters return. An open latch stays open.
    ///
    /// # Errors
    /// As for [`set_count`](Self::set_count), as far as they apply. After a failure whose outcome
    /// is unknown, the latch may have been counted down.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the latch may or may not have been counted
    /// down, but never twice.
    pub async fn count_down(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        let id = self.client.request_id();
        self.ask(name, || latches.count_down(name, &id)).await
    }

    /// The count that is left: zero if the latch is open.
    ///
    /// # Errors
    /// As for [`set_count`](Self::set_count), as far as they apply.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn count(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        self.ask(name, || latches.count(name)).await
    }

    /// Opens the latch, whatever its count, and returns the count that was left. This is a tool for
    /// operators.
    ///
    /// # Errors
    /// As for [`set_count`](Self::set_count), as far as they apply.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the latch may or may not be open.
    pub async fn open(&self) -> Result<u32, LockError> {
        let (name, latches) = self.parts()?;
        self.ask(name, || latches.open(name)).await
    }

    /// Waits until the latch is open, as long as it takes. A waiter does not poll: the opening
    /// wakes it. Waiters of one client that are woken together share a request.
    ///
    /// # Errors
    /// As for [`set_count`](Self::set_count), as far as they apply, and
    /// [`LockError::TooManyWaiters`] if the [limit](crate::LocksBuilder::max_waiters) of waiters is
    /// reached. A waiter may notice an outage only after 10 s;
    /// [`retry_for`](crate::LocksBuilder::retry_for) counts from then.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait(&self) -> Result<(), LockError> {
        self.wait_until_open(&mut None).await
    }

    /// Waits. `last_error` is the failure that is being retried, if any.
    async fn wait_until_open(&self, last_error: &mut Option<LockError>) -> Result<(), LockError> {
        let (name, latches) = self.parts()?;
        if self.ask_until(name, last_error, || latches.count(name)).await? == 0 {
            return Ok(());
        }
        let _counted = self.client.waiters.count_for_latch(name)?;
        let mut backoff = Backoff::default();
        let mut wakeups = None;
        loop {
            // A backend whose wake-ups are always ready must not keep the thread.
            tokio::task::consume_budget().await;
            let news = pin!(async {
                match &mut wakeups {
                    // A message can be lost unnoticed.
                    Some(wakeups) => self.hear(wakeups).await,
                    None => match self.client.answer(latches.subscribe(name)).await {
                        Ok(subscription) => wakeups = Some(subscription),
                        // The next request shows whether the backend is up.
                        Err(error) if error.is_retryable() => {
                            tokio::time::sleep(backoff.next()).await;
                        }
                        Err(error) => return Err(error.with_lock(name).into()),
                    },
                }
                Ok(())
            });
            self.client.unless_closed(name, news).await?;
            let look = || self.client.look_at_latch(name);
            if self.ask_until(name, last_error, look).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Resolves at the next message, and now and then without one.
    async fn hear(&self, wakeups: &mut Box<dyn Wakeups>) {
        let _ = tokio::time::timeout(ASK_EVERY, wakeups.woken()).await;
    }

    /// Waits for at most `timeout` until the latch is open. With a time-out of zero, it only checks
    /// whether the latch is open.
    ///
    /// # Errors
    /// [`LockError::LatchTimeout`] if the latch was not open in time, or the last error of the
    /// backend if it did not respond when the time was up. [`LockError::NoRuntime`] outside of a
    /// tokio runtime. Otherwise as for [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_timeout(&self, timeout: Duration) -> Result<(), LockError> {
        let (name, _) = self.parts()?;
        let mut last_error = None;
        let waited = if timeout.is_zero() {
            (self.count().await? == 0).then_some(())
        } else {
            self.client.require_runtime(name)?;
            let waited = tokio::time::timeout(timeout, self.wait_until_open(&mut last_error)).await;
            waited.ok().transpose()?
        };
        let timed_out = || LockError::LatchTimeout { lock: name.clone(), waited: timeout };
        waited.ok_or_else(|| last_error.unwrap_or_else(timed_out))
    }

    fn parts(&self) -> Result<(&LockName, &dyn Latches), LockError> {
        let name = self.name.as_ref().map_err(LockError::clone)?;
        let latches = self.client.backend.latches();
        latches
            .map(|latches| (name, latches))
            .ok_or_else(|| LockError::Unsupported { lock: name.clone(), what: "latches" })
    }

    async fn ask<T, F>(&self, name: &LockName, request: impl Fn() -> F) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        self.ask_until(name, &mut None, request).await
    }

    async fn ask_until<T, F>(
        &self,
        name: &LockName,
        last_error: &mut Option<LockError>,
        request: impl Fn() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let limit = self.client.settings.retry_for.min(REPEATED);
        let asked = pin!(self.client.repeat(name, limit, last_error, request));
        self.client.unless_closed(name, asked).await
    }
}
