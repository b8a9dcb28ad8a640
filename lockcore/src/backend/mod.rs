//! Everything that an author of a backend needs: the [`Backend`] trait, with its requests and
//! answers, and the optional parts [`Latches`], [`Conditions`] and [`Directory`].
//!
//! Users of locks do not need this module. They pass a backend to
//! [`Locks::new`](crate::Locks::new).

mod capabilities;
mod conditions;
mod directory;
mod latches;
mod limits;
mod requests;
mod stored;

use std::{fmt, time::Duration};

/// The attribute for the `impl` blocks of this module's traits.
pub use async_trait::async_trait;

pub use self::{
    capabilities::Capabilities,
    conditions::{ConditionId, Conditions, Departure},
    directory::{Cursor, Directory, Page, Start},
    latches::Latches,
    limits::Limits,
    requests::{
        AcquireOutcome, AcquireRequest, Awaited, HoldId, ReleaseOutcome, ReleaseRequest,
        RenewOutcome, RenewRequest, Replicas, ResizeOutcome, ResizeRequest, SubscribeRequest,
        Wakeup,
    },
    stored::{StoredEntry, StoredKind},
};
use crate::{BackendError, FencingToken, LockName, LockState};

/// A store of locks. Each method is one atomic step at the store.
///
/// Reentrancy, waiting, renewal, release on drop and cancellation live in the core, once. A backend
/// starts no tasks that acquire or renew, never waits for a lock, and keeps no state about its
/// callers. Contention is an answer, not an error.
///
/// `lockcore_testkit::conformance_tests!` proves a backend: it runs every clause below as a test of
/// its own. The example `custom_backend` is a complete backend in about 250 lines.
///
/// Every method is required, so that a wrapper cannot forget to forward one. A backend without
/// semaphores, latches, conditions or a directory says so in [`resize`](Self::resize),
/// [`latches`](Self::latches), [`conditions`](Self::conditions) and [`directory`](Self::directory).
///
/// # The contract
/// A *hold* belongs to one [`HoldId`] under one name. Its owner is [`HoldId::owner`], and its
/// [`HoldId::id`] is different for each outermost acquisition.
///
/// - **C1 (exclusion)** `acquire` MUST grant a name to at most one owner at a time, and MUST decide
///   and record the grant in one atomic step. *Wrong:* read, find nothing, write. *Right:* one
///   script, one transaction, one critical section.
/// - **C2 (refusal)** While another owner holds the name, `acquire` MUST answer
///   [`AcquireOutcome::Held`] at once, with the remaining lease, and change nothing. It may use up
///   tokens.
/// - **C3 (lease)** A hold MUST end by itself once its lease has passed, and never earlier. Its end
///   MUST be recorded together with the hold. *Wrong:* store the holder, then set the expiry.
///   *Right:* both in one step.
/// - **C4 (tokens)** Every grant MUST carry a token greater than that of every earlier grant of the
///   same name, also after a hold expired, was released or was force-released.
/// - **C5 (repetition)** A request that arrives twice MUST have the effect of one. `acquire` of a
///   hold that exists already answers `Acquired` with the same token, or with a later one that no
///   other grant can have, if others were refused since then or other members of a quorum answer.
///   The request sets the count to the requested one instead of adding to it.
/// - **C6 (takeover)** `acquire` by the owner that holds the name, but with another id, MUST grant
///   at once with a new token, and recognize only the new id from then on.
/// - **C7 (nested growth)** `acquire` with a count above 1 MUST grant nothing if the hold is gone.
///   The answer is [`AcquireOutcome::Held`] if another owner holds the name by now, and
///   [`AcquireOutcome::NotHeld`] otherwise, also for a named owner whose hold has another id. C6
///   applies to outermost acquisitions only, those with a count of 1.
/// - **C8 (renewal)** `renew` MUST extend exactly the named hold, answer [`RenewOutcome::NotHeld`]
///   for any other, and answer each request separately and in order.
/// - **C9 (no shortening)** Neither `renew` nor a repeated or nested `acquire` may shorten what
///   remains of a lease.
/// - **C10 (ownership)** `release` MUST free exactly the named hold, and answer
///   [`ReleaseOutcome::NotHeld`] for any other. *Wrong:* delete the key. *Right:* compare and
///   delete in one step.
/// - **C11 (partial release)** `release` with a remaining count above 0 MUST set the count, and
///   keep the hold and its lease.
/// - **C12 (wake-up)** Once [`subscribe`](Self::subscribe) has returned, every end of a hold by
///   `release` or `force_release` MUST wake the subscription. So MUST a grant that ends before the
///   hold that it takes over (C6) or the place that it replaces (C18, C25), because refused clients
///   were told the later end. And so MUST any interruption in which one of these may have been
///   missed. A wake-up between two calls of [`Wakeups::woken`] is not lost. Spurious wake-ups are
///   allowed, and the end of a lease need not wake.
/// - **C13 (force)** `force_release` MUST free the name, whoever holds it, and answer whether it
///   was held.
/// - **C14 (inspection)** `inspect` MUST report owner, mode, count and remaining lease as stored,
///   and an expired hold as absent. A store that does not tell the two apart may report a fair hold
///   as an exclusive one.
/// - **C15 (names)** Different names MUST NOT affect each other, whatever valid characters they
///   consist of. A name that is neither held nor waited for leaves nothing behind permanently.
/// - **C16 (capabilities)** A mode that is not declared, or unknown, MUST be refused with
///   [`Unsupported`](crate::BackendErrorKind::Unsupported), and the refusal MUST have no effect. So
///   MUST several [`tokens`](AcquireRequest::tokens) without [`Capabilities::HAND_OVER`], a
///   subscription to [`Awaited::Demand`] without [`Capabilities::DEMAND`] or in another mode than
///   [`Mode::Exclusive`](crate::Mode::Exclusive), a [`least_token`](AcquireRequest::least_token)
///   or [`raise_token`](Self::raise_token) without [`Capabilities::PROPOSED_TOKENS`], and
///   [`resize`](Self::resize) without [`Capabilities::PERMITS`].
/// - **C17 (cancellation)** Any future may be dropped at any await. Its request may then still take
///   effect at the store, or not. Nothing else may be left: no lock on the backend's own state, no
///   subscription. The core follows every `acquire` that was dropped, or whose outcome is unknown,
///   with a `release` of the same hold, so an `acquire` MUST NOT take effect after a later
///   `release` of its hold was answered, also if connections were lost between the two. *Wrong:* a
///   pool that lends any connection. *Right:* an ordered connection, chosen by the name if there
///   are several, that is replaced only when it is over at the store; or a mark that a late request
///   meets, and a limit for the age of requests, so that none comes when its mark has gone; or a
///   critical section that ends with the future.
///
/// For a backend with [`Capabilities::FAIR`]:
///
/// - **C18 (order)** A refused `acquire` in [`Mode::Fair`](crate::Mode::Fair) with
///   [`queue`](AcquireRequest::queue) MUST give its hold a place at the end of the name's queue, or
///   keep the place that it has. While the queue is not empty, a free lock MUST, among requests in
///   [`Mode::Fair`](crate::Mode::Fair), be granted to the first in the queue only; the others are
///   refused with the time after which to ask again. Holds of one named owner may share a place.
/// - **C19 (lapse)** A place MUST be forgotten once its hold has not asked again for the time that
///   it gave, and MUST be kept until then.
/// - **C20 (leaving)** `release` of a hold that has a place MUST remove the place, answer
///   `NotHeld`, and wake the new first in the queue. Every end of a hold by `release` or
///   `force_release`, and every grant that ends before what it replaces (C12), MUST wake the first
///   in the queue, be the hold a fair or an exclusive one. A subscription in
///   [`Mode::Fair`](crate::Mode::Fair) need hear of nothing else. *Wrong:* only the release of a
///   fair hold looks at the queue.
///
/// For a backend with more than one kind of lock (exclusive and fair locks are one kind; read-write
/// locks, permits, plain permits and latches are four more):
///
/// - **C21 (kinds)** While a name is in use as one kind, every request that would take or set
///   something of another kind MUST be refused with
///   [`WrongType`](crate::BackendErrorKind::WrongType), and without effect. A semaphore may stay in
///   use for a while after all its permits have come back.
///
/// For a backend with [`Capabilities::READ_WRITE`]:
///
/// - **C22 (sharing)** A hold in [`Mode::Write`](crate::Mode::Write) MUST exclude every other hold,
///   and a hold in [`Mode::Read`](crate::Mode::Read) only those in
///   [`Mode::Write`](crate::Mode::Write). Each hold has its own lease, token and id, and C5 to C11
///   apply to each of them.
/// - **C23 (downgrade)** An `acquire` in [`Mode::Read`](crate::Mode::Read)
///   [`within`](AcquireRequest::within) a live write hold MUST be granted beside it, and outlive
///   the release of the write hold. Other readers MUST be admitted from that release on, and be
///   woken for it.
/// - **C24 (leases of their own)** A hold MUST end with its own lease, whatever other holds exist
///   or are renewed beside it. A refused writer MUST be told when the last of the present holds
///   ends, and be woken when a release or a takeover changes that; of the wake-ups of C12, it needs
///   only those.
/// - **C25 (writers)** A writer that was refused because of readers and gave a
///   [`queue`](AcquireRequest::queue) MUST keep new readers out until it is granted, or is released
///   (which answers `NotHeld` and wakes), or has not asked again for that time. Present readers may
///   repeat, nest and renew meanwhile. A writer that was refused because of another writer keeps
///   nobody out.
///
/// For a backend with [`Capabilities::PERMITS`], where each acquisition is a hold of its own and
/// C6, C7 and C11 do not apply:
///
/// - **C26 (limit)** Together, the holds MUST NOT have more permits than there are: the number that
///   was [set](Self::resize), or else the number in the first `acquire`. An `acquire` gets all the
///   permits that it asks for, or none.
/// - **C27 (own permits)** `renew` and `release` MUST affect the permits of the named hold only.
///   The permits of an ended lease MUST be available to others, and a refused `acquire` MUST be
///   told when the next lease ends.
/// - **C28 (too many)** A request for more permits than there are MUST be answered with
///   [`AcquireOutcome::TooMany`]. With plain permits, the store may not know how many there are,
///   and may answer [`AcquireOutcome::Held`].
/// - **C29 (resizing)** [`resize`](Self::resize) MUST set the number of permits, and leave those
///   that are held with their holders. If the number grows, it MUST wake. A request that is [only
///   for an unset number](ResizeRequest::only_if_unset) MUST be answered
///   [`AlreadySet`](ResizeOutcome::AlreadySet), without effect, if an earlier `resize`, or somebody
///   else who shares the store, has set the number; the check and the change are one step. The
///   number in the first `acquire` does not count as set.
///
/// For a backend with [`Capabilities::HAND_OVER`]:
///
/// - **C37 (several tokens)** A grant of `n` [`tokens`](AcquireRequest::tokens) MUST give away the
///   token in the answer and the `n - 1` tokens after it: later grants of the name carry greater
///   tokens than all of these. A repetition is answered as in C5.
///
/// For a backend with [`Capabilities::DEMAND`]:
///
/// - **C38 (demand)** A subscription to [`Awaited::Demand`] MUST wake when a later `acquire` of the
///   name in [`Mode::Exclusive`](crate::Mode::Exclusive) or [`Mode::Fair`](crate::Mode::Fair) is
///   answered [`AcquireOutcome::Held`] because of a hold. It need not if the answer is taken from
///   [`held_for`](AcquireRequest::held_for): such a waiter was refused before. It should wake after
///   a forced release, and at once if others subscribe to the ends of the holds of the name
///   already: they may have been refused before. Spurious wake-ups are allowed.
///
/// For a backend with [`Capabilities::DIRECT_GRANT`], which has fair locks as well:
///
/// - **C39 (direct grant)** A full `release` of a fair hold, and one of a place while the lock is
///   free, MUST grant the lock to the first in the queue if the last `acquire` of that hold had a
///   [`direct_grant`](AcquireRequest::direct_grant) number. The new hold has the count 1 and a new
///   token (C4), no place any more, and lasts as long as the place would have, which is for the
///   [`queue`](AcquireRequest::queue) time from that `acquire`. Its subscription MUST be woken with
///   [`Wakeup::Granted`], the token and the number; a later `acquire` of it is a repetition (C5).
///   If there is no number, or the store cannot grant, the first is woken as C20 says.
///
/// For a backend with [`Capabilities::PROPOSED_TOKENS`]:
///
/// - **C40 (proposed tokens)** A grant to an `acquire` with a
///   [`least_token`](AcquireRequest::least_token) MUST carry that token or a greater one, and
///   exactly that one if the store has no reason for a greater one. C4 and C5 apply as without it.
///   After [`raise_token`](Self::raise_token) was answered, every new grant of the name MUST carry
///   a token greater than the raised one. The current holder keeps its hold and its token.
///
/// For every backend:
///
/// - **C46 (durability)** Once a request was answered, its effect MUST survive whatever the backend
///   claims to survive, be it a crash of the store or the loss of a machine. This applies to a
///   grant, also that of a `release` (C39), to a renewal, a raised token, a number of permits and
///   the count of a latch. Tokens (C4) and leases (C3) go on as if nothing had happened. *Wrong:*
///   answer, then write. A `release` need not survive, because to lose it only keeps the hold until
///   its lease ends; but the mark of an undo MUST, if the `acquire` can still arrive (C17). A place
///   in a queue need not survive, because its waiter asks again.
/// - **C47 (errors)** An error MUST say with [`BackendError::not_applied`] that the request had no
///   effect if that is certain, and only then.
///
/// Clauses C30 to C32 are in [`Latches`], C33 to C36 in [`Conditions`], and C41 to C45 in
/// [`Directory`].
///
/// # Time-outs
/// A call should end by itself if the store does not respond. The core gives up on a call after
/// 5 s, or on a renewal after a third of the lease, and then treats its outcome as unknown.
///
/// A future must not block its thread. The core assumes that a grant which comes with the first
/// poll came at once: if that poll takes longer than the lease, the caller gets a guard whose hold
/// is lost already, as if the process had been stopped at that moment.
///
/// Leases are best measured by the store's own clock, because the clocks of its users differ.
///
/// Ids of holds are text of up to 1,024 bytes without control characters, and names of owners of up
/// to 256 bytes ([`Owner::MAX_NAME_LEN`](crate::Owner::MAX_NAME_LEN)). A batch of renewals names a
/// hold once. A reader that is refused because of a waiting writer (C25) is told when that writer's
/// time is over, and growth of a reader that is gone while others read may be answered `Held` or
/// `NotHeld` (C7).
///
/// Rows and keys of what has ended may stay in the store if nobody is told of them (C14, C15) and
/// they are removed at some time. There is no limit on how late: a store whose rows are removed by
/// its clients keeps them until one comes.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The modes that this backend supports.
    fn capabilities(&self) -> Capabilities;

    /// The limits on the size of requests: [`Limits::default`] if the store has none of its own.
    /// Every clause applies to requests within the limits. The core sends no others.
    fn limits(&self) -> Limits;

    /// For how long the store has been the same, as far as this backend has seen: [`Duration::MAX`]
    /// if it has never changed, and less if it was restarted or replaced by a replica, and so may
    /// lack data that was written before. `None` if the backend cannot tell.
    ///
    /// After an answer to a request, this is about the store that gave it. A quorum uses it to keep
    /// changed stores out for a while; lockcore itself does not call this method.
    fn intact_for(&self) -> Option<Duration>;

    /// Takes the hold if the name is free, or held by the same owner.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError>;

    /// Extends each of `holds` to its lease, counted from now. The answers have the order of the
    /// requests.
    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError>;

    /// Gives a hold back, or lowers its count.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError>;

    /// Frees `name`, whoever holds it. Returns `true` if it was held.
    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError>;

    /// Reports the holders of `name`.
    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError>;

    /// Subscribes to the ends of holds of a name, or to the demand for it. The subscription is in
    /// effect when this returns, and ends when the [`Wakeups`] are dropped.
    async fn subscribe(&self, request: &SubscribeRequest)
    -> Result<Box<dyn Wakeups>, BackendError>;

    /// Sets the number of leased permits that a semaphore has, taken or not, and creates the
    /// semaphore if necessary. The number is remembered forever. Called only with
    /// [`Capabilities::PERMITS`]; a backend without them returns [`BackendError::unsupported`].
    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError>;

    /// Makes sure that every later grant of `name` carries a token greater than `token`. A store
    /// whose tokens are greater already changes nothing. Called only with
    /// [`Capabilities::PROPOSED_TOKENS`]; a backend without it returns
    /// [`BackendError::unsupported`].
    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError>;

    /// The latches of this store, or `None` if it has none.
    fn latches(&self) -> Option<&dyn Latches>;

    /// The conditions of this store, or `None` if it has none.
    fn conditions(&self) -> Option<&dyn Conditions>;

    /// The names in use at this store and its clients, or `None` if it cannot tell.
    fn directory(&self) -> Option<&dyn Directory>;
}

/// A subscription to the ends of holds of one name, or to the demand for it.
#[async_trait]
pub trait Wakeups: fmt::Debug + Send + Sync {
    /// Resolves when a hold may have ended since the last call, the lock may be wanted, or the hold
    /// that the subscription is for was granted.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no wake-up is lost.
    async fn woken(&mut self) -> Wakeup;
}
