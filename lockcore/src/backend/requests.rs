//! What a backend is asked, and what it answers.

use std::{sync::Arc, time::Duration};

use crate::{BackendError, FencingToken, LockName, Mode};

/// Whom a hold belongs to, as a backend stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldId {
    id: Arc<str>,
    /// Unless that is the id.
    owner: Option<Arc<str>>,
}

impl HoldId {
    /// The hold of an owner that exists for one outermost acquisition only: its id is its owner. On the wire it has
    /// Redisson's form, `<client uuid>:<number>`.
    #[must_use]
    pub fn unique(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), owner: None }
    }

    /// A hold of the owner called `owner` in every process, told from its other holds by `id`.
    #[must_use]
    pub fn named(owner: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        let (id, owner) = (id.into(), owner.into());
        Self { owner: Some(owner).filter(|owner| *owner != id), id }
    }

    /// What is stored as the holder, and decides who may enter again.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.owner.as_ref().unwrap_or(&self.id)
    }

    /// What tells this hold from every other one, and decides who may renew and release.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the owner can have other holds than this one.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.owner.is_some()
    }
}

/// One attempt to take a hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// Who asks.
    pub hold: HoldId,
    /// How the lock is to be held.
    pub mode: Mode,
    /// When the hold ends by itself, counted from now. At least a millisecond.
    pub lease: Duration,
    /// The hold count to reach: 1 for an outermost acquisition.
    pub count: u32,
    /// For [`Mode::Fair`]: queue if the lock is not free, and keep the place for so long unless the request is repeated. For
    /// [`Mode::Write`]: if readers hold the lock, let in no new ones for so long.
    pub queue: Option<Duration>,
    /// For [`Mode::Read`]: the write hold, of the same owner, beside which the hold is to be.
    pub within: Option<HoldId>,
    /// How many tokens are wanted, at least 1: the one in the answer and as many after it. More than 1 is only asked of a backend with
    /// [`Capabilities::HAND_OVER`](crate::backend::Capabilities::HAND_OVER), for an outermost hold in [`Mode::Exclusive`] of an owner without a name.
    pub tokens: u32,
}

impl AcquireRequest {
    /// An outermost exclusive acquisition.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId, lease: Duration) -> Self {
        Self {
            name,
            hold,
            mode: Mode::Exclusive,
            lease,
            count: 1,
            queue: None,
            within: None,
            tokens: 1,
        }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the hold count to reach.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets for how long a place in the queue is kept.
    #[must_use]
    pub fn queue(mut self, queue: Option<Duration>) -> Self {
        self.queue = queue;
        self
    }

    /// Sets the write hold beside which a reader is to be let in.
    #[must_use]
    pub fn within(mut self, write: Option<HoldId>) -> Self {
        self.within = write;
        self
    }

    /// Sets how many tokens are wanted.
    #[must_use]
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens;
        self
    }

    /// The request that undoes this one.
    #[must_use]
    pub fn undo(&self) -> ReleaseRequest {
        ReleaseRequest::new(self.name.clone(), self.hold.clone()).mode(self.mode)
    }
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// The hold is there, with the count and at least the lease asked for.
    Acquired {
        /// The token of the hold; the first, if several were asked for.
        token: FencingToken,
    },
    /// Others hold the lock, or come first.
    Held {
        /// After how long it is worth asking again, if nobody is heard of before: when the leases in the way end. `None` if they have
        /// no end, which only happens to locks that others have written.
        remaining: Option<Duration>,
    },
    /// The hold whose count was to grow is gone.
    NotHeld,
    /// More permits were asked for than there are.
    TooMany {
        /// How many there are.
        limit: u32,
    },
}

/// One hold to be renewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lock.
    pub name: LockName,
    /// The hold.
    pub hold: HoldId,
    /// How the lock is held.
    pub mode: Mode,
    /// When the hold shall end, counted from now.
    pub lease: Duration,
}

impl RenewRequest {
    /// The renewal of an exclusive hold.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId, lease: Duration) -> Self {
        Self { name, hold, mode: Mode::Exclusive, lease }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
}

/// The answer to a [`RenewRequest`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RenewOutcome {
    /// The lease runs at least as long as asked for.
    Renewed,
    /// The hold is gone.
    NotHeld,
    /// This one renewal failed, the others of the batch are not concerned.
    Failed(BackendError),
}

/// One hold to be given back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The lock.
    pub name: LockName,
    /// The hold.
    pub hold: HoldId,
    /// How the lock is held.
    pub mode: Mode,
    /// The hold count to reach: 0 ends the hold.
    pub remaining: u32,
}

impl ReleaseRequest {
    /// The full release of an exclusive hold.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId) -> Self {
        Self { name, hold, mode: Mode::Exclusive, remaining: 0 }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the hold count to reach.
    #[must_use]
    pub fn remaining(mut self, remaining: u32) -> Self {
        self.remaining = remaining;
        self
    }
}

/// The answer to a [`ReleaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The hold is over.
    Released,
    /// The count was set, the hold goes on.
    StillHeld,
    /// There was no such hold.
    NotHeld,
}

/// Who wants to be woken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscribeRequest {
    /// The lock.
    pub name: LockName,
    /// How the lock is to be held.
    pub mode: Mode,
    /// Who waits, for backends that wake one waiter of several.
    pub hold: HoldId,
}

impl SubscribeRequest {
    /// The subscription of one that waits for an exclusive hold.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId) -> Self {
        Self { name, mode: Mode::Exclusive, hold }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
}

/// How many permits a semaphore is to have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResizeRequest {
    /// The semaphore.
    pub name: LockName,
    /// How many leased permits it has from now on, taken or not.
    pub permits: u32,
    /// Leave a number that is set as it is. The number that the first acquisition said is not set.
    pub only_if_unset: bool,
}

impl ResizeRequest {
    /// A request that sets the number, whatever it was.
    #[must_use]
    pub fn new(name: LockName, permits: u32) -> Self {
        Self { name, permits, only_if_unset: false }
    }

    /// Sets whether a number that is set stays as it is.
    #[must_use]
    pub fn only_if_unset(mut self, only_if_unset: bool) -> Self {
        self.only_if_unset = only_if_unset;
        self
    }
}

/// The answer to a [`ResizeRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResizeOutcome {
    /// The semaphore has as many permits as the request says.
    Resized,
    /// The number was set before and stays as it is. Only the answer to a request with
    /// [`only_if_unset`](ResizeRequest::only_if_unset).
    AlreadySet,
}
