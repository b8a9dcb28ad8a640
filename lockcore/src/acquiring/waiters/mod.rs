//! The local layer: per name, the holds of this client and the queue of its tasks that wait.
//!
//! Tasks queue first in, first out, and only the head of a queue talks to the backend. What the head learns is kept
//! here, not in the head, so that a head that gives up takes nothing with it: neither the subscription nor a wake-up
//! that it had heard but not yet acted on.
//!
//! An entry exists only while its name has a hold, a waiter or a release under way: an idle name costs nothing.

mod place;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use dashmap::{DashMap, mapref::entry::Entry as Slot};
use tokio::sync::Notify;

pub(crate) use self::place::{Place, Step};
use crate::{
    LockError, LockName, Mode, Owner, Wakeups,
    acquiring::{TaskKey, seats::Seats},
    backend::Kind,
    leases::{clock::Moment, hold::Hold},
};

/// Everything that is going on under any name. Its locks are short and never held across an await.
#[derive(Debug)]
pub(crate) struct Names {
    entries: DashMap<Lane, Entry>,
    /// For those who wait, in whatever lane.
    pub(crate) seats: Arc<Seats>,
}

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
    /// By ticket: the first is the head.
    queue: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Releases of this client that have not had their first answer, by their number.
    releasing: BTreeSet<u64>,
    next_release: u64,
    outlook: Outlook,
    /// The subscription, while no head has it.
    wakeups: Option<Box<dyn Wakeups>>,
}

#[derive(Debug)]
struct Waiter {
    owner: Owner,
    waits: bool,
    signal: Arc<Notify>,
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
    trouble: Option<Trouble>,
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
        self.holds.is_empty() && self.queue.is_empty() && self.releasing.is_empty()
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

    /// Registers a hold, and lets in whoever waits for the same owner.
    fn register(&mut self, hold: &Arc<Hold>, until: Moment) {
        self.holds.push(hold.clone());
        self.outlook.trouble = None;
        self.outlook.refused_until = (!hold.mode.is_shared()).then_some(until);
        if self.queue.len() > 1 {
            for waiter in self.queue.values().filter(|waiter| waiter.owner == hold.owner) {
                waiter.signal.notify_one();
            }
        }
    }

    /// Those who do not want to wait need not wait for the others.
    fn signal_impatient(&self) {
        for waiter in self.queue.values().filter(|waiter| !waiter.waits) {
            waiter.signal.notify_one();
        }
    }

    fn signal_head(&self) {
        if let Some((_, head)) = self.queue.first_key_value() {
            head.signal.notify_one();
        }
    }

    /// Something may have freed the lock.
    fn news(&mut self) {
        self.outlook.news += 1;
        self.outlook.refused_until = None;
        self.signal_head();
    }
}

impl Names {
    pub(crate) fn new(seats: Arc<Seats>) -> Arc<Self> {
        Arc::new(Self { entries: DashMap::new(), seats })
    }

    /// Brings an acquisition of `owner` to its lane. One that does not want to wait only queues if it may be granted at once.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        lane: &Lane,
        mode: Mode,
        owner: &Owner,
        waits: bool,
        now: Moment,
    ) -> Arrival {
        if let Some(inside) = lane.other(owner).and_then(|other| self.inside(&other, mode, owner)) {
            return Arrival::Inside(inside);
        }
        let mut entry = self.entries.entry(lane.clone()).or_default();
        if let Some(inside) = entry.inside(owner, mode) {
            return Arrival::Inside(inside);
        }
        if !waits && entry.turns_away(mode, now) {
            return Arrival::Contended;
        }
        let seat = match waits.then(|| self.seats.take(&lane.name)).transpose() {
            Ok(seat) => seat,
            Err(error) => {
                drop(entry);
                self.change(lane, |_| ());
                return Arrival::Full(error);
            }
        };
        let ticket = entry.next_ticket;
        entry.next_ticket += 1;
        let signal = Arc::new(Notify::new());
        entry.queue.insert(ticket, Waiter { owner: owner.clone(), waits, signal: signal.clone() });
        Arrival::Queued(Place {
            names: self.clone(),
            lane: lane.clone(),
            mode,
            owner: owner.clone(),
            waits,
            ticket,
            releases_before: entry.next_release,
            refusals_before: entry.outlook.refusals,
            signal,
            wakeups: None,
            ignores_releases: false,
            _seat: seat,
        })
    }

    /// What `owner` holds in `lane`.
    pub(crate) fn inside(&self, lane: &Lane, mode: Mode, owner: &Owner) -> Option<Inside> {
        self.entries.get(lane)?.inside(owner, mode)
    }

    /// Registers a hold that was granted. `accept` decides under the lock of the name whether it may still be.
    pub(crate) fn register(&self, hold: &Arc<Hold>, accept: impl FnOnce() -> bool) -> bool {
        let lane = hold.lane();
        let mut entry = self.entries.entry(lane.clone()).or_default();
        let accepted = accept();
        if accepted {
            entry.register(hold, hold.deadline());
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

    /// Forgets `hold`.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        self.change(&hold.lane(), |entry| entry.holds.retain(|other| !Arc::ptr_eq(other, hold)));
    }

    /// Notes that a release is on its way. Until the result is dropped, no acquisition in this lane asks the
    /// backend: whoever drops a guard and then tries the lock must not be refused by his own hold.
    pub(crate) fn releasing(self: &Arc<Self>, lane: &Lane) -> Releasing {
        let mut entry = self.entries.entry(lane.clone()).or_default();
        let number = entry.next_release;
        entry.next_release += 1;
        entry.releasing.insert(number);
        Releasing { names: self.clone(), lane: lane.clone(), number }
    }

    /// The holds of `name` that are registered here, live or lost, in whatever lane. Looks at all names: for operators.
    pub(crate) fn holds_of(&self, name: &LockName) -> Vec<Arc<Hold>> {
        let lanes = self.entries.iter().filter(|entry| &entry.key().name == name);
        lanes.flat_map(|entry| entry.holds.clone()).collect()
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

    /// Every hold of this client.
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        self.entries.iter().flat_map(|entry| entry.holds.clone()).collect()
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
