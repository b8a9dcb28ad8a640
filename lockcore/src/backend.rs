//! The [`Backend`] trait: what a store must be able to do, and nothing more.

use std::{fmt, ops::BitOr, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{BackendError, FencingToken, LockName};

/// A store of locks: each method is one atomic step at the store.
///
/// Reentrancy, waiting, renewal, drop and cancellation live in the core, once. A backend has no tasks that acquire
/// or renew, waits for nobody, and keeps no state about its callers. Contention is an answer, not an error.
///
/// Whoever writes a backend proves it with `lockcore_testkit::conformance_tests!`, which runs every clause below as a
/// test of its own. The example `custom_backend` is one in under 200 lines.
///
/// # The contract
/// A *hold* is what a [`HoldId`] has under a name. Its owner is [`HoldId::owner`], and [`HoldId::id`] is different for each
/// outermost acquisition.
///
/// - **C1 (exclusion)** `acquire` MUST grant to at most one owner at a time, and decide and record that in one atomic step.
///   *Wrong:* read, find nothing, write. *Right:* one script, one transaction, one critical section.
/// - **C2 (refusal)** While another owner holds the name, `acquire` MUST answer [`AcquireOutcome::Held`] with the
///   remaining lease, at once, and change nothing.
/// - **C3 (lease)** A hold MUST end by itself once its lease has passed, never earlier, and its end MUST be recorded together with
///   the hold. *Wrong:* store the holder, then set the expiry. *Right:* both in one step.
/// - **C4 (tokens)** Every grant MUST carry a token greater than that of every earlier grant of that name, also after the hold
///   expired, was released or force-released.
/// - **C5 (repetition)** A request that arrives twice MUST have the effect of one: `acquire` of a hold that is already
///   there answers `Acquired` with the same token and sets the count to the one asked for, never adds to it.
/// - **C6 (takeover)** `acquire` with the owner that holds the name but another id MUST grant at once, with a new token, and
///   from then on know only the new id.
/// - **C7 (nested growth)** `acquire` with a count above 1 MUST grant nothing if the hold is gone: it answers
///   [`AcquireOutcome::Held`] if another owner has the name by now, and [`AcquireOutcome::NotHeld`] otherwise, also to a named owner
///   whose hold has another id. C6 is for outermost acquisitions, those with a count of 1.
/// - **C8 (renewal)** `renew` MUST extend only the very hold that is named, answer [`RenewOutcome::NotHeld`] for any other, and answer for
///   each request separately, in order.
/// - **C9 (no shortening)** Neither `renew` nor a repeated or nested `acquire` may shorten what is left of a lease.
/// - **C10 (ownership)** `release` MUST free only the very hold that is named, and answer [`ReleaseOutcome::NotHeld`] for any
///   other. *Wrong:* delete the key. *Right:* compare and delete in one step.
/// - **C11 (partial release)** `release` with a remaining count above 0 MUST set the count and keep hold and lease.
/// - **C12 (wake-up)** Once [`subscribe`](Self::subscribe) has returned, every end of a hold by `release` or `force_release` MUST wake
///   the subscription, and so MUST any interruption in which such an end may have been missed. A wake-up between two calls of
///   [`Wakeups::woken`] is not lost. Waking too often is allowed, an ended lease need not wake.
/// - **C13 (force)** `force_release` MUST free the name whoever holds it and answer whether it was held.
/// - **C14 (inspection)** `inspect` MUST report owner, mode, count and remaining lease as stored, and an expired hold as absent.
///   A store that does not keep the difference may report a fair hold as an exclusive one.
/// - **C15 (names)** Different names MUST NOT affect each other, whatever valid characters they have, and a name that nobody
///   holds or waits for leaves nothing behind for ever.
/// - **C16 (capabilities)** A mode that is not declared MUST be refused with [`Unsupported`](crate::BackendErrorKind::Unsupported), with no effect.
/// - **C17 (cancellation)** Any future may be dropped at any await. What it began may then still happen at the store, or not;
///   nothing else may be left: no lock on the backend's own state, no subscription. The core follows every `acquire` that was
///   dropped, or whose outcome is unknown, with a `release` of the same hold: an `acquire` MUST NOT take effect after a `release`
///   of its hold that began later has been answered. *Wrong:* a pool of connections. *Right:* one ordered connection, or a
///   critical section that ends with the future.
///
/// For a backend with [`Capabilities::FAIR`]:
///
/// - **C18 (order)** A refused `acquire` in [`Mode::Fair`] with [`queue`](AcquireRequest::queue) MUST give its hold a place at the end of
///   the name's queue, or keep the place that it has. While anybody is in the queue, a free lock MUST, among requests in
///   [`Mode::Fair`], be granted to the first of it only, and refused to others with the time after which they should ask again.
///   Holds of one named owner may share a place.
/// - **C19 (lapse)** A place MUST be forgotten when its hold has not asked for so long as it said, and MUST be kept until then.
/// - **C20 (leaving)** `release` of a hold that has a place MUST remove the place, answer `NotHeld`, and wake whoever is first then.
///   Every release of a fair hold, and every forced release, MUST wake the first of the queue; a subscription in
///   [`Mode::Fair`] need hear of nothing else.
///
/// An error MUST say with [`BackendError::not_applied`] when the request certainly had no effect. A call should end by itself when
/// the store is silent; the core gives up after 5 s, or a third of the lease for a renewal, and takes the outcome for unknown.
///
/// Leases are best measured with the store's own clock, as its users' clocks differ.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Which modes this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Takes the hold if the name is free, or already held by the same owner.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError>;

    /// Extends each of `holds` to its lease from now. The answers are in the order of the requests.
    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError>;

    /// Gives back a hold, or lowers its count.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError>;

    /// Frees `name`, whoever holds it. True if it was held.
    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError>;

    /// Who holds `name` now.
    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError>;

    /// Listens for ends of holds of a name. The subscription is in effect when this returns and ends when the
    /// [`Wakeups`] are dropped.
    async fn subscribe(&self, request: &SubscribeRequest) -> Result<Box<dyn Wakeups>, BackendError>;
}

/// A subscription to the ends of holds of one name.
#[async_trait]
pub trait Wakeups: fmt::Debug + Send + Sync {
    /// Resolves when a hold may have ended since the last call.
    ///
    /// # Cancel safety
    /// A wake-up is not lost when this future is dropped before it resolves.
    async fn woken(&mut self);
}

/// How a lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One owner at a time, in no particular order.
    Exclusive,
    /// One owner at a time, first come, first served.
    Fair,
    /// Shared with other readers.
    Read,
    /// Excludes readers and other writers.
    Write,
    /// Some of a limited number of permits.
    #[non_exhaustive]
    Permit {
        /// How many are taken.
        count: u32,
        /// How many there are.
        limit: u32,
    },
}

impl Mode {
    /// `count` of `limit` permits.
    #[must_use]
    pub fn permits(count: u32, limit: u32) -> Self {
        Self::Permit { count, limit }
    }

    /// The capability that a backend needs for this mode.
    #[must_use]
    pub fn capability(self) -> Capabilities {
        match self {
            Self::Exclusive => Capabilities::EXCLUSIVE,
            Self::Fair => Capabilities::FAIR,
            Self::Read | Self::Write => Capabilities::READ_WRITE,
            Self::Permit { .. } => Capabilities::PERMITS,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit { .. } => "permit",
        })
    }
}

/// What a backend can do: a set of modes.
///
/// # Examples
/// ```
/// use lockcore::{Capabilities, Mode};
///
/// let capabilities = Capabilities::EXCLUSIVE | Capabilities::FAIR;
/// assert!(capabilities.supports(Mode::Fair));
/// assert!(!capabilities.supports(Mode::Read));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// [`Mode::Exclusive`]: every backend should have it.
    pub const EXCLUSIVE: Self = Self(1);
    /// [`Mode::Fair`].
    pub const FAIR: Self = Self(1 << 1);
    /// [`Mode::Read`] and [`Mode::Write`].
    pub const READ_WRITE: Self = Self(1 << 2);
    /// [`Mode::Permit`].
    pub const PERMITS: Self = Self(1 << 3);

    /// Whether locks can be held in `mode`.
    #[must_use]
    pub fn supports(self, mode: Mode) -> bool {
        self.0 & mode.capability().0 != 0
    }

    /// The error that [`Backend::acquire`] owes to a mode that is not in this set.
    ///
    /// # Errors
    /// [`Unsupported`](crate::BackendErrorKind::Unsupported), if `mode` is not in this set.
    pub fn require(self, mode: Mode) -> Result<(), BackendError> {
        if self.supports(mode) {
            return Ok(());
        }
        let message = format!("this backend has no {mode} locks");
        Err(BackendError::new(crate::BackendErrorKind::Unsupported, message))
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whom a hold belongs to, as a backend stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldId {
    owner: Arc<str>,
    id: Arc<str>,
}

impl HoldId {
    /// The hold of an owner that exists for one outermost acquisition only: its id is its owner. On the wire it has
    /// Redisson's form, `<client uuid>:<number>`.
    #[must_use]
    pub fn unique(id: impl Into<Arc<str>>) -> Self {
        let id = id.into();
        Self { owner: id.clone(), id }
    }

    /// A hold of the owner called `owner` in every process, told from its other holds by `id`.
    #[must_use]
    pub fn named(owner: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self { owner: owner.into(), id: id.into() }
    }

    /// What is stored as the holder, and decides who may enter again.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// What tells this hold from every other one, and decides who may renew and release.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the owner can have other holds than this one.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.owner != self.id
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
    /// For [`Mode::Fair`]: queue if the lock is not free, and keep the place for so long unless the request is repeated.
    pub queue: Option<Duration>,
}

impl AcquireRequest {
    /// An outermost exclusive acquisition.
    #[must_use]
    pub fn new(name: LockName, hold: HoldId, lease: Duration) -> Self {
        Self { name, hold, mode: Mode::Exclusive, lease, count: 1, queue: None }
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
        /// The token of the hold.
        token: FencingToken,
    },
    /// Another owner holds the lock.
    Held {
        /// How long its lease still runs, if nobody renews it; `None` if it has no end, which only happens to locks that
        /// others have written.
        remaining: Option<Duration>,
    },
    /// The hold whose count was to grow is gone.
    NotHeld,
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

/// Who holds a lock, as the backend has it stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    holders: Vec<Holder>,
    remaining: Option<Duration>,
}

impl LockState {
    /// The state of a lock that nobody holds.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// The state of a lock with these holders, whose lease runs for `remaining`; `None` if it has no end.
    #[must_use]
    pub fn held(holders: Vec<Holder>, remaining: Option<Duration>) -> Self {
        Self { holders, remaining }
    }

    /// Whether anybody holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Who holds the lock.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// What is left of the lease; `None` if the lock is free, or has no lease, as a lock that others have written.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    pub(crate) fn holders_mut(&mut self) -> &mut [Holder] {
        &mut self.holders
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    owner: String,
    mode: Mode,
    hold_count: u32,
}

impl Holder {
    /// A holder as stored.
    #[must_use]
    pub fn new(owner: impl Into<String>, mode: Mode, hold_count: u32) -> Self {
        Self { owner: owner.into(), mode, hold_count }
    }

    /// The identity on the wire: `<client uuid>:<number>`, or the name of a named owner. Compare with
    /// [`LockGuard::wire_owner`](crate::LockGuard::wire_owner).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How the lock is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often the owner has entered. Nested acquisitions that needed no round trip are counted where they
    /// were made; other clients see 1 for them.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.hold_count
    }

    pub(crate) fn set_hold_count(&mut self, count: u32) {
        self.hold_count = count;
    }
}
