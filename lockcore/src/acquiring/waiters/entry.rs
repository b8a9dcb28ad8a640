//! [`Entry`]: what is known of a lane, and what follows from it. Without a clock: whoever calls says what time it is.

use std::{mem, sync::Arc, task::Waker, time::Duration};

use smallvec::SmallVec;

use super::queue::Queue;
use crate::{
    LockError, Mode, Owner,
    acquiring::retry::random_fraction,
    backend::Wakeups,
    leases::{clock::Moment, hold::Hold},
};

/// For how long who has had its time of handing on leaves the lock to other clients. They are woken by the release, but those of this client
/// are nearer, and would be the first to ask each time.
const COURTESY: Duration = Duration::from_millis(3);

/// Within what time those ask that are woken and have had their turn before.
const SPREAD: Duration = Duration::from_millis(2);

/// How many turns are followed by no courtesy, once it has been in vain as often.
const MOST_TURNS_IN_A_ROW: u8 = 4;

/// The holds, the queue, and what is known of the backend.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) holds: SmallVec<[Arc<Hold>; 1]>,
    /// A hold that is over, and still at the backend for whoever is first.
    pub(super) parked: Option<Arc<Hold>>,
    pub(super) queue: Queue,
    /// Releases of this client that have not had their first answer, by their numbers, which rise.
    releasing: SmallVec<[u64; 1]>,
    pub(super) next_release: u64,
    pub(super) outlook: Outlook,
    /// The subscription, while no head has it.
    pub(super) wakeups: Option<Box<dyn Wakeups>>,
    /// It was idle, and is no longer in the map: if the lane is in use, there is another.
    pub(super) is_gone: bool,
    signalled: Signalled,
}

/// What is known of the backend: whether an attempt is worth it.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// Refused, and until when nothing is expected to change. `None`: try.
    pub(super) refused_until: Option<Moment>,
    /// Counts the refusals of heads that wait.
    pub(super) refusals: u64,
    /// Counts what may have freed the lock, so that an attempt knows whether something came after it.
    pub(super) news: u64,
    pub(super) trouble: Option<Box<Trouble>>,
    /// Since when this client has had the lock, by turns of its tasks.
    pub(super) since: Option<Moment>,
    /// Until then it is left to other clients.
    pub(super) left_until: Option<Moment>,
    /// Those who wait here have had the lock before.
    had_turn: bool,
    /// How often in a row nobody has wanted what was left to others, and for how many turns it is not left to them for that.
    pub(super) in_vain: u8,
    pub(super) turns_to_come: u8,
}

/// A backend that gives no answer.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) since: Moment,
    pub(super) last: Moment,
    pub(super) error: LockError,
    /// The first ticket that was not given out when it last failed.
    pub(super) later: u64,
}

/// Those who have to be woken as soon as the entry is no longer locked: hardly ever more than one.
#[derive(Debug, Default)]
pub(super) enum Signalled {
    #[default]
    Nobody,
    One(Waker),
    Several(Vec<Waker>),
}

impl Signalled {
    fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            *self = match mem::take(self) {
                Self::Nobody => Self::One(waker),
                Self::One(first) => Self::Several(vec![first, waker]),
                Self::Several(mut wakers) => {
                    wakers.push(waker);
                    Self::Several(wakers)
                }
            };
        }
    }

    pub(super) fn wake(self) {
        match self {
            Self::Nobody => {}
            Self::One(waker) => waker.wake(),
            Self::Several(wakers) => wakers.into_iter().for_each(Waker::wake),
        }
    }
}

/// What the owner of an acquisition holds already.
#[derive(Debug)]
pub(crate) enum Inside {
    /// It enters this hold once more.
    Nested(Arc<Hold>),
    /// It reads beside this write hold of its own.
    Within(Arc<Hold>),
    /// It cannot write while it has this read hold.
    Upgrade(Arc<Hold>),
}

impl Entry {
    pub(super) fn is_idle(&self) -> bool {
        self.holds.is_empty()
            && self.parked.is_none()
            && self.queue.is_empty()
            && self.releasing.is_empty()
    }

    pub(super) fn take_signalled(&mut self) -> Signalled {
        mem::take(&mut self.signalled)
    }

    pub(super) fn is_parked(&self, hold: &Arc<Hold>) -> bool {
        self.parked.as_ref().is_some_and(|parked| Arc::ptr_eq(parked, hold))
    }

    /// Whether the head could take over a hold.
    pub(super) fn hands_over(&self) -> bool {
        self.queue.head().is_some_and(|head| head.heir.is_some())
    }

    /// Whether the head can take over `hold`.
    pub(super) fn has_heir(&self, hold: &Hold, now: Moment) -> bool {
        let heir = self.queue.head().and_then(|head| head.heir);
        heir.is_some_and(|lease| hold.suits(lease, now))
    }

    /// Whether the head will be signalled when there is something for it to do: while a hold of this client may be handed to it.
    pub(super) fn may_rest(&self, now: Moment) -> bool {
        self.holds.iter().any(|hold| hold.may_be_handed_on(now))
    }

    /// What `owner`, who asks for the lock in `mode`, holds of it.
    pub(super) fn inside(&self, owner: &Owner, mode: Mode) -> Option<Inside> {
        let held_in = |held: fn(Mode) -> bool| {
            self.holds.iter().find(|hold| &hold.owner == owner && held(hold.mode)).cloned()
        };
        match mode {
            Mode::Exclusive | Mode::Fair => held_in(|_| true).map(Inside::Nested),
            Mode::Write => held_in(|held| held == Mode::Write)
                .map(Inside::Nested)
                .or_else(|| held_in(|held| held == Mode::Read).map(Inside::Upgrade)),
            Mode::Read => held_in(|held| held == Mode::Read)
                .map(Inside::Nested)
                .or_else(|| held_in(|held| held == Mode::Write).map(Inside::Within)),
            // Each acquisition takes permits of its own.
            Mode::Permit { .. } => None,
        }
    }

    /// Whether an acquisition that does not want to wait would have to.
    pub(super) fn turns_away(&self, mode: Mode, now: Moment) -> bool {
        let mut live = self.holds.iter().filter(|hold| hold.is_live(now));
        if !mode.is_shared() {
            return !self.queue.is_empty() || live.next().is_some();
        }
        // Those before it may all get in.
        let is_stuck = !self.queue.is_empty() && self.outlook.refused_until.is_some();
        is_stuck || live.any(|hold| hold.mode == Mode::Write)
    }

    /// Admits a hold, and lets in whoever waits for the same owner.
    pub(super) fn admit(&mut self, hold: &Arc<Hold>, until: Moment) {
        self.holds.push(hold.clone());
        self.outlook.refused_until = (!hold.mode.is_shared()).then_some(until);
        if !hold.mode.is_shared() {
            // Nobody asks now who could be refused for those who do not want to wait.
            self.outlook.refusals += 1;
            self.signal_impatient();
        }
        self.signalled.extend(self.queue.signal_owner(&hold.owner));
    }

    /// Admits a hold that the backend has just granted.
    pub(super) fn admit_granted(&mut self, hold: &Arc<Hold>) {
        self.outlook.trouble = None;
        self.outlook.since.get_or_insert(hold.sent());
        self.admit(hold, hold.deadline());
    }

    /// Takes out a hold that is over.
    pub(super) fn take_out(&mut self, hold: &Arc<Hold>) {
        if let Some(at) = self.holds.iter().position(|other| Arc::ptr_eq(other, hold)) {
            self.holds.remove(at);
        }
    }

    /// Those who do not want to wait need not wait for the others.
    pub(super) fn signal_impatient(&mut self) {
        self.signalled.extend(self.queue.signal_impatient());
    }

    pub(super) fn signal_head(&mut self) {
        self.signalled.extend(self.queue.signal_head());
    }

    pub(super) fn signal_all(&mut self) {
        self.signalled.extend(self.queue.signal_all());
    }

    /// Leaves the lock to other clients if those who wait here have had their time.
    pub(super) fn end_turn(&mut self, hand_over: Option<Duration>, now: Moment) {
        let outlook = &mut self.outlook;
        let (Some(hand_over), Some(from)) = (hand_over, outlook.since) else { return };
        outlook.had_turn = !self.queue.is_empty();
        if outlook.had_turn && now < from.after(hand_over) {
            return;
        }
        outlook.since = None;
        if !outlook.had_turn {
            return;
        }
        match outlook.turns_to_come.checked_sub(1) {
            Some(fewer) => outlook.turns_to_come = fewer,
            None => {
                outlook.left_until = Some(now.after(COURTESY));
                // Unless the next request is refused.
                outlook.in_vain = MOST_TURNS_IN_A_ROW.min(outlook.in_vain + 1);
                outlook.turns_to_come = outlook.in_vain;
            }
        }
    }

    /// The lock has been given back. All clients learn of it one after the other, always in the same order: so those that have had
    /// their turn come after those that have not, and among themselves in no order. Whose turn it still is has given it back himself.
    pub(super) fn woken(&mut self, now: Moment) {
        if self.outlook.had_turn && self.outlook.since.is_none() {
            let until = now.after(SPREAD.mul_f64(random_fraction()));
            self.outlook.left_until = self.outlook.left_until.max(Some(until));
        }
        self.news();
    }

    /// Notes a release, and returns its number.
    pub(super) fn begin_release(&mut self) -> u64 {
        let number = self.next_release;
        self.next_release += 1;
        self.releasing.push(number);
        number
    }

    pub(super) fn end_release(&mut self, number: u64) {
        if let Some(at) = self.releasing.iter().position(|other| *other == number) {
            self.releasing.remove(at);
        }
        self.news();
    }

    /// The oldest release that has had no answer.
    pub(super) fn first_release(&self) -> Option<u64> {
        self.releasing.first().copied()
    }

    /// Something may have freed the lock.
    pub(super) fn news(&mut self) {
        self.outlook.news += 1;
        self.outlook.refused_until = None;
        self.signal_head();
    }
}
