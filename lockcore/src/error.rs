//! [`LockError`] and [`BackendError`].

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{LockName, LossReason, Mode};

/// Why a lock operation failed. Every message names the lock and what to do next.
///
/// Contention is no error: [`try_acquire`](crate::Lock::try_acquire) answers `None`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not free, or not enough permits were, within the time given to `acquire_timeout`.
    #[error(
        "lock `{lock}` was not free within {waited:?}; wait longer, or see who holds it with `state()`"
    )]
    #[non_exhaustive]
    Timeout {
        /// The lock.
        lock: LockName,
        /// How long the caller had agreed to wait.
        waited: Duration,
    },
    /// The latch was not open within the time given to `wait_timeout`.
    #[error(
        "latch `{lock}` was not open within {waited:?}; wait longer, or see what is left with `count()`"
    )]
    #[non_exhaustive]
    LatchTimeout {
        /// The latch.
        lock: LockName,
        /// How long the caller had agreed to wait.
        waited: Duration,
    },
    /// The hold was lost: somebody else may be inside by now.
    #[error(
        "the hold of lock `{lock}` was lost: {reason}; stop the protected work and acquire again"
    )]
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockName,
        /// How it was lost.
        reason: LossReason,
    },
    /// There is nothing to release: `Locks::close()` had released the hold before.
    #[error(
        "lock `{lock}` is not held through this guard any more: `Locks::close()` has released it"
    )]
    #[non_exhaustive]
    NotHeld {
        /// The lock.
        lock: LockName,
    },
    /// The name cannot be that of a lock, or whatever else has one. Reported before any I/O.
    #[error("`{name}` is no valid name: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The start of the name, escaped.
        name: String,
        /// Which rule it breaks and how to mend it.
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
        /// What is wrong and which values are allowed.
        reason: String,
    },
    /// The guard given to a condition is not one of the condition's lock.
    #[error(
        "the guard given to a condition of lock `{lock}` is one of `{guard}` in {mode} mode, or of another `Locks`; \
         give it a guard that the condition's own lock was acquired with"
    )]
    #[non_exhaustive]
    WrongGuard {
        /// The lock that the condition belongs to.
        lock: LockName,
        /// The lock that the guard holds.
        guard: LockName,
        /// How the guard holds it.
        mode: Mode,
    },
    /// The backend cannot do this kind of lock.
    #[error(
        "lock `{lock}`: this backend has no {what}; choose a backend whose capabilities include them"
    )]
    #[non_exhaustive]
    Unsupported {
        /// The lock.
        lock: LockName,
        /// What was asked for.
        what: &'static str,
    },
    /// The owner holds the lock as a reader and asks for it as a writer: it would wait for itself.
    #[error(
        "lock `{lock}` is held by this owner as a reader, who cannot become a writer; release the read lock first, or begin with \
         the write lock"
    )]
    #[non_exhaustive]
    Upgrade {
        /// The lock.
        lock: LockName,
    },
    /// More permits were asked for than there are.
    #[error(
        "semaphore `{lock}` has {limit} permits, {asked} were asked for, which could never be had; ask for fewer or `resize` it"
    )]
    #[non_exhaustive]
    TooManyPermits {
        /// The semaphore.
        lock: LockName,
        /// How many were asked for.
        asked: u32,
        /// How many there are, taken or not.
        limit: u32,
    },
    /// As many wait already as may wait in one client. Nothing was asked of the backend.
    #[error(
        "`{lock}` cannot be waited for: {limit} wait already, as many as `{option}` allows; do less at a time, wait with a time-out, or \
         raise `{option}`"
    )]
    #[non_exhaustive]
    TooManyWaiters {
        /// What was to be waited for.
        lock: LockName,
        /// How many may wait.
        limit: usize,
        /// The option of the builder that says so: `max_waiters` or `max_waiters_per_lock`.
        option: &'static str,
    },
    /// The owner has as many guards of the lock as can be counted.
    #[error(
        "lock `{lock}` is held {limit} times by this owner, and cannot be more often; look for guards that are never dropped"
    )]
    #[non_exhaustive]
    TooDeep {
        /// The lock.
        lock: LockName,
        /// [`Lock::MAX_HOLD_COUNT`](crate::Lock::MAX_HOLD_COUNT).
        limit: u32,
    },
    /// A latch was given a count while it had one.
    #[error(
        "latch `{lock}` has a count already, and is set once; count it down or `open` it first, or use another name"
    )]
    #[non_exhaustive]
    AlreadySet {
        /// The latch.
        lock: LockName,
    },
    /// `Locks::close()` was called.
    #[error("lock `{lock}` cannot be acquired: this `Locks` is closed; make a new one")]
    #[non_exhaustive]
    Closed {
        /// The lock.
        lock: LockName,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

fn for_lock(lock: Option<&LockName>) -> String {
    lock.map(|lock| format!(" of lock `{lock}`")).unwrap_or_default()
}

/// An error of a [`Backend`](crate::backend::Backend): what failed, whether a retry can help, and whether the request may have been
/// carried out all the same.
///
/// # Examples
/// ```
/// use lockcore::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Timeout, "no answer within 3 s");
/// assert!(error.is_retryable());
/// assert!(error.is_outcome_unknown(), "a request that got no answer may have been carried out");
///
/// let refused = BackendError::new(BackendErrorKind::Connection, "connection refused").not_applied();
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
    /// The store is there but cannot serve now: loading, busy, no quorum of replicas. A retry can help.
    Unavailable,
    /// The store does not accept the credentials.
    Auth,
    /// The credentials lack a right.
    Permission,
    /// The store takes no writes: a replica.
    ReadOnly,
    /// The store is full.
    OutOfMemory,
    /// Under the lock's name there is something that is not a lock of this kind.
    WrongType,
    /// The answer was not understood.
    Protocol,
    /// The backend was set up in a way that cannot work.
    Configuration,
    /// The backend does not do what was asked; see its [`Capabilities`](crate::backend::Capabilities).
    Unsupported,
    /// Anything else.
    Other,
}

impl BackendErrorKind {
    /// What the reader of the message can do.
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
            Self::WrongType => "use another name, or delete what is stored under this one",
            Self::Protocol => "check that the server is one that the backend supports",
            Self::Configuration => "correct the configuration",
            Self::Unsupported => "choose a backend whose capabilities include it",
            Self::Other => "see the source of this error",
        }
    }
}

impl BackendError {
    /// An error of `kind`. `message` says what failed, in lower case and without a final stop, and carries no secrets.
    ///
    /// Of [`Connection`](BackendErrorKind::Connection), [`Timeout`](BackendErrorKind::Timeout) and
    /// [`Protocol`](BackendErrorKind::Protocol) errors it is assumed that the request may have been carried out;
    /// [`not_applied`](Self::not_applied) says otherwise.
    #[must_use]
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        let outcome_unknown = matches!(
            kind,
            BackendErrorKind::Connection | BackendErrorKind::Timeout | BackendErrorKind::Protocol
        );
        Self { kind, outcome_unknown, message: message.into(), lock: None, source: None }
    }

    /// The answer of a backend that has no `what`, such as "semaphores".
    #[must_use]
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(BackendErrorKind::Unsupported, format!("this backend has no {what}"))
    }

    /// States that the request was certainly not carried out.
    #[must_use]
    pub fn not_applied(mut self) -> Self {
        self.outcome_unknown = false;
        self
    }

    /// Keeps the error behind this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Names the lock concerned. The core does this for every error that a backend returns.
    #[must_use]
    pub fn with_lock(mut self, lock: &LockName) -> Self {
        self.lock = Some(lock.clone());
        self
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// The lock concerned, if it was one.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.lock.as_ref()
    }

    /// Whether the same request may succeed a little later without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            BackendErrorKind::Connection
                | BackendErrorKind::Timeout
                | BackendErrorKind::Unavailable
        )
    }

    /// Whether the request may have been carried out although it failed.
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
