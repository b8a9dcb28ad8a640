//! [`LockError`] and [`BackendError`].

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{LockName, LossReason, Mode};

/// The error of an operation on a lock. Every message names the lock if there is one, and says
/// what to do next.
///
/// Contention is not an error: [`try_acquire`](crate::Lock::try_acquire) returns `None`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock, or the permits, could not be acquired within the time given to `acquire_timeout`.
    #[error(
        "lock `{lock}` was not free within {waited:?}; wait longer, or inspect its holders with \
         `state()`"
    )]
    #[non_exhaustive]
    Timeout {
        /// The lock.
        lock: LockName,
        /// The time-out that the caller gave.
        waited: Duration,
    },
    /// The latch was not open within the time given to `wait_timeout`.
    #[error(
        "latch `{lock}` was not open within {waited:?}; wait longer, or inspect it with `count()`"
    )]
    #[non_exhaustive]
    LatchTimeout {
        /// The latch.
        lock: LockName,
        /// The time-out that the caller gave.
        waited: Duration,
    },
    /// The hold was lost. Another owner may hold the lock by now.
    #[error(
        "the hold of lock `{lock}` was lost: {reason}; stop the protected work and acquire again"
    )]
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockName,
        /// The reason for the loss.
        reason: LossReason,
    },
    /// The guard holds nothing any more: `Locks::close()` has released the hold, or
    /// `Locks::abandon()` has given it up.
    #[error("lock `{lock}` is not held by this guard any more: its `Locks` was closed")]
    #[non_exhaustive]
    NotHeld {
        /// The lock.
        lock: LockName,
    },
    /// The name of a lock, latch, semaphore or condition is not valid. Reported before any I/O.
    #[error("`{name}` is not a valid name: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The start of the name, escaped.
        name: String,
        /// The rule that the name breaks, and how to correct the name.
        reason: &'static str,
    },
    /// An option is outside its range. Reported before any I/O.
    #[error("invalid option `{option}`{}: {reason}", for_lock(lock.as_ref()))]
    #[non_exhaustive]
    InvalidOption {
        /// The lock, if the option belongs to one.
        lock: Option<LockName>,
        /// The method that set the option.
        option: &'static str,
        /// The problem, and the values that are allowed.
        reason: String,
    },
    /// The guard that was given to a condition does not belong to the condition's lock.
    #[error(
        "the guard given to a condition of lock `{lock}` is one of `{guard}` in {mode} mode, or of \
         another `Locks`; pass a guard of the lock that the condition was made from"
    )]
    #[non_exhaustive]
    WrongGuard {
        /// The lock of the condition.
        lock: LockName,
        /// The lock of the guard.
        guard: LockName,
        /// The way in which the guard holds its lock.
        mode: Mode,
    },
    /// The backend does not support this kind of lock.
    #[error("lock `{lock}`: this backend has no {what}; choose a backend that supports them")]
    #[non_exhaustive]
    Unsupported {
        /// The lock.
        lock: LockName,
        /// The requested kind of lock, in the plural.
        what: &'static str,
    },
    /// The owner holds the read lock and asks for the write lock, so it would wait for itself.
    #[error(
        "lock `{lock}` is held by this owner as a reader, and a reader cannot become a writer; \
         release the read lock first, or begin with the write lock"
    )]
    #[non_exhaustive]
    Upgrade {
        /// The lock.
        lock: LockName,
    },
    /// More permits were requested than the semaphore has.
    #[error(
        "semaphore `{lock}` has {limit} permits, and {asked} were requested, which can never \
         succeed; request fewer, or raise their number first"
    )]
    #[non_exhaustive]
    TooManyPermits {
        /// The semaphore.
        lock: LockName,
        /// The number of permits that were requested.
        asked: u32,
        /// The number of permits that there are, taken or not.
        limit: u32,
    },
    /// The limit of waiters is reached. Reported before any I/O.
    #[error(
        "`{lock}` cannot be waited for: there are {limit} waiters already, as many as `{option}` \
         allows; start less work at a time, wait with a time-out, or raise `{option}`"
    )]
    #[non_exhaustive]
    TooManyWaiters {
        /// The lock, latch or semaphore to wait for.
        lock: LockName,
        /// The limit.
        limit: usize,
        /// The option of the builder that sets it: `max_waiters` or `max_waiters_per_lock`.
        option: &'static str,
    },
    /// The owner has as many guards of the lock as can be counted.
    #[error(
        "lock `{lock}` is held {limit} times by this owner, which is the limit; look for guards \
         that are never dropped"
    )]
    #[non_exhaustive]
    TooDeep {
        /// The lock.
        lock: LockName,
        /// [`Lock::MAX_HOLD_COUNT`](crate::Lock::MAX_HOLD_COUNT).
        limit: u32,
    },
    /// The latch has a count already, so it cannot be set.
    #[error(
        "latch `{lock}` has a count already; count it down or `open` it first, or use another name"
    )]
    #[non_exhaustive]
    AlreadySet {
        /// The latch.
        lock: LockName,
    },
    /// The client has no tokio runtime for its background work.
    #[error(
        "lock `{lock}` cannot be acquired outside of a tokio runtime: nothing would renew and \
         release it; call this from a task, or within `Runtime::block_on`"
    )]
    #[non_exhaustive]
    NoRuntime {
        /// The lock.
        lock: LockName,
    },
    /// `Locks::close()` or `Locks::abandon()` was called.
    #[error("`{lock}` cannot be used: this `Locks` is closed; make a new one")]
    #[non_exhaustive]
    Closed {
        /// The lock.
        lock: LockName,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl LockError {
    /// The lock, latch or semaphore, if the error belongs to a valid one.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Timeout { lock, .. }
            | Self::LatchTimeout { lock, .. }
            | Self::Lost { lock, .. }
            | Self::NotHeld { lock }
            | Self::WrongGuard { lock, .. }
            | Self::Unsupported { lock, .. }
            | Self::Upgrade { lock }
            | Self::TooManyPermits { lock, .. }
            | Self::TooManyWaiters { lock, .. }
            | Self::TooDeep { lock, .. }
            | Self::AlreadySet { lock }
            | Self::NoRuntime { lock }
            | Self::Closed { lock } => Some(lock),
            Self::InvalidName { .. } => None,
            Self::InvalidOption { lock, .. } => lock.as_ref(),
            Self::Backend(error) => error.lock(),
        }
    }
}

fn for_lock(lock: Option<&LockName>) -> String {
    lock.map(|lock| format!(" of lock `{lock}`")).unwrap_or_default()
}

/// An error of a [`Backend`](crate::backend::Backend). It says what failed, whether a retry can
/// help, and whether the request may have been carried out all the same.
///
/// # Examples
/// ```
/// use lockcore::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Timeout, "no answer within 3 s");
/// assert!(error.is_retryable());
/// assert!(error.is_outcome_unknown(), "a request that got no answer may have been carried out");
///
/// let refused = BackendError::new(BackendErrorKind::Connection, "connection refused");
/// let refused = refused.not_applied();
/// assert!(refused.is_retryable() && !refused.is_outcome_unknown());
/// ```
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    outcome_unknown: bool,
    message: String,
    lock: Option<LockName>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kinds of [`BackendError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No connection, or it broke. A retry can help.
    Connection,
    /// No answer in time. A retry can help.
    Timeout,
    /// The store is up, but cannot serve requests now: it is loading or busy, or has no quorum of
    /// replicas. A retry can help.
    Unavailable,
    /// The store rejects the credentials.
    Auth,
    /// The credentials lack a right.
    Permission,
    /// The store is a replica, and takes no writes. A retry can help after a failover, when it
    /// reaches the new primary.
    ReadOnly,
    /// The store is out of memory.
    OutOfMemory,
    /// The name is in use for something else than a lock of this kind.
    WrongType,
    /// The answer was not understood.
    Protocol,
    /// The configuration of the backend cannot work.
    Configuration,
    /// The backend does not support the request; see its
    /// [`Capabilities`](crate::backend::Capabilities).
    Unsupported,
    /// Anything else.
    Other,
}

impl BackendErrorKind {
    /// Advice for the reader of the message.
    fn advice(self) -> &'static str {
        match self {
            Self::Connection => "check that the server is up and reachable",
            Self::Timeout => {
                "check the server's load and the network, or allow a longer response time-out"
            }
            Self::Unavailable => "try again when the server is ready",
            Self::Auth => "check user name and password",
            Self::Permission => "grant the user the rights that the backend's documentation lists",
            Self::ReadOnly => "connect to the primary",
            Self::OutOfMemory => "give the server more memory or free some",
            Self::WrongType => "use another name, or use this one as what it is already",
            Self::Protocol => "check that the server is one that the backend supports",
            Self::Configuration => "correct the configuration",
            Self::Unsupported => "choose a backend whose capabilities include it",
            Self::Other => "see the source of this error",
        }
    }
}

impl BackendError {
    /// An error of `kind`. `message` says what failed, in lower case and without a final stop, and
    /// contains no secrets.
    ///
    /// After a [`Connection`](BackendErrorKind::Connection), [`Timeout`](BackendErrorKind::Timeout)
    /// or [`Protocol`](BackendErrorKind::Protocol) error, the core assumes that the request may
    /// have been carried out, and after others that it was not. [`not_applied`](Self::not_applied)
    /// and [`maybe_applied`](Self::maybe_applied) say otherwise.
    #[must_use]
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        let outcome_unknown = matches!(
            kind,
            BackendErrorKind::Connection | BackendErrorKind::Timeout | BackendErrorKind::Protocol
        );
        Self { kind, outcome_unknown, message: message.into(), lock: None, source: None }
    }

    /// The error of a backend that does not support `what`, such as "semaphores".
    #[must_use]
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(BackendErrorKind::Unsupported, format!("this backend has no {what}"))
    }

    /// Says that the request was certainly not carried out.
    #[must_use]
    pub fn not_applied(mut self) -> Self {
        self.outcome_unknown = false;
        self
    }

    /// Says that the request may have been carried out.
    #[must_use]
    pub fn maybe_applied(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// Sets the [source](Error::source) of this error.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets the affected lock. The core does this for every error that a backend returns.
    #[must_use]
    pub fn with_lock(mut self, lock: &LockName) -> Self {
        self.lock = Some(lock.clone());
        self
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// What failed, without the lock's name and the advice that the whole message ends with. For a
    /// backend that makes one error of several.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The affected lock, if there is one.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.lock.as_ref()
    }

    /// Returns `true` if the same request may succeed a little later by itself.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            BackendErrorKind::Connection
                | BackendErrorKind::Timeout
                | BackendErrorKind::Unavailable
                | BackendErrorKind::ReadOnly
        )
    }

    /// Returns `true` if the request may have been carried out although it failed.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.outcome_unknown
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lock) = &self.lock {
            write!(f, "lock `{lock}`: ")?;
        }
        write!(f, "{}; {}", self.message, self.kind.advice())
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}
