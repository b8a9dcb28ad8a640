//! [`LocksBuilder`].

use std::{sync::Arc, time::Duration};

use crate::{
    ClientDescription, Clock, LockError, LockName, Locks,
    backend::{Backend, Capabilities},
    client::{self, Grouping, Settings},
    engine::{HandOver, WaiterLimits},
    time::lease,
};

/// The longest time for which a lock is kept.
const MAX_LINGER: Duration = Duration::from_millis(100);

/// The options of a [`Locks`].
#[derive(Debug)]
#[must_use = "options have no effect before `build()`"]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    namespace: String,
    lease: Duration,
    queue_timeout: Duration,
    retry_for: Duration,
    hand_over: Duration,
    linger: Duration,
    max_waiters: usize,
    max_waiters_per_lock: usize,
    clock: Clock,
    description: Option<ClientDescription>,
    grouping: Grouping,
}

impl LocksBuilder {
    pub(crate) fn new(backend: impl Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            namespace: String::new(),
            lease: lease::DEFAULT,
            queue_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(5),
            hand_over: Duration::from_millis(50),
            linger: Duration::ZERO,
            max_waiters: 100_000,
            max_waiters_per_lock: 10_000,
            clock: Clock::system(),
            description: Some(ClientDescription::new()),
            grouping: Grouping::default(),
        }
    }

    /// The prefix of every name. Default: none. A name has at most 512 bytes including the prefix.
    ///
    /// The namespace is part of the name, in errors and on every backend. The `key_prefix` of the
    /// Redis backend is only in Redis's keys. Use `namespace` unless Redisson uses a name mapper.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The lease of acquisitions without a lease of their own: 1 ms to 365 days, default 30 s. It
    /// is renewed every third of it while a guard lives.
    ///
    /// The lease is how long a hold outlives a holder that crashes, and also how long a holder
    /// keeps its hold while the backend is unreachable.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The time for which the queue of a [fair lock](Locks::fair_lock) keeps the place of a waiter
    /// that has stopped asking because it crashed or was cut off: 30 ms to 1 h, default 5 s. This
    /// is the longest delay that such a waiter causes. A live waiter asks again every third of it.
    ///
    /// It applies as well to writers that keep new readers out, and to the waiters of conditions.
    /// All clients of a store should use the same value.
    pub fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.queue_timeout = timeout;
        self
    }

    /// The time for which a waiting acquisition tolerates a backend that does not respond, before
    /// it fails with the last error. Default 5 s; with zero, it fails with the first error.
    ///
    /// The time counts from the first failure, which comes only after the backend's own time-out if
    /// the server is silent. Requests of latches are repeated for at most 50 s.
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = time;
        self
    }

    /// The time for which the tasks of this client hand a [lock](Locks::lock) over to each other
    /// without asking the backend, before other clients get their turn: 0 to 60 s, default 50 ms.
    /// Zero turns it off. It counts from the beginning of the client's turn, and is at most a
    /// quarter of the lease.
    ///
    /// Each task has a hold of its own, with its own owner and a new token; at the backend it is
    /// one hold. Only acquisitions with the client's renewed lease and without a [named
    /// owner](crate::Owner::named) take part.
    ///
    /// After that time, the tasks that still wait leave the lock to other clients for 3 ms before
    /// they ask for it. If no other client takes it, the next turns, up to four, go without this
    /// pause.
    pub fn hand_over(mut self, time: Duration) -> Self {
        self.hand_over = time;
        self
    }

    /// The time for which this client keeps a [lock](Locks::lock) that nobody waits for after its
    /// last guard is gone, in case one of its tasks wants it again: 0 to 100 ms, default 0, which
    /// keeps none. The next acquisition then takes the hold over as in a
    /// [hand-over](Self::hand_over), without asking the backend. It suits tasks that acquire the
    /// same few locks again and again.
    ///
    /// The lock is given back earlier when another client asks for it, or at the end of the time
    /// for hand-overs. Until then it is held at the backend: [`state`](crate::Lock::state) reports
    /// a holder, the first [`try_acquire`](crate::Lock::try_acquire) of another client finds it
    /// held, and its name cannot be used for another kind of lock. Clients of Redisson that begin
    /// to wait while the lock is kept are not heard: they wait for the end of one of these times.
    /// Keeping a lock costs the backend a subscription.
    ///
    /// [`release`](crate::LockGuard::release) returns as soon as the lock is kept, and the backend
    /// has confirmed nothing. [`release_now`](crate::LockGuard::release_now) keeps no lock, and
    /// [`Locks::close`] gives all of them back. The background task of the client gives a lock
    /// back, so its runtime has to run: a process or a runtime that ends without `close`, or a
    /// thread that blocks a current-thread runtime, leaves a kept lock held until the lease is
    /// over, like a process that crashes while it holds the lock.
    ///
    /// Only the acquisitions that take part in hand-overs take part in this, so
    /// [`build`](Self::build) refuses it without them, and for a backend without
    /// [`Capabilities::HAND_OVER`] and [`Capabilities::DEMAND`].
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// let store = MemoryBackend::new();
    /// let locks = Locks::builder(store.clone()).linger(Duration::from_millis(20)).build()?;
    /// let lock = locks.lock("counter");
    /// for _ in 0..1000 {
    ///     lock.acquire().await?.release().await?; // The backend is asked once or twice.
    /// }
    ///
    /// // Another client gets the lock although it is kept.
    /// Locks::new(store).lock("counter").acquire().await?.release().await?;
    /// locks.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// The greatest number of waiters in this client at a time, for locks, permits, latches and
    /// conditions together: at least 1, default 100,000. Further ones are refused with
    /// [`LockError::TooManyWaiters`], at once and without I/O.
    ///
    /// An acquisition that may wait counts from its beginning, even if the lock is free.
    /// [`try_acquire`](crate::Lock::try_acquire) and nested acquisitions do not count.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.max_waiters = limit;
        self
    }

    /// The greatest number of waiters for one name: at least 1, default 10,000. It keeps one stuck
    /// lock from using up [`max_waiters`](Self::max_waiters).
    pub fn max_waiters_per_lock(mut self, limit: usize) -> Self {
        self.max_waiters_per_lock = limit;
        self
    }

    /// The clock that measures leases. Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The description of this client that it writes to the store, for people who inspect it.
    /// Default: the process's own [`ClientDescription`]. With `None`, nothing is written.
    ///
    /// A client that has held or waited for about a second has a *record*, if the backend has a
    /// [`Directory`](crate::backend::Directory): the host, the program, the id of the process, the
    /// version of lockcore, and when the client was made. The holder of a lock on the wire begins
    /// with the client's id, so the record tells who holds it. While acquisitions of this client
    /// wait for longer than 1.5 s, the record also has the names that they wait for, the holds that
    /// are kept meanwhile, and the call sites of both. [`Locks::waits`] reads them.
    ///
    /// The background task writes the record every third of its lifetime, and within a second when
    /// the waits change. The lifetime is the lease, but at least 30 s and at most 1 h. The record
    /// is written every second while a waiter that holds something, is named or wants to write has
    /// waited for more than 1.5 s. A client that neither holds nor waits writes nothing.
    /// [`Locks::close`] removes the record, and so does dropping the last handle and guard, if the
    /// runtime goes on for a moment. The record of a crashed client runs out. No lock depends on
    /// records, and failures are only logged.
    pub fn description(mut self, description: impl Into<Option<ClientDescription>>) -> Self {
        self.description = description.into();
        self
    }

    /// Measures the names of locks in groups: the metrics that have a mode, and the losses, get a
    /// label `group` with the value that `group` returns for the name of the lock. Default: no such
    /// label.
    ///
    /// Names are not used as labels themselves, because monitoring keeps each value of a label
    /// forever, and there is no end of names like `order:42`. After 100 groups, all further ones
    /// are counted as `other`. `group` is called several times for each acquisition: it must not
    /// block, and must return the same group for a name every time.
    ///
    /// # Examples
    /// ```
    /// use lockcore::{LockError, Locks};
    /// use lockcore_memory::MemoryBackend;
    ///
    /// # fn main() -> Result<(), LockError> {
    /// let locks = Locks::builder(MemoryBackend::new())
    ///     .metrics_group(|name| match name.as_str().split(':').next() {
    ///         Some("order") => "order",
    ///         Some("job") => "job",
    ///         _ => "other",
    ///     })
    ///     .build()?;
    /// # drop(locks);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics_group(
        mut self,
        group: impl Fn(&LockName) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        self.grouping = Grouping::by(group);
        self
    }

    /// Makes the client, without I/O. It needs no runtime.
    ///
    /// # Errors
    /// [`LockError::InvalidOption`] for an option that is out of range, and
    /// [`LockError::InvalidName`] for a namespace that no valid name can begin with.
    pub fn build(self) -> Result<Locks, LockError> {
        lease::check(self.lease, self.backend.limits().shortest_lease, "lease", None)?;
        if !(Duration::from_millis(30)..=Duration::from_secs(3600)).contains(&self.queue_timeout) {
            let reason = format!("it is 30 ms to 1 h, not {:?}", self.queue_timeout);
            return Err(LockError::InvalidOption { lock: None, option: "queue_timeout", reason });
        }
        if self.hand_over > Duration::from_secs(60) {
            let reason = format!("it is 0 to 60 s, not {:?}", self.hand_over);
            return Err(LockError::InvalidOption { lock: None, option: "hand_over", reason });
        }
        self.check_linger()?;
        let limits = [
            ("max_waiters", self.max_waiters),
            ("max_waiters_per_lock", self.max_waiters_per_lock),
        ];
        if let Some((option, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            let reason = "it is zero, so that nothing could wait; give at least 1".into();
            return Err(LockError::InvalidOption { lock: None, option, reason });
        }
        if !self.namespace.is_empty() {
            // The name that follows may close a brace of the namespace, or open the first one.
            let named = |end| LockName::new(format!("{}{end}", self.namespace));
            if named("x}").is_err() && named("{x}").is_err() {
                named("x")?;
            }
        }
        Ok(self.finish())
    }

    fn check_linger(&self) -> Result<(), LockError> {
        let needed = Capabilities::HAND_OVER | Capabilities::DEMAND;
        let reason = match self.linger {
            Duration::ZERO => return Ok(()),
            time if time > MAX_LINGER => format!("it is 0 to 100 ms, not {time:?}"),
            _ if self.hand_over.is_zero() => {
                "locks are kept to be handed over, and `hand_over` is zero; give it a time".into()
            }
            _ if !self.backend.capabilities().contains(needed) => {
                "the backend cannot tell that other clients want a lock; leave the option out"
                    .into()
            }
            _ => return Ok(()),
        };
        Err(LockError::InvalidOption { lock: None, option: "linger", reason })
    }

    pub(crate) fn finish(self) -> Locks {
        let hands_over = self.backend.capabilities().contains(Capabilities::HAND_OVER);
        // No hold is handed over for longer than this, and a longer turn would leave nothing to
        // others.
        let turn = self.hand_over.min(self.lease / 4);
        let hand_over = HandOver { turn, linger: self.linger };
        let settings = Settings {
            lease: self.lease,
            queue_timeout: self.queue_timeout,
            retry_for: self.retry_for,
            namespace: self.namespace,
            batching: self.lease / 30,
            hand_over: (hands_over && !self.hand_over.is_zero()).then_some(hand_over),
            description: self.description,
            limits: WaiterLimits { total: self.max_waiters, per_lock: self.max_waiters_per_lock },
        };
        Locks::from_client(client::open(self.backend, self.clock, settings, self.grouping))
    }
}
