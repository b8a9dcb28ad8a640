//! The local layer: per name, the holds of this client and the queue of its tasks that wait.
//!
//! Tasks queue first in, first out, and only the head of a queue talks to the backend. What the head learns is kept
//! here, not in the head, so that a head that gives up takes nothing with it: neither the subscription nor a wake-up
//! that it had heard but not yet acted on.
//!
//! A hold that its last guard has left can be *parked*: it waits here for the head, which takes it over as a hold of its own without
//! the backend's doing. Whatever becomes of the head, it does not stay: the background task gives back what nobody has taken in time.
//!
//! An entry exists only while its name has a hold, a waiter or a release under way: an idle name costs nothing.

mod place;
mod queue;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use dashmap::{DashMap, mapref::entry::Entry as Slot};
use rustc_hash::FxBuildHasher;
use tokio::sync::Notify;

pub(crate) use self::place::{Place, Step};
use self::queue::{Queue, Waiter};
use crate::{
    HoldId, LockError, LockName, Mode, Owner, Wakeups,
    acquiring::{
        TaskKey,
        retry::random_fraction,
        seats::{Seat, Seats},
    },
    backend::Kind,
    leases::{clock::Moment, hold::Hold, lease::Lease, renewal::Schedule},
};

/// Everything that is going on under any name. Its locks are short and never held across an await.
#[derive(Debug)]
pub(crate) struct Names {
    entries: DashMap<Lane, Entry, FxBuildHasher>,
    /// For those who wait, in whatever lane.
    pub(crate) seats: Arc<Seats>,
    /// Where it is noted until when a hold may be parked.
    schedule: Arc<Schedule>,
    /// For how long holds are handed on, if they are.
    pub(crate) hand_over: Option<Duration>,
}

/// For how long who has had its time of handing on leaves the lock to other clients. They are woken by the release, but those of this client
/// are nearer, and would be the first to ask each time.
const COURTESY: Duration = Duration::from_millis(3);

/// Within what time those ask that are woken and have had their turn before.
const SPREAD: Duration = Duration::from_millis(2);

/// How many turns are followed by no courtesy, once it has been in vain as often.
const MOST_TURNS_IN_A_ROW: u8 = 4;

/// Where acquisitions of one client queue for each other: one lane for a name and what it is used as; but for fair locks one for each
/// owner, since it is the backend that keeps the order of all, and each of them has to ask for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    name: LockName,
    kind: Kind,
    owner: Option<Owner>,
}

impl Lane {
    pub(crate) fn new(name: &LockName, mode: Mode, owner: &Owner) -> Self {
        let owner = (mode == Mode::Fair).then(|| owner.clone());
        Self { name: name.clone(), kind: mode.kind(), owner }
    }

    /// Where `owner` has its holds of a lock if it acquired them fairly here and not there, or the other way round.
    fn other(&self, owner: &Owner) -> Option<Self> {
        let owner = self.owner.is_none().then(|| owner.clone());
        (self.kind == Kind::Lock).then(|| Self { name: self.name.clone(), kind: self.kind, owner })
    }
}

#[derive(Debug, Default)]
struct Entry {
    holds: Vec<Arc<Hold>>,
    /// A hold that is over, and still at the backend for whoever is first.
    parked: Option<Arc<Hold>>,
    queue: Queue,
    /// Releases of this client that have not had their first answer, by their number.
    releasing: BTreeSet<u64>,
    next_release: u64,
    outlook: Outlook,
    /// The subscription, while no head has it.
    wakeups: Option<Box<dyn Wakeups>>,
}

/// What is known of the backend: whether an attempt is worth it.
#[derive(Debug, Default)]
struct Outlook {
    /// Refused, and until when nothing is expected to change. `None`: try.
    refused_until: Option<Moment>,
    /// Counts the refusals of heads that wait.
    refusals: u64,
    /// Counts what may have freed the lock, so that an attempt knows whether something came after it.
    news: u64,
    trouble: Option<Box<Trouble>>,
    /// Since when this client has had the lock, by turns of its tasks.
    since: Option<Moment>,
    /// Until then it is left to other clients.
    left_until: Option<Moment>,
    /// Those who wait here have had the lock before.
    had_turn: bool,
    /// How often in a row nobody has wanted what was left to others, and for how many turns it is not left to them for that.
    in_vain: u8,
    turns_to_come: u8,
}

/// A backend that gives no answer.
#[derive(Debug)]
struct Trouble {
    since: Moment,
    last: Moment,
    error: LockError,
    /// The first ticket that was not given out when it last failed.
    later: u64,
}

/// An acquisition that comes to its lane.
#[derive(Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) mode: Mode,
    pub(crate) owner: &'a Owner,
    /// Nobody else has this owner.
    pub(crate) is_lone: bool,
    pub(crate) waits: bool,
    /// The lease with which it could take over a hold.
    pub(crate) heir: Option<Lease>,
}

/// How an acquisition stands when it arrives at a name.
#[derive(Debug)]
pub(crate) enum Arrival {
    Inside(Inside),
    /// It would have to wait, and did not want to.
    Contended,
    /// It wanted to wait, and there is no seat.
    Full(LockError),
    Queued(Place),
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
    fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.parked.is_none() && self.queue.is_empty() && self.releasing.is_empty()
    }

    fn is_parked(&self, hold: &Arc<Hold>) -> bool {
        self.parked.as_ref().is_some_and(|parked| Arc::ptr_eq(parked, hold))
    }

    /// Whether the head can take over `hold`.
    fn has_heir(&self, hold: &Hold, now: Moment) -> bool {
        let heir = self.queue.head().and_then(|head| head.heir);
        heir.is_some_and(|lease| hold.suits(lease, now))
    }

    /// Whether the head will be signalled when there is something for it to do: while a hold of this client may be handed to it.
    fn may_rest(&self, now: Moment) -> bool {
        self.holds.iter().any(|hold| hold.window().is_some_and(|window| now < window) && hold.is_live(now))
    }

    /// What `owner`, who asks for the lock in `mode`, holds of it.
    fn inside(&self, owner: &Owner, mode: Mode) -> Option<Inside> {
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
    fn turns_away(&self, mode: Mode, now: Moment) -> bool {
        let mut live = self.holds.iter().filter(|hold| hold.is_live(now));
        if !mode.is_shared() {
            return !self.queue.is_empty() || live.next().is_some();
        }
        // Those before it may all get in.
        let is_stuck = !self.queue.is_empty() && self.outlook.refused_until.is_some();
        is_stuck || live.any(|hold| hold.mode == Mode::Write)
    }

    /// Admits a hold, and lets in whoever waits for the same owner.
    fn admit(&mut self, hold: &Arc<Hold>, until: Moment) {
        self.holds.push(hold.clone());
        self.outlook.refused_until = (!hold.mode.is_shared()).then_some(until);
        if !hold.mode.is_shared() {
            // Nobody asks now who could be refused for those who do not want to wait.
            self.outlook.refusals += 1;
            self.signal_impatient();
        }
        for waiter in self.queue.of(&hold.owner) {
            waiter.signal.notify_one();
        }
    }

    /// Admits a hold that the backend has just granted.
    fn admit_granted(&mut self, hold: &Arc<Hold>) {
        self.outlook.trouble = None;
        self.outlook.since.get_or_insert(hold.sent());
        self.admit(hold, hold.deadline());
    }

    /// Those who do not want to wait need not wait for the others.
    fn signal_impatient(&self) {
        for waiter in self.queue.impatient() {
            waiter.signal.notify_one();
        }
    }

    fn signal_head(&self) {
        if let Some(head) = self.queue.head() {
            head.signal.notify_one();
        }
    }

    /// Leaves the lock to other clients if those who wait here have had their time.
    fn end_turn(&mut self, hand_over: Option<Duration>, now: Moment) {
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

    /// Others have given the lock back. All clients learn of it one after the other, always in the same order: so those that have had
    /// their turn come after those that have not, and among themselves in no order.
    fn woken(&mut self, now: Moment) {
        if self.outlook.had_turn {
            let until = now.after(SPREAD.mul_f64(random_fraction()));
            self.outlook.left_until = self.outlook.left_until.max(Some(until));
        }
        self.news();
    }

    /// Notes a release, and returns its number.
    fn begin_release(&mut self) -> u64 {
        let number = self.next_release;
        self.next_release += 1;
        self.releasing.insert(number);
        number
    }

    /// Something may have freed the lock.
    fn news(&mut self) {
        self.outlook.news += 1;
        self.outlook.refused_until = None;
        self.signal_head();
    }
}

impl Names {
    pub(crate) fn new(seats: Arc<Seats>, schedule: Arc<Schedule>, hand_over: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { entries: DashMap::default(), seats, schedule, hand_over })
    }

    /// Brings an acquisition to its lane. One that does not want to wait only queues if it may be granted at once.
    pub(crate) fn arrive(self: &Arc<Self>, newcomer: Newcomer<'_>, now: Moment) -> Arrival {
        let Newcomer { lane, mode, owner, is_lone, waits, heir } = newcomer;
        if !is_lone && let Some(inside) = lane.other(owner).and_then(|other| self.inside(&other, mode, owner))
        {
            return Arrival::Inside(inside);
        }
        let mut entry = self.entries.entry(lane.clone()).or_default();
        if !is_lone && let Some(inside) = entry.inside(owner, mode) {
            return Arrival::Inside(inside);
        }
        if !waits && entry.turns_away(mode, now) {
            return Arrival::Contended;
        }
        let seat = match waits.then(|| self.seat(lane, &entry)).transpose() {
            Ok(seat) => seat,
            Err(error) => {
                drop(entry);
                self.change(lane, |_| ());
                return Arrival::Full(error);
            }
        };
        let signal = Arc::new(Notify::new());
        let waiter = Waiter { owner: owner.clone(), is_lone, waits, heir, signal: signal.clone() };
        Arrival::Queued(Place {
            names: self.clone(),
            lane: lane.clone(),
            mode,
            owner: owner.clone(),
            is_lone,
            waits,
            heir,
            ticket: entry.queue.push(waiter),
            releases_before: entry.next_release,
            refusals_before: entry.outlook.refusals,
            signal,
            wakeups: None,
            ignores_releases: false,
            is_in: true,
            _seat: seat,
        })
    }

    /// A seat for one that waits. Where all who wait for a name are in one lane, they are counted there.
    fn seat(&self, lane: &Lane, entry: &Entry) -> Result<Seat, LockError> {
        match lane.owner {
            None => self.seats.take_behind(entry.queue.patient(), &lane.name),
            Some(_) => self.seats.take(&lane.name),
        }
    }

    /// What `owner` holds in `lane`.
    pub(crate) fn inside(&self, lane: &Lane, mode: Mode, owner: &Owner) -> Option<Inside> {
        self.entries.get(lane)?.inside(owner, mode)
    }

    /// Registers a hold that was granted past the queue. `accept` decides under the lock of the name whether it may still be.
    pub(crate) fn register(&self, hold: &Arc<Hold>, accept: impl FnOnce() -> bool) -> bool {
        let lane = hold.lane();
        let mut entry = self.entries.entry(lane.clone()).or_default();
        let accepted = accept();
        if accepted {
            entry.admit_granted(hold);
        } else {
            drop(entry);
            self.change(&lane, |_| ());
        }
        accepted
    }

    /// Changes the entry of `lane`, if there is one, and removes it if that left it idle. A subscription that nobody needs any more
    /// is dropped outside of the map's lock.
    fn change(&self, lane: &Lane, change: impl FnOnce(&mut Entry)) {
        let Slot::Occupied(mut slot) = self.entries.entry(lane.clone()) else { return };
        let entry = slot.get_mut();
        change(entry);
        let unneeded = if entry.queue.is_empty() { entry.wakeups.take() } else { None };
        if let Some(parked) = entry.parked.as_ref().filter(|_| entry.queue.is_empty()) {
            self.schedule.hurry(parked);
        }
        if entry.is_idle() {
            slot.remove();
        } else {
            drop(slot);
        }
        drop(unneeded);
    }

    /// Something may have freed the lock: the head of `lane` tries again.
    pub(crate) fn wake(&self, lane: &Lane) {
        self.change(lane, Entry::news);
    }

    /// Takes out `hold`, which is over, to be released.
    pub(crate) fn withdraw(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) -> Releasing {
        self.releasing_after(&hold.lane(), |entry| {
            entry.holds.retain(|other| !Arc::ptr_eq(other, hold));
            entry.end_turn(self.hand_over, now);
        })
    }

    /// Notes that a release is on its way. Until the result is dropped, no acquisition in this lane asks the
    /// backend: whoever drops a guard and then tries the lock must not be refused by his own hold.
    pub(crate) fn releasing(self: &Arc<Self>, lane: &Lane) -> Releasing {
        self.releasing_after(lane, |_| ())
    }

    fn releasing_after(self: &Arc<Self>, lane: &Lane, change: impl FnOnce(&mut Entry)) -> Releasing {
        let mut entry = self.entries.entry(lane.clone()).or_default();
        change(&mut entry);
        let number = entry.begin_release();
        Releasing { names: self.clone(), lane: lane.clone(), number }
    }

    /// Parks `hold`, which is over, for whoever is first in its lane. False if it has to be released instead. `accept` decides under the
    /// lock of the name whether it may be parked.
    pub(crate) fn park(&self, hold: &Arc<Hold>, now: Moment, accept: impl FnOnce() -> bool) -> bool {
        if hold.window().is_none() {
            return false;
        }
        let Some(mut entry) = self.entries.get_mut(&hold.lane()) else { return false };
        if !entry.has_heir(hold, now) || !accept() {
            return false;
        }
        entry.holds.retain(|other| !Arc::ptr_eq(other, hold));
        entry.parked = Some(hold.clone());
        entry.signal_head();
        true
    }

    /// Takes `hold` out, to be released, if it is parked and nobody is there who may take it over.
    pub(crate) fn unpark(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) -> Option<Releasing> {
        let lane = hold.lane();
        let mut entry = self.entries.get_mut(&lane).filter(|entry| entry.is_parked(hold))?;
        if entry.has_heir(hold, now) {
            self.schedule.set(hold, hold.window()?);
            return None;
        }
        entry.parked = None;
        entry.end_turn(self.hand_over, now);
        let number = entry.begin_release();
        Some(Releasing { names: self.clone(), lane, number })
    }

    /// As [`unpark`](Self::unpark), whoever is there.
    pub(crate) fn unpark_anyway(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<Releasing> {
        hold.close_window();
        self.unpark(hold, hold.sent())
    }

    /// Forgets what is parked of these holds, which the backend no longer has.
    pub(crate) fn forget_parked(&self, name: &LockName, ids: &[HoldId]) {
        let is_over = |parked: &Arc<Hold>| &parked.name == name && ids.contains(&parked.id);
        for parked in self.all_parked().into_iter().filter(is_over) {
            self.change(&parked.lane(), |entry| {
                if entry.is_parked(&parked) {
                    entry.parked = None;
                    entry.news();
                }
            });
        }
    }

    /// Every parked hold of this client.
    pub(crate) fn all_parked(&self) -> Vec<Arc<Hold>> {
        self.entries.iter().filter_map(|entry| entry.parked.clone()).collect()
    }

    /// Has the head of `lane` look for itself: it rests no more.
    pub(crate) fn rouse(&self, lane: &Lane) {
        self.change(lane, |entry| entry.signal_head());
    }

    /// The holds of `name` that are registered here, live or lost, in whatever lane. Looks at all names: for operators.
    pub(crate) fn holds_of(&self, name: &LockName) -> Vec<Arc<Hold>> {
        let mut holds = self.all_holds();
        holds.retain(|hold| &hold.name == name);
        holds
    }

    /// What the backend may have of `name` for this client.
    pub(crate) fn ids_of(&self, name: &LockName) -> Vec<HoldId> {
        let parked = self.all_parked().into_iter().filter(|parked| &parked.name == name);
        self.holds_of(name).into_iter().chain(parked).map(|hold| hold.id.clone()).collect()
    }

    /// The live hold that `task` has in `lane` under another owner than `owner`.
    pub(crate) fn held_by_task(
        &self,
        lane: &Lane,
        task: TaskKey,
        owner: &Owner,
        now: Moment,
    ) -> Option<Arc<Hold>> {
        let entry = self.entries.get(lane)?;
        entry
            .holds
            .iter()
            .find(|hold| hold.task == task && &hold.owner != owner && hold.is_live(now))
            .cloned()
    }

    /// Every hold of this client, in the order of the tokens: that of the map differs from machine to machine.
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let mut holds: Vec<_> = self.entries.iter().flat_map(|entry| entry.holds.clone()).collect();
        holds.sort_by(|one, other| (one.token, &one.name).cmp(&(other.token, &other.name)));
        holds
    }
}

/// A release on its way; see [`Names::releasing`].
#[derive(Debug)]
pub(crate) struct Releasing {
    names: Arc<Names>,
    lane: Lane,
    number: u64,
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.names.change(&self.lane, |entry| {
            entry.releasing.remove(&self.number);
            entry.news();
        });
    }
}
