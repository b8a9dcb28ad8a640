//! [`MultiLock`]: several locks, all or none.

use std::{
    future::{Future, pending, poll_fn},
    panic::Location,
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    FencingToken, Lock, LockError, LockGuard, LockName, LockState, Loss, Owner,
    sync::guard::{done, while_held},
};

/// A handle of several locks that are held together: all of them, or none.
///
/// [`Locks::multi_lock`](crate::Locks::multi_lock) makes one of reentrant locks, and
/// [`MultiLock::of`] of any kinds of locks. A holder of a single lock excludes a multi-lock that
/// contains it, and the other way round.
///
/// # Order
/// The order in which the names are given does not matter. An acquisition asks for all names at
/// once. If some are not free, it waits for the first of those in the order of names, keeps the
/// locks before it, and gives back those after it. So no acquisition waits for a name while it
/// holds a greater one, and two multi-locks never deadlock.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let locks = Locks::new(MemoryBackend::new());
/// let accounts = locks.multi_lock(["account:7", "account:3"]);
///
/// let guard = accounts.acquire().await?;
/// assert!(locks.lock("account:3").try_acquire().await?.is_none());
/// assert!(guard.token("account:7").is_some(), "a token for each");
/// guard.release().await?;
/// assert!(locks.lock("account:3").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order of names, each once.
    members: Result<Vec<Lock>, LockError>,
    owner: Option<Owner>,
}

impl MultiLock {
    /// The given locks, of any kinds, held together: all or none. A lock that is given twice counts
    /// once. Permits of one semaphore have to be given as one lock.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks, MultiLock};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let move_stock = MultiLock::of([
    ///     locks.lock("order:42"),
    ///     locks.rw_lock("prices").read(),
    ///     locks.semaphore("forklifts", 3).permits(1),
    /// ]);
    /// let guard = move_stock.acquire().await?;
    /// assert_eq!(guard.tokens().count(), 3);
    /// # guard.release().await }
    /// ```
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        let members = locks.into_iter().map(|lock| Ok((lock.lock_name()?, lock)));
        let members = members.collect::<Result<Vec<_>, _>>().and_then(Self::in_order);
        Self { members, owner: None }
    }

    fn in_order(mut named: Vec<(LockName, Lock)>) -> Result<Vec<Lock>, LockError> {
        if named.is_empty() {
            return Err(LockError::InvalidOption {
                lock: None,
                option: "multi_lock",
                reason: "it has no names; give at least one".into(),
            });
        }
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        named.dedup_by(|(one, lock), (other, same)| {
            one == other && lock.is_reentrant() && lock.is_same(same)
        });
        // Two locks of one name have no order that is the same for all clients.
        if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LockError::InvalidOption {
                lock: Some(pair[0].0.clone()),
                option: "multi_lock",
                reason: "the name is given twice: for permits, in different modes, of different \
                         clients or with different leases; give it once"
                    .into(),
            });
        }
        Ok(named.into_iter().map(|(_, lock)| lock).collect())
    }

    /// Acquires each lock with a fixed lease. Like [`Lock::lease`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.members =
            self.members.map(|members| members.into_iter().map(|lock| lock.lease(lease)).collect());
        self
    }

    /// Acquires for `owner` instead of the owner given to the locks, the owner of the scope or a
    /// fresh one.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Acquires all of the locks, and waits for them as long as it takes.
    ///
    /// # Errors
    /// As for [`Lock::acquire`], for the first of the locks that fails, and
    /// [`LockError::InvalidOption`] if there are no names, a name is given twice in different ways,
    /// or the locks have different owners. None of the locks is held then.
    ///
    /// # Cancel safety
    /// As for [`Lock::acquire`]. If the future is dropped at any await, none of the locks is held.
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<MultiGuard, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        async move { attempt.acquire(&mut Progress::default()).await }
    }

    /// Acquires all of the locks if they are free now, in a single attempt. Returns `None`, and
    /// holds none of the locks, if one of them is not free.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<MultiGuard>, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        async move {
            let (members, owner) = attempt.members()?;
            let mut guards = Vec::with_capacity(members.len());
            let tried = attempt.try_all(&members, &mut guards).await;
            // One may have been lost while the others were tried.
            let is_complete =
                guards.len() == members.len() && guards.iter().all(LockGuard::is_held);
            if let (Ok(()), true) = (&tried, is_complete) {
                return Ok(Some(MultiGuard { guards, owner }));
            }
            // None is held when this returns.
            give_back(guards).await;
            tried.map(|()| None)
        }
    }

    /// Acquires all of the locks, and waits for them for at most `timeout`. With a time-out of
    /// zero, this is a single attempt.
    ///
    /// # Errors
    /// [`LockError::Timeout`], with the lock that was not free in time. Otherwise as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<MultiGuard, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        let tried = timeout.is_zero().then(|| self.try_acquire());
        async move {
            let mut progress = Progress::default();
            if let Some(tried) = tried {
                if let Some(guard) = tried.await? {
                    return Ok(guard);
                }
            } else {
                // An over-long time-out counts as none.
                progress.deadline = Instant::now().checked_add(timeout).map(|at| (at, timeout));
                return attempt.acquire(&mut progress).await;
            }
            let (members, _) = attempt.members()?;
            Err(LockError::Timeout { lock: members[0].lock_name()?, waited: timeout })
        }
    }

    /// Acquires all of the locks, runs `body`, and releases them. Like [`Lock::run`]. If one of the
    /// locks is lost, `body` is dropped.
    ///
    /// # Errors
    /// As for [`Lock::run`].
    ///
    /// # Cancel safety
    /// As for [`Lock::run`].
    #[track_caller]
    pub fn run<F, T>(&self, body: F) -> impl Future<Output = Result<T, LockError>> + use<F, T>
    where
        F: AsyncFnOnce(&MultiGuard) -> T,
    {
        let acquire = self.acquire();
        async move {
            let guard = acquire.await?;
            let output = while_held(&guard.owner, guard.lost(), body(&guard)).await?;
            done(output, guard.release().await)
        }
    }

    /// Like [`run`](Self::run), for a `body` that returns a boxed future. The future of this method
    /// is always `Send`, so that generic functions can spawn it: see [`Lock::run_boxed`].
    ///
    /// # Errors
    /// As for [`Lock::run`].
    ///
    /// # Cancel safety
    /// As for [`Lock::run`].
    #[track_caller]
    pub fn run_boxed<F, T>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<T, LockError>> + Send + use<F, T>
    where
        F: for<'a> FnOnce(&'a MultiGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> + Send,
        T: Send,
    {
        let acquire = self.acquire();
        async move {
            let guard = acquire.await?;
            let output = while_held(&guard.owner, guard.lost(), body(&guard)).await?;
            done(output, guard.release().await)
        }
    }

    /// Inspects each of the locks. Returns their names, with the namespace, and states, in the
    /// order of names. The inspections run at the same time, but together they are not a snapshot.
    ///
    /// # Errors
    /// As for [`Lock::state`], for the first of the locks that fails, and
    /// [`LockError::InvalidOption`] as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let locks = Locks::new(MemoryBackend::new());
    /// let accounts = locks.multi_lock(["account:7", "account:3"]);
    /// let guard = locks.lock("account:3").acquire().await?;
    ///
    /// let states = accounts.state().await?;
    /// assert!(states[0].0.as_str() == "account:3" && states[0].1.is_held());
    /// assert!(states[1].0.as_str() == "account:7" && !states[1].1.is_held());
    ///
    /// assert!(accounts.force_release().await?);
    /// assert!(!accounts.state().await?[0].1.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn state(&self) -> Result<Vec<(LockName, LockState)>, LockError> {
        let members = self.members.clone()?;
        let names: Vec<_> = members.iter().map(Lock::lock_name).collect::<Result<_, _>>()?;
        let states = join_all(members.iter().map(Lock::state)).await;
        let states: Vec<_> = states.into_iter().collect::<Result<_, _>>()?;
        Ok(names.into_iter().zip(states).collect())
    }

    /// Frees each of the locks, whoever holds it, and returns `true` if at least one of them was
    /// held. This is a tool for operators. See [`Lock::force_release`] for its effect on the
    /// holders.
    ///
    /// # Errors
    /// As for [`Lock::force_release`], for the first of the locks that fails. The others are freed
    /// all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, each of the locks may or may not have been
    /// freed.
    pub async fn force_release(&self) -> Result<bool, LockError> {
        let members = self.members.clone()?;
        let freed = join_all(members.iter().map(Lock::force_release)).await;
        let freed: Vec<_> = freed.into_iter().collect::<Result<_, _>>()?;
        Ok(freed.contains(&true))
    }

    fn attempt(&self, site: &'static Location<'static>) -> Attempt {
        Attempt { lock: self.clone(), site }
    }
}

/// How long a failed acquisition waits for the release of the locks that it had got.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// The progress of an acquisition, and its time limit.
#[derive(Debug, Default)]
struct Progress {
    /// The holds, in the order of the members.
    guards: Vec<LockGuard>,
    /// When the time is up, and the time-out that was given.
    deadline: Option<(Instant, Duration)>,
}

/// One acquisition of a multi-lock, with the call site.
struct Attempt {
    lock: MultiLock,
    site: &'static Location<'static>,
}

impl Attempt {
    /// The locks, as handles of the one owner that acquires them all.
    fn members(&self) -> Result<(Vec<Lock>, Owner), LockError> {
        let members = self.lock.members.clone()?;
        let mut given = members.iter().filter_map(Lock::given_owner);
        let first = given.next().cloned();
        if self.lock.owner.is_none() && given.any(|other| Some(other) != first.as_ref()) {
            return Err(LockError::InvalidOption {
                lock: None,
                option: "owned_by",
                reason: "the locks of a multi-lock have one owner; give it to the multi-lock"
                    .into(),
            });
        }
        let owner =
            self.lock.owner.clone().or(first).or_else(Owner::current).unwrap_or_else(Owner::new);
        let members = members.into_iter().map(|lock| lock.owned_by(&owner)).collect();
        Ok((members, owner))
    }

    /// Acquires all. After an error, none is held any more.
    async fn acquire(&self, progress: &mut Progress) -> Result<MultiGuard, LockError> {
        let (members, owner) = self.members()?;
        loop {
            let acquired = self.acquire_each(&members, progress).await;
            let guards = std::mem::take(&mut progress.guards);
            if let Err(error) = acquired {
                give_back(guards).await;
                return Err(error);
            }
            if guards.iter().all(LockGuard::is_held) {
                return Ok(MultiGuard { guards, owner });
            }
            // A lock was lost during the wait for a later one, so start over.
            give_back(guards).await;
        }
    }

    async fn acquire_each(
        &self,
        members: &[Lock],
        progress: &mut Progress,
    ) -> Result<(), LockError> {
        let Progress { guards, deadline } = progress;
        while guards.len() < members.len() {
            let tried = try_each(&members[guards.len()..], self.site);
            let tried = match deadline {
                None => tried.await,
                // An attempt that is under way when the time is up is answered soon, or never.
                Some((at, _)) => {
                    let latest = at.checked_add(LEAVE_WITHIN).unwrap_or(*at);
                    timeout_at(latest, tried).await.unwrap_or_else(|_| Ok(Vec::new()))
                }
            };
            let mut failure = None;
            match tried {
                Ok(tried) => keep_first(tried, guards).await,
                // The wait for the first missing lock tolerates temporary failures.
                Err(LockError::Backend(error)) if error.is_retryable() => failure = Some(error),
                Err(error) => return Err(error),
            }
            let Some(first_missing) = members.get(guards.len()) else { break };
            let guard = match deadline {
                None => first_missing.acquire_at(self.site).await?,
                Some((at, waited)) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let (lock, waited) = (first_missing.lock_name()?, *waited);
                        let timeout = LockError::Timeout { lock, waited };
                        return Err(failure.map_or(timeout, LockError::from));
                    }
                    let acquired = first_missing.acquire_timeout_at(left, self.site).await;
                    acquired.map_err(|error| match error {
                        LockError::Timeout { lock, .. } => {
                            LockError::Timeout { lock, waited: *waited }
                        }
                        error => error,
                    })?
                }
            };
            guards.push(guard);
        }
        Ok(())
    }

    /// Tries all once: the least name first, so that one of several acquisitions that try the same
    /// names gets them all; then the others, all at once.
    async fn try_all(
        &self,
        members: &[Lock],
        guards: &mut Vec<LockGuard>,
    ) -> Result<(), LockError> {
        let Some(least) = members[0].try_acquire_at(self.site).await? else { return Ok(()) };
        guards.push(least);
        let tried = try_each(&members[1..], self.site).await?;
        keep_first(tried, guards).await;
        Ok(())
    }
}

/// Keeps the locks that come before the first one that is not free, and gives the others back, so
/// that no acquisition waits for a name while it holds a greater one.
async fn keep_first(tried: Vec<Option<LockGuard>>, guards: &mut Vec<LockGuard>) {
    let mut tried = tried.into_iter();
    guards.extend(tried.by_ref().map_while(|guard| guard));
    give_back(tried.flatten()).await;
}

/// Releases, and returns when that is done, after [`LEAVE_WITHIN`], or when the client is closed.
/// The acquisition ignores a failure: the release goes on in the background, and the hold ends with
/// its lease.
async fn give_back(guards: impl IntoIterator<Item = LockGuard>) {
    let releases: Vec<_> = guards.into_iter().map(LockGuard::release_unless_closed).collect();
    if !releases.is_empty() {
        let _ = timeout(LEAVE_WITHIN, join_all(releases)).await;
    }
}

/// Tries all of `locks` at once. If one of the attempts fails, the locks that the others got are
/// given back.
async fn try_each(
    locks: &[Lock],
    site: &'static Location<'static>,
) -> Result<Vec<Option<LockGuard>>, LockError> {
    let tried = join_all(locks.iter().map(|lock| lock.try_acquire_at(site))).await;
    let (mut guards, mut failure) = (Vec::with_capacity(tried.len()), None);
    for guard in tried {
        match guard {
            Ok(guard) => guards.push(guard),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None => Ok(guards),
        Some(error) => {
            give_back(guards.into_iter().flatten()).await;
            Err(error)
        }
    }
}

/// Several locks that are held together. Dropping the guard releases them in the background;
/// [`release`](Self::release) does so and confirms.
///
/// The loss of one lock is the loss of all.
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks at once"]
pub struct MultiGuard {
    guards: Vec<LockGuard>,
    owner: Owner,
}

impl MultiGuard {
    /// The owner of the holds.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The names of the locks, with the namespace, and their fencing tokens, in the order of names.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The fencing token of the lock called `name`, with the namespace, or `None` if it is not one
    /// of these locks.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.tokens().find(|(member, _)| *member == name).map(|(_, token)| token)
    }

    /// Returns `true` if all of the holds are still there, as far as this client knows. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// The time for which this client may rely on all of the holds. Zero if one of them is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::remaining).min().unwrap_or_default()
    }

    /// Resolves when one of the holds is lost. It never resolves if they are released as usual; see
    /// [`ended`](Self::ended). The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe. The method can be called any number of times.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        let ended = self.ended();
        async move {
            match ended.await {
                Some(loss) => loss,
                None => pending().await,
            }
        }
    }

    /// Resolves with the loss when one of the holds is lost, or with `None` when all of them have
    /// ended by their release. The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe. The method can be called any number of times.
    pub fn ended(&self) -> impl Future<Output = Option<Loss>> + Send + 'static + use<> {
        let mut live: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.ended())).collect();
        poll_fn(move |context| {
            let mut loss = None;
            live.retain_mut(|ended| match ended.as_mut().poll(context) {
                Poll::Ready(how) => {
                    loss = loss.take().or(how);
                    false
                }
                Poll::Pending => true,
            });
            if loss.is_some() || live.is_empty() { Poll::Ready(loss) } else { Poll::Pending }
        })
    }

    /// Releases all of the locks, and returns when the backend has confirmed it for those that are
    /// neither handed over nor [kept](crate::LocksBuilder::linger).
    ///
    /// # Errors
    /// As for [`LockGuard::release`], for one of the locks that fails. The others are released all
    /// the same.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the releases are completed in the background.
    pub async fn release(self) -> Result<(), LockError> {
        let released = join_all(self.guards.into_iter().map(LockGuard::release)).await;
        released.into_iter().fold(Ok(()), Result::and)
    }
}
