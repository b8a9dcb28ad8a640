//! [`Lane`]: everything that one client knows about one name, and the decisions that follow from
//! it.
//!
//! Each method is an event. Its result answers the caller that reports it; everything else to be
//! done is in [`Effects`].
//!
//! | event | reported by | what may follow |
//! |---|---|---|
//! | [`arrive`] | an acquisition | it nests, is refused, or gets a [`Ticket`] |
//! | [`step`] | a waiter that was woken, or whose time has come | a [`Step`] |
//! | [`pending`] | a waiter whose request is not answered at once | a bound in time |
//! | [`granted`] | a waiter's request | a hold |
//! | [`refused`], [`failed`], [`late`] | the same | it waits, or gives up |
//! | [`heard`], [`listening`] | a subscription | the head asks again |
//! | [`told`] | the same, of a fair waiter | a hold |
//! | [`leave`] | a waiter that gives up or is dropped | the next one moves on |
//! | [`take_over`] | the head, after [`Step::TakeOver`] | the parked hold is its own |
//! | [`wanted`] | a subscription to the demand | a kept hold is given back |
//! | [`admit`] | an owner that reads beside its write hold | a hold beside the queue |
//! | [`enter`], [`grow`], [`grown`] | a nested acquisition | one more guard |
//! | [`extend`], [`extended`] | a guard that wants more lease | a later deadline |
//! | [`depart`] | a guard | the hold goes on, is parked, or is released |
//! | [`begin_release`], [`end_release`] | a release, an undo | those that wait for it ask again |
//! | [`due`] | the background task | renewals, losses, releases of parked holds |
//! | [`renewed`], [`renewal_failed`], [`gone`] | a renewal | the hold lasts, or is lost |
//! | [`close`] | `Locks::close()` | everything is released |
//!
//! [`arrive`]: Lane::arrive
//! [`step`]: Lane::step
//! [`pending`]: Lane::pending
//! [`granted`]: Lane::granted
//! [`refused`]: Lane::refused
//! [`failed`]: Lane::failed
//! [`late`]: Lane::late
//! [`heard`]: Lane::heard
//! [`listening`]: Lane::listening
//! [`told`]: Lane::told
//! [`leave`]: Lane::leave
//! [`take_over`]: Lane::take_over
//! [`wanted`]: Lane::wanted
//! [`admit`]: Lane::admit
//! [`enter`]: Lane::enter
//! [`grow`]: Lane::grow
//! [`grown`]: Lane::grown
//! [`extend`]: Lane::extend
//! [`extended`]: Lane::extended
//! [`depart`]: Lane::depart
//! [`begin_release`]: Lane::begin_release
//! [`end_release`]: Lane::end_release
//! [`due`]: Lane::due
//! [`renewed`]: Lane::renewed
//! [`renewal_failed`]: Lane::renewal_failed
//! [`gone`]: Lane::gone
//! [`close`]: Lane::close

mod asking;
mod granting;
mod holding;
mod waiting;

use smallvec::SmallVec;

use super::{
    hold::{Grant, HoldNumber, HoldState, Phase, ReleaseNumber},
    queue::{Asker, Outage, Refusal, Ticket, WaitQueue},
    turns::{HandOver, Turns},
};
use crate::{FencingToken, LockError, LossReason, Mode, Owner, time::Moment};

/// The holds and waiters of one client for one name, used as one kind of lock.
///
/// The driver keeps a `W` with each waiter and an `H` with each hold. The engine never looks at
/// these.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Lane<W, H> {
    holds: SmallVec<[Hold<H>; 1]>,
    queue: WaitQueue<W>,
    /// Releases of this client that are not answered yet, in rising order.
    releasing: SmallVec<[ReleaseNumber; 2]>,
    next_number: u64,
    /// The last refusal of the backend for the waiters in line.
    refusal: Refusal,
    /// The number of refused requests of patient waiters.
    refusals: u64,
    outage: Option<Box<Outage>>,
    turns: Turns,
    /// For how long this client keeps the lock for its own tasks, if at all.
    hand_over: Option<HandOver>,
    /// Readers up to this one may ask beside the head: a reader of this client is inside.
    readers_through: Option<Ticket>,
    /// Requests that were not answered at once, with the times when they were sent.
    pending: SmallVec<[(Ticket, Moment); 1]>,
}

/// One owner's hold.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Hold<F> {
    pub(crate) number: HoldNumber,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    /// Set once a guard was asked for the token. A token that nobody knows can be used again.
    is_token_known: bool,
    /// Set once another client wants the lock: the hold is not kept if no task of this client
    /// waits.
    is_wanted: bool,
    pub(crate) state: HoldState,
    /// Set if the hold may be handed over.
    grant: Option<Box<Grant>>,
    /// The data of the driver.
    pub(crate) facts: F,
}

impl<F> Hold<F> {
    /// Returns `true` if its guards may rely on it.
    pub(crate) fn is_live(&self, now: Moment) -> bool {
        self.state.phase() == Phase::Live && now < self.state.deadline()
    }
}

/// A hold to be given back to the backend.
#[derive(Debug)]
pub(crate) struct Release<F> {
    pub(crate) number: ReleaseNumber,
    pub(crate) mode: Mode,
    /// The latest time at which the hold ends by itself.
    pub(crate) until: Moment,
    pub(crate) facts: F,
}

/// The effects of an event, beside its result.
#[derive(Debug)]
pub(crate) struct Effects<F> {
    /// Waiters that have to take a [`step`](Lane::step).
    pub(crate) wake: SmallVec<[Ticket; 2]>,
    /// The time at which the lane has to be [looked at](Lane::due).
    pub(crate) due: Option<Moment>,
    /// Effects that most events do not have.
    pub(crate) rare: Vec<Effect<F>>,
}

/// A rare effect of an event.
#[derive(Debug)]
pub(crate) enum Effect<F> {
    /// This hold was just lost.
    Lost(HoldNumber, LossReason),
    /// A parked hold that nobody takes over.
    Release(Release<F>),
    /// The request of this waiter has to be undone: nobody looks at its answer.
    Undo(Ticket),
    /// The grant of this lost hold has to be undone: it may have left a place in a queue.
    UndoLost(HoldNumber),
    /// The driver's data of a hold that is over and needs no release.
    Over(F),
}

impl<F> Default for Effects<F> {
    fn default() -> Self {
        Self { wake: SmallVec::new(), due: None, rare: Vec::new() }
    }
}

impl<F> Effects<F> {
    /// Returns `true` if there is nothing to be done now.
    pub(crate) fn is_quiet(&self) -> bool {
        self.wake.is_empty() && self.rare.is_empty()
    }

    /// Returns `true` if this hold was lost in the event.
    pub(crate) fn has_lost(&self, hold: HoldNumber) -> bool {
        self.rare.iter().any(|effect| matches!(effect, Effect::Lost(lost, _) if *lost == hold))
    }

    /// Something is due at `moment`.
    fn due_at(&mut self, moment: Option<Moment>) {
        self.due = match (self.due, moment) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

/// How an owner that is inside already enters again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// One more guard of this hold is counted.
    Entered(HoldNumber),
    /// This hold needs more lease first.
    Grow(HoldNumber),
    /// It reads beside its own write hold.
    Within(HoldNumber),
    /// It holds the read lock, and cannot become a writer.
    Upgrade,
    /// Its hold was lost, and still has guards.
    Lost(LossReason),
    /// Its hold has as many guards as can be counted.
    TooDeep,
}

/// The next step of a waiter, or of an acquisition that arrives and gets no place.
#[derive(Debug)]
pub(crate) enum Step {
    /// Its owner got in meanwhile. It has left the queue.
    Inside(Nesting),
    /// It takes over the parked hold: [`Lane::take_over`] has to follow.
    TakeOver,
    /// It would have to wait, and did not want to. It has left the queue.
    Refused,
    /// The waiters before it have tolerated this error for the longest allowed time. It has left
    /// the queue.
    Failed(Box<LockError>),
    /// It waits until it is woken, but no longer than `until`. If it `listens`, it also waits for
    /// the backend to report that the lock may be free.
    Wait { until: Option<Moment>, listens: bool },
    /// It asks the backend, for several `tokens` if others may take the hold over. `turn_since` is
    /// when this client's turn began, if it has one. `held_until` is when the hold in the way ends,
    /// if the backend has reported that and there was no news since.
    Ask { tokens: u32, turn_since: Option<Moment>, held_until: Option<Moment> },
}

/// The consequence of the departure of a guard.
#[derive(Debug)]
pub(crate) enum Parting<F> {
    /// Other guards remain. `store` is `true` if the backend counts more guards than there are.
    Nested { store: bool },
    /// The hold is parked for the next task of this client.
    HandedOver,
    /// The hold is parked although no task of this client waits. It is given back when its time is
    /// over, or when another client [wants](Lane::wanted) it.
    Kept,
    /// The hold is to be given back.
    Release(Release<F>),
    /// The hold was lost. Where the backend may still have it, it is given back with its last
    /// guard.
    Lost { reason: LossReason, release: Option<Release<F>> },
    /// `Locks::close()` had taken the hold back.
    Closed,
}

/// The possible fate of a hold when its last guard goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// It is given back.
    Never,
    /// It may be handed over to a task that waits.
    ForWaiters,
    /// It may also be kept for a while if none waits.
    ForAWhile,
}

impl<W, H> Lane<W, H> {
    /// An idle lane. `hand_over` says for how long the client keeps a lock for its own tasks, if at
    /// all.
    pub(crate) fn new(hand_over: Option<HandOver>) -> Self {
        Self {
            holds: SmallVec::new(),
            queue: WaitQueue::default(),
            releasing: SmallVec::new(),
            next_number: 0,
            refusal: Refusal::default(),
            refusals: 0,
            outage: None,
            turns: Turns::default(),
            hand_over,
            readers_through: None,
            pending: SmallVec::new(),
        }
    }

    /// An idle lane for the exploration, which has to tell apart the kinds of numbers: those of
    /// kind `k` begin at `k << bits`.
    #[cfg(test)]
    pub(super) fn explored(hand_over: Option<HandOver>, bits: u32) -> Self {
        let mut lane = Self::new(hand_over);
        (lane.next_number, lane.refusals) = (1 << bits, 2 << bits);
        lane.queue.number_from(3 << bits);
        lane
    }

    /// Returns `true` if nothing would be lost by dropping the lane.
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.releasing.is_empty()
    }

    /// Returns `true` if a release is under way.
    pub(crate) fn is_releasing(&self) -> bool {
        !self.releasing.is_empty()
    }

    /// The lane is idle: forgets the state that only matters to waiters that come soon.
    pub(crate) fn rest(&mut self) {
        self.refusal = Refusal::default();
        self.outage = None;
        self.turns.rest();
        self.readers_through = None;
    }

    /// The holds that have guards, and the parked one.
    pub(crate) fn holds(&self) -> &[Hold<H>] {
        &self.holds
    }

    pub(crate) fn hold(&self, number: HoldNumber) -> Option<&Hold<H>> {
        self.holds.iter().find(|hold| hold.number == number)
    }

    pub(crate) fn hold_mut(&mut self, number: HoldNumber) -> Option<&mut Hold<H>> {
        self.holds.iter_mut().find(|hold| hold.number == number)
    }

    /// The data of the driver for a waiter.
    pub(crate) fn waiter_mut(&mut self, ticket: Ticket) -> Option<&mut W> {
        self.queue.get_mut(ticket).map(|waiter| &mut waiter.slot)
    }

    /// Every waiter, with the data of the driver for it.
    pub(crate) fn waiters_mut(&mut self) -> impl Iterator<Item = (&Asker, &mut W)> {
        self.queue.all_mut().map(|waiter| (&waiter.asker, &mut waiter.slot))
    }

    /// The number of patient waiters.
    pub(crate) fn patient(&self) -> usize {
        self.queue.patient()
    }

    /// Returns `true` if anybody waits in line, and could use a subscription.
    pub(crate) fn has_line(&self) -> bool {
        !self.queue.is_line_empty()
    }

    fn parked(&self) -> Option<usize> {
        self.holds.iter().position(|hold| hold.state.phase() == Phase::Parked)
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Something may have freed the lock: the head asks again.
    fn news(&mut self, fx: &mut Effects<H>) {
        self.refusal.outdate();
        self.wake_head(fx);
    }

    fn wake_head(&self, fx: &mut Effects<H>) {
        if let Some((head, _)) = self.queue.head() {
            fx.wake.push(head);
        }
    }

    /// Wakes the waiters of an owner: one of them got in, or is no longer asking.
    fn wake_owner(&self, owner: &Owner, fx: &mut Effects<H>) {
        fx.wake.extend_from_slice(self.queue.of_owner(owner));
    }

    /// Checks the deadline of a hold, as every event of a hold does first. A loss is noticed here
    /// and in [`gone`](Self::gone), and nowhere else.
    fn settle(&mut self, at: usize, now: Moment, fx: &mut Effects<H>) {
        let hold = &mut self.holds[at];
        if hold.state.settle(now) {
            fx.rare.push(Effect::Lost(hold.number, LossReason::LeaseEnded));
            // A hold that was lost here may be free at the backend.
            self.news(fx);
        }
    }
}
