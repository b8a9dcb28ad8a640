//! [`Condition`].

use std::{future::Future, panic::Location, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    BackendError, Lock, LockError, LockGuard, LockName, Mode, WaitError, WaitOutcome,
    backend::{ConditionId, Conditions, Departure, Wakeups},
    client::{ConditionPlace, Counted, Counting, OnDrop, Tally},
    time::Lease,
};

/// A condition of a lock: a holder that has to wait for something releases the lock, waits for a
/// notification, and re-acquires the lock.
///
/// [`Lock::condition`] makes one. It works like the conditions of `java.util.concurrent.locks`, but
/// across processes: both waiting and notifying require the lock, and no notification is lost
/// between the release and the wait. Redisson has no conditions, so these are not shared with Java.
///
/// # Wait in a loop
/// A wait may end without a notification after an interruption, and another owner may have had the
/// lock between the notification and the return. So check again after each wait.
///
/// # Who is notified
/// The waiters that have waited longest are notified first. A waiter that is cancelled passes its
/// notification on; a waiter that times out at the very moment of the notification counts as
/// notified. A waiter that crashed keeps its place for the
/// [`queue_timeout`](crate::LocksBuilder::queue_timeout), and a notification that reaches it in
/// that time is lost. Where that matters, use [`notify_all`](Self::notify_all) or wait with a
/// time-out.
///
/// # Examples
/// ```
/// use lockcore::{LockError, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let lock = locks.lock("inbox");
/// let arrived = lock.condition("arrived");
///
/// let mut guard = lock.acquire().await?;
/// let sender = tokio::spawn({
///     let (lock, arrived) = (lock.clone(), arrived.clone());
///     async move {
///         let guard = lock.acquire().await?; // succeeds once the receiver waits
///         arrived.notify_one(&guard).await
///     }
/// });
/// let mut messages = 0; // in the inbox, which is somewhere else
/// while messages == 0 {
///     guard = arrived.wait(guard).await?;
///     messages = 1;
/// }
/// assert!(sender.await.expect("no panic")?, "one waiter was notified");
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Condition {
    lock: Lock,
    id: Result<ConditionId, LockError>,
}

impl Condition {
    pub(crate) fn new(lock: Lock, name: String) -> Self {
        let id = lock.lock_name().and_then(|lock| Ok(ConditionId::new(lock, LockName::new(name)?)));
        Self { lock, id }
    }

    /// Releases the lock, waits for a notification as long as it takes, and returns when the lock
    /// is held again: by the same owner and with the same kind of lease, but as a new hold with a
    /// new token.
    ///
    /// # Errors
    /// The guard comes back with the error, in [`WaitError::into_guard`], if the lock was not given
    /// up. With `?`, the error becomes a [`LockError`] and the guard is dropped.
    /// - [`LockError::WrongGuard`] for the guard of another lock, of a reader or of permits.
    /// - [`LockError::InvalidOption`] if the hold has other guards, or if its owner reads beside
    ///   writing: the lock would not be free during the wait.
    /// - [`LockError::Lost`] if the hold was lost before.
    /// - [`LockError::TooManyWaiters`] if the [limit](crate::LocksBuilder::max_waiters) of waiters
    ///   is reached.
    /// - [`LockError::InvalidName`], [`LockError::Unsupported`], [`LockError::Closed`] and
    ///   [`LockError::Backend`] as for [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// If the future is dropped at any await, the lock is not held, the place among the waiters is
    /// left, and a notification that had arrived goes to the next waiter.
    #[track_caller]
    pub fn wait(
        &self,
        guard: LockGuard,
    ) -> impl Future<Output = Result<LockGuard, WaitError>> + Send + 'static + use<> {
        let (condition, site) = (self.clone(), Location::caller());
        async move { Ok(condition.wait_until(guard, None, site).await?.0) }
    }

    /// Like [`wait`](Self::wait), but waits for a notification for at most `timeout`. The lock is
    /// held again in either case, and acquiring it may take longer than `timeout`.
    ///
    /// The outcome is also [`WaitOutcome::Notified`] if the waiter may have been notified, because
    /// the answer to that question was lost.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// As for [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(
        &self,
        guard: LockGuard,
        timeout: Duration,
    ) -> impl Future<Output = Result<(LockGuard, WaitOutcome), WaitError>> + Send + 'static + use<>
    {
        let (condition, site) = (self.clone(), Location::caller());
        async move {
            // A time-out beyond the range of the clock never passes.
            let deadline = Instant::now().checked_add(timeout);
            condition.wait_until(guard, deadline, site).await
        }
    }

    /// Notifies the waiter that has waited longest, and returns `true` if there was one. The waiter
    /// goes on once it has the lock, and so only after `guard` is gone.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), as far as they apply. After a failure whose outcome is unknown,
    /// a waiter may have been notified; if an answer was lost on the way, a second one as well.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, a waiter may or may not have been notified.
    pub async fn notify_one(&self, guard: &LockGuard) -> Result<bool, LockError> {
        Ok(self.notify(guard, 1).await? > 0)
    }

    /// Notifies all waiters, and returns how many there were.
    ///
    /// # Errors
    /// As for [`notify_one`](Self::notify_one).
    ///
    /// # Cancel safety
    /// As for [`notify_one`](Self::notify_one).
    pub async fn notify_all(&self, guard: &LockGuard) -> Result<u32, LockError> {
        self.notify(guard, u32::MAX).await
    }

    async fn notify(&self, guard: &LockGuard, count: u32) -> Result<u32, LockError> {
        let (id, conditions) = self.parts()?;
        self.check(guard)?;
        self.ask(id, || conditions.notify(id, count)).await
    }

    async fn wait_until(
        &self,
        guard: LockGuard,
        deadline: Option<Instant>,
        site: &'static Location<'static>,
    ) -> Result<(LockGuard, WaitOutcome), WaitError> {
        let mut waiting = match self.prepare(&guard).await {
            Ok(waiting) => waiting,
            Err(error) => return Err(WaitError::giving_back(error, guard)),
        };
        // Joined before the lock is given up, so that the next holder finds this waiter.
        if let Err(error) = waiting.join().await {
            return Err(WaitError::giving_back(error, guard));
        }
        let again = Self::again(&guard);
        guard.release().await.map_err(WaitError::without_guard)?;
        let outcome = waiting.notified(deadline).await.map_err(WaitError::without_guard)?;
        // If this is dropped before the lock is held again, a notification that came is passed on.
        let place = waiting.into_place();
        let guard = again.acquire_at(site).await.map_err(WaitError::without_guard)?;
        if let Some(place) = place {
            place.disarm();
        }
        Ok((guard, outcome))
    }

    /// Checks that `guard` may wait, and subscribes.
    async fn prepare(&self, guard: &LockGuard) -> Result<Waiting<'_>, LockError> {
        let (id, conditions) = self.parts()?;
        self.check(guard)?;
        if guard.hold_count() > 1 {
            let reason = format!(
                "its owner has {} guards of this hold, so the lock would not be free during the \
                 wait; release the others first",
                guard.hold_count()
            );
            return Err(self.invalid(id, "wait", reason));
        }
        let client = &self.lock.client;
        if guard.mode() == Mode::Write && client.reads(&id.lock, guard.owner()) {
            let reason = "its owner has the read lock as well, so the lock would not be free \
                          during the wait; release the read lock first";
            return Err(self.invalid(id, "wait", reason.into()));
        }
        let counted = client.waiters.count_for(id)?;
        // `Locks::close()` waits until the place is left, or passed to the background task.
        let acquiring = client.acquiring();
        let waiter = client.request_id();
        let keep = client.settings.queue_timeout;
        let wakeups = self.ask(id, || conditions.subscribe(id, &waiter)).await?;
        // Until it has joined, the waiter cannot have got a notification to pass on.
        let departure = Departure::TimedOut;
        let place = ConditionPlace::new(id, &waiter, keep, departure);
        Ok(Waiting {
            condition: self,
            id,
            conditions,
            waiter,
            keep,
            wakeups,
            place: Some(OnDrop::leaving(client, place)),
            _acquiring: acquiring,
            _counted: counted,
        })
    }

    /// The lock, to be acquired again as it was for `guard`.
    fn again(guard: &LockGuard) -> Lock {
        let (client, name) = (guard.held.client.clone(), Ok(guard.lock_name()));
        let lock = Lock::new(client, name, guard.mode()).owned_by(guard.owner());
        match guard.held.lease {
            Lease::Renewed(_) => lock,
            Lease::Fixed(lease) => lock.lease(lease),
        }
    }

    fn parts(&self) -> Result<(&ConditionId, &dyn Conditions), LockError> {
        let id = self.id.as_ref().map_err(LockError::clone)?;
        if matches!(self.lock.mode, Mode::Read | Mode::Permit { .. }) {
            let reason = "only a lock with a single holder has conditions; use the write lock, or \
                          `lock` or `fair_lock`"
                .into();
            return Err(self.invalid(id, "condition", reason));
        }
        let conditions = self.lock.client.backend.conditions();
        conditions
            .map(|conditions| (id, conditions))
            .ok_or_else(|| LockError::Unsupported { lock: id.lock.clone(), what: "conditions" })
    }

    /// Fails unless `guard` holds this condition's lock.
    fn check(&self, guard: &LockGuard) -> Result<(), LockError> {
        let id = self.id.as_ref().map_err(LockError::clone)?;
        let is_of_this_lock = Arc::ptr_eq(&guard.held.client, &self.lock.client)
            && guard.held.cell.name() == &id.lock
            && guard.mode().kind() == self.lock.mode.kind()
            && guard.mode() != Mode::Read;
        if !is_of_this_lock {
            return Err(LockError::WrongGuard {
                lock: id.lock.clone(),
                guard: guard.lock_name(),
                mode: guard.mode(),
            });
        }
        guard.check()
    }

    fn invalid(&self, id: &ConditionId, option: &'static str, reason: String) -> LockError {
        LockError::InvalidOption { lock: Some(id.lock.clone()), option, reason }
    }

    async fn ask<T, F>(&self, id: &ConditionId, request: impl Fn() -> F) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let client = &self.lock.client;
        let limit = client.settings.retry_for;
        let mut last_error = None;
        let asked = pin!(client.repeat(&id.lock, limit, &mut last_error, request));
        client.unless_closed(&id.lock, asked).await
    }
}

/// One wait that is under way.
struct Waiting<'a> {
    condition: &'a Condition,
    id: &'a ConditionId,
    conditions: &'a dyn Conditions,
    /// The text by which the backend knows this wait.
    waiter: Arc<str>,
    /// For how long the backend keeps the place without hearing from the waiter.
    keep: Duration,
    wakeups: Box<dyn Wakeups>,
    /// The place among the waiters: if it is dropped before it was left, the background leaves it.
    place: Option<OnDrop>,
    _acquiring: Counting<&'a Tally>,
    _counted: Counted<'a>,
}

impl<'a> Waiting<'a> {
    /// Takes a place among the waiters.
    async fn join(&mut self) -> Result<(), LockError> {
        let Self { condition, id, conditions, waiter, keep, .. } = self;
        condition.ask(id, || conditions.join(id, waiter, *keep)).await?;
        self.arm();
        Ok(())
    }

    /// From now on, the waiter may have been notified by the time it leaves.
    fn arm(&mut self) {
        if let Some(place) = self.place.take() {
            place.disarm();
        }
        let place = ConditionPlace::new(self.id, &self.waiter, self.keep, Departure::Cancelled);
        self.place = Some(OnDrop::leaving(&self.condition.lock.client, place));
    }

    /// Resolves with the notification, or at `deadline`.
    async fn notified(&mut self, deadline: Option<Instant>) -> Result<WaitOutcome, LockError> {
        let Self { condition, id, conditions, waiter, keep, wakeups, .. } = self;
        let (client, keep) = (&condition.lock.client, *keep);
        let notified = async {
            loop {
                // A backend whose wake-ups are always ready must not keep the thread.
                tokio::task::consume_budget().await;
                // Asking again in time is what keeps the place.
                let news = tokio::time::timeout(keep / 3, wakeups.woken());
                client.unless_closed(&id.lock, pin!(async { Ok(news.await) })).await?.ok();
                if !condition.ask(id, || conditions.stay(id, waiter, keep)).await? {
                    return Ok(WaitOutcome::Notified);
                }
            }
        };
        match deadline {
            None => return notified.await,
            Some(deadline) => {
                if let Ok(notified) = timeout_at(deadline, notified).await {
                    return notified;
                }
            }
        }
        self.leave().await
    }

    /// Leaves, and reports whether a notification came at the last moment.
    ///
    /// The background task leaves, so that the outcome is certain even if this is dropped: a
    /// notification that it got then goes to the next waiter.
    async fn leave(&mut self) -> Result<WaitOutcome, LockError> {
        let place = ConditionPlace::new(self.id, &self.waiter, self.keep, Departure::TimedOut);
        if let Some(armed) = self.place.take() {
            armed.disarm();
        }
        match OnDrop::leave_and_report(&self.condition.lock.client, place).await {
            Ok(Ok(Some(place))) => {
                self.place = Some(place);
                Ok(WaitOutcome::Notified)
            }
            Ok(Ok(None)) => Ok(WaitOutcome::TimedOut),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LockError::Closed { lock: self.id.lock.clone() }),
        }
    }

    /// The place to leave if the acquisition that follows is dropped, if there is one. Ends the
    /// subscription; the acquisition is counted as a waiter of its own.
    fn into_place(self) -> Option<OnDrop> {
        self.place
    }
}
