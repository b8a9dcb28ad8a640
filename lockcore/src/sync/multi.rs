//! [`MultiLock`]: several locks, all or none.

use std::{
    future::{Future, pending, poll_fn},
    panic::Location,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use tokio::task::{JoinError, JoinSet};

use crate::{
    BackendError, BackendErrorKind, FencingToken, Lock, LockError, LockGuard, LockName, LockState,
    Loss, Owner,
    acquiring::acquisition::Trouble,
    sync::guard::{done, while_held},
};

/// A handle of several locks that are held together: all of them, or none.
///
/// Made by [`Locks::multi_lock`](crate::Locks::multi_lock), of reentrant locks, or by [`MultiLock::of`], of any. Who holds one of them alone
/// excludes who wants them together.
///
/// # Order
/// The order in which the names are given does not matter. An acquisition asks for all names at once; if some are not free,
/// it keeps those that come before the first of these by name, gives the rest back, and waits for that one. So nobody
/// waits for a name while holding a greater one, and two multi-locks never wait for each other for ever.
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
    /// By name, each once.
    members: Result<Vec<Lock>, LockError>,
    owner: Option<Owner>,
}

impl MultiLock {
    /// A handle of `locks`, whatever kinds of locks they are, held together: all or none. The same lock given twice counts once; permits of
    /// one semaphore have to be asked for at once.
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
        // Which of the two comes first could not be said for all clients.
        if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LockError::InvalidOption {
                lock: Some(pair[0].0.clone()),
                option: "multi_lock",
                reason: "the name is given twice, for permits, in different modes, of different clients or with different leases; \
                         give it once"
                    .into(),
            });
        }
        Ok(named.into_iter().map(|(_, lock)| lock).collect())
    }

    /// Acquires with a fixed lease for each, as [`Lock::lease`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.members =
            self.members.map(|members| members.into_iter().map(|lock| lock.lease(lease)).collect());
        self
    }

    /// Acquires for `owner` instead of the one given to the locks, the scope's owner or a fresh one.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Acquires all of the locks, and waits for them as long as it takes.
    ///
    /// # Errors
    /// As [`Lock::acquire`], for the first of the locks that fails; and [`LockError::InvalidOption`] if there are no
    /// names. None of the locks is held then.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]: dropped at any await, none of the locks is held.
    #[track_caller]
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<MultiGuard, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        async move { attempt.acquire(&Missing::default()).await }
    }

    /// Acquires all of the locks if they are free now: one attempt, in one round trip. `None` if one of them is not free; none is held
    /// then.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a failure of the backend is returned at once.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<MultiGuard>, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        async move {
            let (members, owner) = attempt.members()?;
            let guards: Option<Vec<LockGuard>> =
                try_each(&members, attempt.site).await?.into_iter().collect();
            Ok(guards.map(|guards| MultiGuard { guards, owner }))
        }
    }

    /// Acquires all of the locks, and waits for them at most `timeout`. With zero, they are tried once.
    ///
    /// # Errors
    /// [`LockError::Timeout`] with the lock that was not free in time; otherwise as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<MultiGuard, LockError>> + Send + 'static + use<> {
        let attempt = self.attempt(Location::caller());
        let tried = timeout.is_zero().then(|| self.try_acquire());
        async move {
            let missing = Missing::default();
            let acquired = match tried {
                Some(tried) => tried.await?,
                None => tokio::time::timeout(timeout, attempt.acquire(&missing))
                    .await
                    .ok()
                    .transpose()?,
            };
            match acquired {
                Some(guard) => Ok(guard),
                None => Err(match missing.trouble.take() {
                    Some(error) => error,
                    None => {
                        let (members, _) = attempt.members()?;
                        let missing = missing.member.load(Ordering::Relaxed).min(members.len() - 1);
                        LockError::Timeout { lock: members[missing].lock_name()?, waited: timeout }
                    }
                }),
            }
        }
    }

    /// Acquires all of the locks, runs `body` and releases, as [`Lock::run`]. If one of them is lost, `body` is dropped.
    ///
    /// # Errors
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    /// As [`Lock::run`].
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

    /// The names of the locks, with the namespace, and who holds each of them now, in whatever process; in
    /// the order of the names. The locks are asked for at once, but each answer is of a moment of its own.
    ///
    /// # Errors
    /// As for [`Lock::state`], for one of those that failed; and [`LockError::InvalidOption`] if the
    /// multi-lock could not be made.
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
        let states = each(members.iter().map(Lock::state)).await?;
        Ok(names.into_iter().zip(states).collect())
    }

    /// Frees each of the locks, whoever holds it: an operator's tool. True if one of them was held. What
    /// [`Lock::force_release`] says of holders applies.
    ///
    /// # Errors
    /// As for [`Lock::force_release`], for one of those that failed; the others are freed all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, each of the locks may or may not have been freed.
    pub async fn force_release(&self) -> Result<bool, LockError> {
        let members = self.members.clone()?;
        let freed = each(members.iter().map(Lock::force_release)).await?;
        Ok(freed.contains(&true))
    }

    fn attempt(&self, site: &'static Location<'static>) -> Attempt {
        Attempt { lock: self.clone(), site }
    }
}

/// What an acquisition waits for, and what it is struggling with there.
#[derive(Debug, Default)]
struct Missing {
    /// Its number among the members.
    member: AtomicUsize,
    trouble: Trouble,
}

/// One acquisition of a multi-lock, by the place in the source that asked for it.
struct Attempt {
    lock: MultiLock,
    site: &'static Location<'static>,
}

impl Attempt {
    /// The locks, for the one owner that is to hold them all.
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

    /// Acquires all.
    async fn acquire(&self, missing: &Missing) -> Result<MultiGuard, LockError> {
        let (members, owner) = self.members()?;
        let mut guards = Vec::with_capacity(members.len());
        while guards.len() < members.len() {
            let tried = match try_each(&members[guards.len()..], self.site).await {
                // The wait for the first of them bears what may pass.
                Err(LockError::Backend(error)) if error.is_retryable() => Vec::new(),
                tried => tried?,
            };
            // What comes after the first that is not free goes back: nobody waits for a name with a greater one in hand.
            guards.extend(tried.into_iter().map_while(|guard| guard));
            if let Some(first_missing) = members.get(guards.len()) {
                missing.member.store(guards.len(), Ordering::Relaxed);
                let trouble = missing.trouble.clone();
                guards.push(first_missing.acquire_troubled(self.site, Some(trouble)).await?);
            }
        }
        Ok(MultiGuard { guards, owner })
    }
}

/// Tries all of `locks` at once, in one round trip. If one of the attempts fails, what the others have got is given back.
async fn try_each(
    locks: &[Lock],
    site: &'static Location<'static>,
) -> Result<Vec<Option<LockGuard>>, LockError> {
    if let [lock] = locks {
        return Ok(vec![lock.try_acquire_at(site).await?]);
    }
    let mut tried: Vec<Option<LockGuard>> = locks.iter().map(|_| None).collect();
    let mut attempts = JoinSet::new();
    for (place, lock) in locks.iter().enumerate() {
        let attempt = lock.try_acquire_at(site);
        attempts.spawn(async move { (place, attempt.await) });
    }
    while let Some(attempt) = attempts.join_next().await {
        let (place, guard) = attempt.map_err(interrupted)?;
        tried[place] = guard?;
    }
    Ok(tried)
}

/// Does all of `works` at once, each to its end. Their results, in the same order.
async fn each<T>(
    works: impl Iterator<Item = impl Future<Output = Result<T, LockError>>>,
) -> Result<Vec<T>, LockError> {
    let mut works: Vec<_> = works.map(|work| (Box::pin(work), None)).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (work, result) in &mut works {
            if result.is_none()
                && let Poll::Ready(ready) = work.as_mut().poll(context)
            {
                *result = Some(ready);
            }
            is_done &= result.is_some();
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    works.into_iter().filter_map(|(_, result)| result).collect()
}

/// Passes a panic on. Otherwise the runtime is going down.
fn interrupted(failure: JoinError) -> LockError {
    match failure.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => BackendError::new(BackendErrorKind::Other, "the runtime is shutting down").into(),
    }
}

/// Several locks that are held together. Dropping it releases them in the background, [`release`](Self::release) does so and confirms.
///
/// The loss of one is the loss of all.
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks at once"]
pub struct MultiGuard {
    guards: Vec<LockGuard>,
    owner: Owner,
}

impl MultiGuard {
    /// To whom the holds belong.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Each of the locks by its name, with the namespace, and its token; in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The token of the lock called `name`, with the namespace; `None` if it is not one of these.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.tokens().find(|(member, _)| *member == name).map(|(_, token)| token)
    }

    /// Whether all of the holds are still there. No I/O: this is what the client may believe.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// For how long this client may still believe in all of the holds. Zero when one is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::remaining).min().unwrap_or_default()
    }

    /// Resolves when one of the holds is lost. The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// Cancel safe; it can be called any number of times.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        let ended = self.ended();
        async move {
            match ended.await {
                Some(loss) => loss,
                None => pending().await,
            }
        }
    }

    /// Resolves when one of the holds is lost, with the loss, or with `None` when all of them were released.
    ///
    /// # Cancel safety
    /// Cancel safe; it can be called any number of times.
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

    /// Releases all of the locks, and returns when the backend has confirmed it.
    ///
    /// # Errors
    /// As [`LockGuard::release`], for one of those that failed. The others are released all the same.
    ///
    /// # Cancel safety
    /// Dropped before it resolves, the releases are completed in the background.
    pub async fn release(self) -> Result<(), LockError> {
        let mut releases: JoinSet<_> = self.guards.into_iter().map(LockGuard::release).collect();
        let mut result = Ok(());
        while let Some(released) = releases.join_next().await {
            result = result.and(released.unwrap_or_else(|failure| Err(interrupted(failure))));
        }
        result
    }
}
