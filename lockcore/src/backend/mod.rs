//! The [`Backend`] trait: what a store must be able to do, and nothing more.

mod capabilities;
mod conditions;
mod latches;
mod requests;

use std::fmt;

/// The attribute that every `impl` of one of this module's traits carries.
pub use async_trait::async_trait;

pub use self::{
    capabilities::Capabilities,
    conditions::{ConditionId, Conditions, Departure},
    latches::Latches,
    requests::{
        AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest, ResizeOutcome, ResizeRequest, SubscribeRequest,
    },
};
use crate::{BackendError, LockName, LockState};

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
/// For a backend with more than one kind of lock (exclusive and fair locks are one kind, read and write locks another, permits,
/// plain permits and latches three more):
///
/// - **C21 (kinds)** While a name is in use as one kind, every request for it as another kind that would take or set something MUST be
///   refused with [`WrongType`](crate::BackendErrorKind::WrongType), with no effect. A semaphore may be in use for a while after
///   all its permits have come back.
///
/// For a backend with [`Capabilities::READ_WRITE`]:
///
/// - **C22 (sharing)** A hold in [`Mode::Write`] MUST exclude every other hold, and a hold in [`Mode::Read`] only those in [`Mode::Write`].
///   Each hold has its own lease, token and id; C5 to C11 are for each of them.
/// - **C23 (downgrade)** An `acquire` in [`Mode::Read`] [`within`](AcquireRequest::within) a live write hold MUST be granted beside it, and
///   go on when that is released. Other readers MUST be let in from then on, and be woken for it.
/// - **C24 (leases of their own)** A hold MUST end with its own lease, whatever others are held beside it or renewed. A refused writer
///   MUST be told when the last of the present holds ends, and be woken when that changes by a release; of C12's wake-ups those suffice.
/// - **C25 (writers)** A writer that was refused because of readers and gave a [`queue`](AcquireRequest::queue) MUST keep new readers out
///   until it is granted, or is released (which answers `NotHeld` and wakes), or has not asked again for so long. Readers that are in
///   may repeat, nest and renew meanwhile, and a writer that was refused because of another writer keeps nobody out.
///
/// For a backend with [`Capabilities::PERMITS`], where each acquisition is a hold of its own and C6, C7 and C11 do not apply:
///
/// - **C26 (limit)** No more permits MUST be held together than there are: as many as were [set](Self::resize), or else as the first
///   `acquire` said. An `acquire` gets all that it asks for, or nothing.
/// - **C27 (own permits)** `renew` and `release` MUST concern the permits of the very hold alone. Those of an ended lease MUST be there for
///   others, and a refused `acquire` MUST be told when the next lease ends.
/// - **C28 (too many)** More permits than there are MUST be answered with [`AcquireOutcome::TooMany`]. Where permits are plain the store
///   may not know how many there are, and answer [`AcquireOutcome::Held`].
/// - **C29 (resizing)** [`resize`](Self::resize) MUST set how many permits there are, and leave those that are held with their
///   holders. If there are more than before, it MUST wake. A request that is
///   [only for a number that is not set](ResizeRequest::only_if_unset) MUST be answered
///   [`AlreadySet`](ResizeOutcome::AlreadySet), with no effect, if a resize or somebody else who shares the store has set the
///   number before, and that is decided in the same step. What the first `acquire` said is not set.
///
/// For a backend with [`Capabilities::HAND_OVER`]:
///
/// - **C37 (several tokens)** A grant of `n` [`tokens`](AcquireRequest::tokens) MUST give away the token in the answer and the `n - 1`
///   after it: those of later grants of the name are greater than all of them. A repetition has the same answer.
///
/// Latches have clauses C30 to C32, in [`Latches`], and conditions C33 to C36, in [`Conditions`].
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
    async fn subscribe(&self, request: &SubscribeRequest)
    -> Result<Box<dyn Wakeups>, BackendError>;

    /// Sets how many leased permits a semaphore has, taken or not, and makes it if need be. The number is
    /// remembered for ever. Asked only of a backend with [`Capabilities::PERMITS`]; another one answers
    /// [`BackendError::unsupported`].
    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError>;

    /// The latches of this store, or `None` if it has none.
    fn latches(&self) -> Option<&dyn Latches>;

    /// The conditions of this store, or `None` if it has none.
    fn conditions(&self) -> Option<&dyn Conditions>;
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
