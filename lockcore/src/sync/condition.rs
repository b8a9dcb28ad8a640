//! [`Condition`].

use std::{future::Future, panic::Location, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    BackendError, Lock, LockError, LockGuard, LockName, Mode,
    acquiring::retry::Backoff,
    acquiring::waiters::{Inside, Lane},
    backend::{ConditionId, Conditions},
    client::Client,
    leases::background::Job,
    leases::lease::Lease,
    store::Store,
};

/// A condition of a lock: who holds the lock and finds that it is not yet time gives it up, waits to be notified, and has it again.
///
/// Made by [`Lock::condition`]. It works as the conditions of `java.util.concurrent`'s locks, over all processes: to wait and to
/// notify one must hold the lock, and no notification is lost between the release and the wait. Redisson has none, so
/// conditions are not shared with Java.
///
/// # Wait in a loop
/// A wait may end without a notification, after an interruption, so look again whether it is time. And between the notification
/// and the return somebody else may have had the lock.
///
/// # Who is notified
/// Those who have waited longest come first. A waiter that is cancelled passes on a notification that it has got; one that runs out of time
/// at that very moment has been notified. One that crashes is skipped, once it has not been heard of for the [`queue_timeout`](crate::LocksBuilder::queue_timeout); until then it
/// may take a notification with it. Where that matters, use [`notify_all`](Self::notify_all), or wait with a time-out.
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
///         let guard = lock.acquire().await?; // gets it when the receiver waits
///         arrived.notify_one(&guard).await
///     }
/// });
/// let mut messages = 0; // of the inbox, which is somewhere else
/// while messages == 0 {
///     guard = arrived.wait(guard).await?;
///     messages = 1;
/// }
/// assert!(sender.await.expect("no panic")?, "there was one to notify");
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

    /// Gives the lock up, waits to be notified, as long as it takes, and returns when it has the lock again: for the same owner and with
    /// the same kind of lease, as a new hold with a new token.
    ///
    /// # Errors
    /// The lock is not held after an error.
    /// - [`LockError::InvalidOption`] for the guard of another lock, of a reader or of permits; and if there are other guards of its hold, or
    ///   its owner reads beside writing, since the lock would not be free while this waits.
    /// - [`LockError::Lost`] if the hold was lost before.
    /// - [`LockError::TooManyWaiters`] if as many wait already as [may](crate::LocksBuilder::max_waiters).
    /// - [`LockError::InvalidName`], [`LockError::Unsupported`], [`LockError::Closed`], [`LockError::Backend`]: as
    ///   [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropped at any await, the lock is not held, no place among the waiting is left, and a notification that had come goes to the
    /// next.
    #[track_caller]
    pub fn wait(
        &self,
        guard: LockGuard,
    ) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static + use<> {
        let (condition, site) = (self.clone(), Location::caller());
        async move { Ok(condition.wait_until(guard, None, site).await?.0) }
    }

    /// As [`wait`](Self::wait), but waits to be notified for `timeout` at most. Says whether it was notified, or may have been: if the answer to
    /// that question was lost, it says so as well. The lock is held again
    /// in either case; to get it may take longer than `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout(
        &self,
        guard: LockGuard,
        timeout: Duration,
    ) -> impl Future<Output = Result<(LockGuard, bool), LockError>> + Send + 'static + use<> {
        let (condition, site) = (self.clone(), Location::caller());
        async move {
            // An over-long time-out is none.
            let deadline = Instant::now().checked_add(timeout);
            condition.wait_until(guard, deadline, site).await
        }
    }

    /// Notifies the one that has waited longest, if there is one. It goes on when it gets the lock, so after `guard` is gone.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). After a failure that leaves the outcome open, somebody may have been notified; and if an answer was lost on the
    /// way, a second one may have been.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, it may or may not have notified.
    pub async fn notify_one(&self, guard: &LockGuard) -> Result<bool, LockError> {
        Ok(self.notify(guard, 1).await? > 0)
    }

    /// Notifies all who wait, and returns how many there were.
    ///
    /// # Errors
    /// As [`notify_one`](Self::notify_one).
    ///
    /// # Cancel safety
    /// As [`notify_one`](Self::notify_one).
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
    ) -> Result<(LockGuard, bool), LockError> {
        let (id, conditions) = self.parts()?;
        self.check(&guard)?;
        if guard.hold_count() > 1 {
            let reason = format!(
                "its owner has {} guards of this hold; the lock would not be free while it waits, so release the others first",
                guard.hold_count()
            );
            return Err(self.invalid(id, "wait", reason));
        }
        let client = &self.lock.client;
        let lane = Lane::new(&id.lock, guard.mode(), guard.owner());
        if guard.mode() == Mode::Write
            && let Some(Inside::Nested(_)) =
                client.store.names.inside(&lane, Mode::Read, guard.owner())
        {
            let reason = "its owner has the read lock as well; the lock would not be free while it waits, so release that first";
            return Err(self.invalid(id, "wait", reason.into()));
        }
        let seat = client.store.names.seats.take_for(id)?;
        // Closing the client waits until the place is left, or given to the background.
        let _acquiring = client.acquiring();
        let waiter = client.request_id();
        let keep = client.settings.queue_timeout;
        let mut wakeups = self.ask(id, || conditions.subscribe(id, &waiter)).await?;
        // Before the lock is given up, so that whoever gets it next finds this waiter.
        let leaving = Leaving { id: id.clone(), waiter: waiter.clone(), keep, pass_on: false };
        let mut place = Place { client, work: Some(leaving) };
        self.ask(id, || conditions.join(id, &waiter, keep)).await?;
        place.may_be_notified();
        let again = Self::again(&guard);
        guard.release().await?;

        let notified = async {
            loop {
                // A place is kept by asking again in time.
                let news = tokio::time::timeout(keep / 3, wakeups.woken());
                client.unless_closed(&id.lock, pin!(async { Ok(news.await) })).await?.ok();
                if !self.ask(id, || conditions.stay(id, &waiter, keep)).await? {
                    return Ok(());
                }
            }
        };
        let notified: Option<Result<(), LockError>> = match deadline {
            None => Some(notified.await),
            Some(deadline) => timeout_at(deadline, notified).await.ok(),
        };
        let notified = match notified {
            Some(notified) => notified.map(|()| true)?,
            // In the last moment it may have been notified all the same.
            None => !self.ask(id, || conditions.leave(id, &waiter, false)).await?,
        };
        if !notified {
            place.forget();
        }
        // The acquisition has one of its own.
        drop(seat);
        let guard = again.acquire_at(site).await?;
        place.forget();
        Ok((guard, notified))
    }

    /// The lock as it was acquired for `guard`.
    fn again(guard: &LockGuard) -> Lock {
        let (client, name) = (guard.client.clone(), Ok(guard.lock_name()));
        let lock = Lock::new(client, name, guard.mode()).owned_by(guard.owner());
        match guard.lease {
            Lease::Renewed(_) => lock,
            Lease::Fixed(lease) => lock.lease(lease),
        }
    }

    fn parts(&self) -> Result<(&ConditionId, &dyn Conditions), LockError> {
        let id = self.id.as_ref().map_err(LockError::clone)?;
        if matches!(self.lock.mode, Mode::Read | Mode::Permit { .. }) {
            let reason =
                "only a lock that is held alone has conditions: take the write lock's, or a lock's"
                    .into();
            return Err(self.invalid(id, "condition", reason));
        }
        let conditions = self.lock.client.store.backend.conditions();
        conditions
            .map(|conditions| (id, conditions))
            .ok_or_else(|| LockError::Unsupported { lock: id.lock.clone(), what: "conditions" })
    }

    /// Whether `guard` is one of this condition's lock, and held.
    fn check(&self, guard: &LockGuard) -> Result<(), LockError> {
        let id = self.id.as_ref().map_err(LockError::clone)?;
        let is_of_this_lock = Arc::ptr_eq(&guard.client, &self.lock.client)
            && guard.hold.name() == &id.lock
            && guard.hold.mode.kind() == self.lock.mode.kind()
            && guard.hold.mode != Mode::Read;
        if !is_of_this_lock {
            let reason = format!(
                "the guard is one of `{}` held in {} mode, and not of this condition's lock",
                guard.name(),
                guard.mode()
            );
            return Err(self.invalid(id, "guard", reason));
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
        client.unless_closed(&id.lock, pin!(client.repeat(&id.lock, request))).await
    }
}

/// A place among the waiting. Dropped before it is left, it is left in the background.
struct Place<'a> {
    client: &'a Client,
    work: Option<Leaving>,
}

impl Place<'_> {
    /// From now on it may have been notified when it is left. Earlier, what it passed on would have been made up.
    fn may_be_notified(&mut self) {
        if let Some(work) = &mut self.work {
            work.pass_on = true;
        }
    }

    fn forget(&mut self) {
        self.work = None;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.client.background.submit(&self.client.store, Job::Leave(work));
        }
    }
}

/// A waiter that is to leave, and to pass on what it may have got.
#[derive(Debug)]
pub(crate) struct Leaving {
    id: ConditionId,
    waiter: Arc<str>,
    /// How long its place would be kept otherwise.
    keep: Duration,
    pass_on: bool,
}

impl Leaving {
    /// Attempts until it is done, hopeless or needless.
    pub(crate) async fn carry_out(self, store: &Store) {
        let Self { id, waiter, keep, pass_on } = self;
        let Some(conditions) = store.backend.conditions() else { return };
        let until = store.clock.now().after(keep);
        let mut backoff = Backoff::default();
        while let Err(error) = store.answer(conditions.leave(&id, &waiter, pass_on)).await {
            if !error.is_retryable() || store.clock.now() >= until {
                tracing::warn!(lock = %id.lock, %error, "a waiter could not leave its condition; its place lapses");
                return;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }
}
