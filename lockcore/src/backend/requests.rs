//! The requests that a backend gets, and its answers.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use crate::{BackendError, FencingToken, LockName, Mode};

/// The identity of a hold, as a backend stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldId {
    id: Arc<str>,
    /// `None` if the id is the owner.
    owner: Option<Arc<str>>,
}

impl HoldId {
    /// The hold of an owner that exists for one outermost acquisition only, so that the id is the
    /// owner. On the wire it has Redisson's form, `<client uuid>:<number>`. No other hold may have
    /// that owner: a backend may release the hold by its owner alone.
    #[must_use]
    pub fn unique(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), owner: None }
    }

    /// A hold of an owner that is called `owner` in every process. The `id` distinguishes it from
    /// the owner's other holds.
    #[must_use]
    pub fn named(owner: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        let (id, owner) = (id.into(), owner.into());
        Self { owner: Some(owner).filter(|owner| *owner != id), id }
    }

    /// The text that is stored as the holder, and that decides who may re-enter.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.owner.as_ref().unwrap_or(&self.id)
    }

    /// The text that is unique to this hold, and that decides who may renew and release it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns `true` if the owner can have other holds than this one.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.owner.is_some()
    }
}

/// The demand that replicas acknowledge a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Replicas {
    /// The number of replicas that have to acknowledge it. With 0, none is asked.
    pub count: u32,
    /// The time that the acknowledgement may take: 1 ms to 1 s.
    pub timeout: Duration,
}

impl Replicas {
    /// The shortest and the longest timeout. Requests queue behind one that waits for its timeout,
    /// and all of them have to be over before the core gives up on the call.
    pub const TIMEOUTS: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(1);

    /// The demand that `count` replicas acknowledge a hold within `timeout`.
    #[must_use]
    pub fn new(count: u32, timeout: Duration) -> Self {
        Self { count, timeout }
    }
}

/// One attempt to take a hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// The hold to take.
    pub hold: HoldId,
    /// The way in which the lock is to be held.
    pub mode: Mode,
    /// The time after which the hold ends by itself, counted from now. At least a millisecond.
    pub lease: Duration,
    /// The hold count to reach: 1 for an outermost acquisition.
    pub count: u32,
    /// In [`Mode::Fair`], a request to queue if the lock is not free, and the time for which the
    /// place is kept without a repetition of the request. In [`Mode::Write`], the time for which
    /// new readers are kept out if readers hold the lock.
    pub queue: Option<Duration>,
    /// In [`Mode::Read`], the write hold of the same owner beside which the new hold is taken.
    pub within: Option<HoldId>,
    /// The number of tokens to reserve, at least 1: the one in the answer and those after it.
    /// Greater than 1 only for a backend with
    /// [`Capabilities::HAND_OVER`](crate::backend::Capabilities::HAND_OVER), and for an outermost
    /// hold in [`Mode::Exclusive`] of an owner without a name.
    pub tokens: u32,
    /// The replicas that have to acknowledge the hold. `None` leaves that to the backend. `Some`
    /// only for a backend with [`Capabilities::REPLICAS`](crate::backend::Capabilities::REPLICAS),
    /// and for an outermost acquisition.
    pub replicas: Option<Replicas>,
    /// The number of this request, if the hold may be granted while it has a place in the queue:
    /// the subscription of the hold gives it back with [`Wakeup::Granted`]. The number is random
    /// and must be kept secret, because a wake-up that carries it is trusted. Only for a backend
    /// with [`Capabilities::DIRECT_GRANT`](crate::backend::Capabilities::DIRECT_GRANT), and for an
    /// outermost hold in [`Mode::Fair`] of an owner without a name that asks for a place and not
    /// for replicas.
    pub direct_grant: Option<u64>,
    /// The least token that the grant may carry, below 2^52. `None` leaves the token to the store.
    /// `Some` only for a backend with
    /// [`Capabilities::PROPOSED_TOKENS`](crate::backend::Capabilities::PROPOSED_TOKENS), and in
    /// [`Mode::Exclusive`].
    pub least_token: Option<FencingToken>,
    /// The remaining time of the hold in the way, as far as the client knows: the store has refused
    /// an earlier request of it, and nothing was heard since. If another owner holds the lock, a
    /// backend may answer [`Held`](AcquireOutcome::Held) with this time, and need not look up how
    /// long it is held and by what kind of lock. This way, many waiters can check with one command
    /// whether a wake-up was lost.
    ///
    /// `Some` only in [`Mode::Exclusive`], and for an outermost hold of an owner without a name
    /// that no earlier request can have brought about. So the holder is another owner.
    pub held_for: Option<Duration>,
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
            replicas: None,
            direct_grant: None,
            least_token: None,
            held_for: None,
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

    /// Sets the time for which a place in the queue is kept.
    #[must_use]
    pub fn queue(mut self, queue: Option<Duration>) -> Self {
        self.queue = queue;
        self
    }

    /// Sets the write hold beside which a reader is admitted.
    #[must_use]
    pub fn within(mut self, write: Option<HoldId>) -> Self {
        self.within = write;
        self
    }

    /// Sets the number of tokens to reserve.
    #[must_use]
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the replicas that have to acknowledge the hold.
    #[must_use]
    pub fn replicas(mut self, replicas: Option<Replicas>) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets the number by which a grant that comes with a wake-up names this request.
    #[must_use]
    pub fn direct_grant(mut self, number: Option<u64>) -> Self {
        self.direct_grant = number;
        self
    }

    /// Sets the least token that the grant may carry.
    #[must_use]
    pub fn least_token(mut self, token: Option<FencingToken>) -> Self {
        self.least_token = token;
        self
    }

    /// Sets the remaining time of the hold in the way, as far as the client knows.
    #[must_use]
    pub fn held_for(mut self, remaining: Option<Duration>) -> Self {
        self.held_for = remaining;
        self
    }

    /// The full release of the hold that this request asks for.
    #[must_use]
    pub fn release(&self) -> ReleaseRequest {
        ReleaseRequest::new(self.name.clone(), self.hold.clone()).mode(self.mode)
    }

    /// The request that undoes this one, which may have led to no hold.
    #[must_use]
    pub fn undo(&self) -> ReleaseRequest {
        ReleaseRequest { is_undo: true, ..self.release() }
    }
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// The hold exists, with the requested count and at least the requested lease.
    Acquired {
        /// The token of the hold; the first one if several were requested.
        token: FencingToken,
    },
    /// As [`Acquired`](Self::Acquired), and replicas have acknowledged it, at least as many as were
    /// [asked for](AcquireRequest::replicas).
    Acknowledged {
        /// The token of the hold, as in [`Acquired`](Self::Acquired).
        token: FencingToken,
        /// The number of replicas that have acknowledged it.
        replicas: u32,
    },
    /// Another owner holds the lock, or comes first.
    Held {
        /// The time after which to ask again if no wake-up comes before: when the leases in the way
        /// end. `None` if they have no end, which happens only to locks that other software has
        /// written.
        remaining: Option<Duration>,
    },
    /// The hold whose count should grow is gone.
    NotHeld,
    /// The request asks for more permits than there are.
    TooMany {
        /// The number of permits.
        limit: u32,
    },
}

impl AcquireOutcome {
    /// The token of the hold, if it exists.
    #[must_use]
    pub fn token(&self) -> Option<FencingToken> {
        match *self {
            Self::Acquired { token } | Self::Acknowledged { token, .. } => Some(token),
            Self::Held { .. } | Self::NotHeld | Self::TooMany { .. } => None,
        }
    }

    /// The number of replicas that have acknowledged the hold, if they were asked.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        match *self {
            Self::Acknowledged { replicas, .. } => Some(replicas),
            _ => None,
        }
    }
}

/// A hold to renew.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lock.
    pub name: LockName,
    /// The hold.
    pub hold: HoldId,
    /// The way in which the lock is held.
    pub mode: Mode,
    /// The time after which the hold ends, counted from now.
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
    /// The lease lasts at least as long as requested.
    Renewed,
    /// The hold is gone.
    NotHeld,
    /// This renewal failed; the others of the batch are not affected.
    Failed(BackendError),
}

/// A hold to give back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The lock.
    pub name: LockName,
    /// The hold.
    pub hold: HoldId,
    /// The way in which the lock is held.
    pub mode: Mode,
    /// The hold count to reach: 0 ends the hold.
    pub remaining: u32,
    /// `true` if it is unknown whether there is such a hold, because an acquisition had no reply.
    /// If there is none, no waiter has to be woken, unless the hold has a place in the queue (C20).
    pub is_undo: bool,
}

impl ReleaseRequest {
    /// The full release of an exclusive hold.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId) -> Self {
        Self { name, hold, mode: Mode::Exclusive, remaining: 0, is_undo: false }
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
    /// The count was set, and the hold continues.
    StillHeld,
    /// There is no such hold.
    NotHeld,
}

/// A subscription to wake-ups.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscribeRequest {
    /// The lock.
    pub name: LockName,
    /// The way in which the lock is to be held.
    pub mode: Mode,
    /// The hold that the waiter wants, for backends that wake one of several waiters.
    pub hold: HoldId,
    /// The events to be woken for.
    pub awaited: Awaited,
}

/// The events that a subscription wakes for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// The ends of holds.
    #[default]
    End,
    /// Refused requests for the lock: other clients want it. Only in [`Mode::Exclusive`], and for a
    /// backend with [`Capabilities::DEMAND`](crate::backend::Capabilities::DEMAND).
    Demand,
}

impl SubscribeRequest {
    /// The subscription of a waiter for an exclusive hold.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId) -> Self {
        Self { name, mode: Mode::Exclusive, hold, awaited: Awaited::End }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the events to be woken for.
    #[must_use]
    pub fn awaited(mut self, awaited: Awaited) -> Self {
        self.awaited = awaited;
        self
    }
}

/// The reason why a subscription woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakeup {
    /// A hold may have ended, or the lock may be wanted: a reason to look.
    Changed,
    /// The hold that the subscription is for was granted, with this token, on the strength of the
    /// last [request](AcquireRequest::direct_grant) that was refused.
    Granted {
        /// The token of the hold.
        token: FencingToken,
        /// The number of that request.
        request: u64,
    },
}

/// A new number of permits for a semaphore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResizeRequest {
    /// The semaphore.
    pub name: LockName,
    /// The number of leased permits that it has from now on, taken or not.
    pub permits: u32,
    /// `true` if a number that was set before stays. The number in the first `acquire` does not
    /// count as set.
    pub only_if_unset: bool,
}

impl ResizeRequest {
    /// A request that sets the number, whatever its present value.
    #[must_use]
    pub fn new(name: LockName, permits: u32) -> Self {
        Self { name, permits, only_if_unset: false }
    }

    /// Sets whether a number that was set before stays.
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
    /// The semaphore has the requested number of permits.
    Resized,
    /// The number was set before, and stays. Answers only requests with
    /// [`only_if_unset`](ResizeRequest::only_if_unset).
    AlreadySet,
}
