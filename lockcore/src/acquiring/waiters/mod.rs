//! The local layer: per name, the holds of this client and the queue of its tasks that wait.
//!
//! Tasks queue first in, first out, and only the head of a queue talks to the backend. What the head learns is kept
//! here, not in the head, so that a head that gives up takes nothing with it: neither the subscription nor a wake-up
//! that it had heard but not yet acted on.
//!
//! A hold that its last guard has left can be *parked*: it waits here for the head, which takes it over as a hold of its own without
//! the backend's doing. Whatever becomes of the head, it does not stay: the background task gives back what nobody has taken in time.
//!
//! A [`Cell`] is in the map only while its lane has a hold, a waiter or a release under way: an idle name costs nothing.

mod cell;
mod entry;
mod place;
mod queue;

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;

use self::{cell::ByLane, entry::Entry, queue::Waiter};
pub(crate) use self::{
    cell::{Cell, Lane},
    entry::Inside,
    place::{Place, Step},
};
use crate::{
    LockError, LockName, Mode, Owner,
    acquiring::seats::{Seat, Seats},
    backend::HoldId,
    leases::{clock::Moment, hold::Hold, renewal::Schedule},
};

/// Everything that is going on under any name. Its locks are short and never held across an await.
#[derive(Debug)]
pub(crate) struct Names {
    /// Where a cell is locked inside of a lock of the map, there is a deadlock: see [`Cell`].
    cells: DashMap<ByLane, (), FxBuildHasher>,
    /// For those who wait, in whatever lane.
    pub(crate) seats: Arc<Seats>,
    /// Where it is noted until when a hold may be parked.
    schedule: Arc<Schedule>,
    /// For how long holds are handed on, if they are.
    pub(crate) hand_over: Option<Duration>,
}

/// An acquisition that comes to its lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) mode: Mode,
    pub(crate) owner: &'a Owner,
    /// Nobody else has this owner.
    pub(crate) is_lone: bool,
    pub(crate) waits: bool,
}

/// How an acquisition stands when it arrives at a name.
#[derive(Debug)]
pub(crate) enum Arrival<'a> {
    Inside(Inside),
    /// It would have to wait, and did not want to.
    Contended,
    /// It wanted to wait, and there is no seat.
    Full(LockError),
    Queued(Place<'a>),
}

impl Names {
    pub(crate) fn new(
        seats: Arc<Seats>,
        schedule: Arc<Schedule>,
        hand_over: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self { cells: DashMap::default(), seats, schedule, hand_over })
    }

    /// The cell of `lane`, if something is going on there.
    fn find(&self, lane: &Lane) -> Option<Arc<Cell>> {
        self.cells.get(lane).map(|cell| cell.key().0.clone())
    }

    /// All cells, none of them locked.
    fn all(&self) -> Vec<Arc<Cell>> {
        self.cells.iter().map(|cell| cell.key().0.clone()).collect()
    }

    /// Does something in the cell of `lane`, made if need be. Whatever it does, [`change`](Self::change) has to follow if that may
    /// leave the cell idle.
    fn at<T>(&self, lane: &Lane, work: impl FnOnce(&Arc<Cell>, &mut Entry) -> T) -> T {
        let found = self.find(lane);
        let cell = found.unwrap_or_else(|| {
            let new = ByLane(Cell::new(lane.clone()));
            self.cells.entry(new).or_insert(()).key().0.clone()
        });
        self.in_cell(&cell, work)
    }

    /// As [`at`](Self::at), for who has had the cell.
    fn in_cell<T>(&self, cell: &Arc<Cell>, work: impl FnOnce(&Arc<Cell>, &mut Entry) -> T) -> T {
        let entry = cell.lock();
        if entry.is_gone {
            drop(entry);
            return self.at(&cell.lane, work);
        }
        Cell::work_in(entry, |entry| work(cell, entry))
    }

    /// Changes the entry of `cell`, or of the cell that has followed it in its lane, if there is one, and removes it if that left it idle. A
    /// subscription that nobody needs any more is dropped outside of all locks.
    fn change(&self, cell: &Cell, change: impl FnOnce(&mut Entry)) {
        let entry = cell.lock();
        if entry.is_gone {
            drop(entry);
            if let Some(next) = self.find(&cell.lane) {
                self.change(&next, change);
            }
            return;
        }
        let unneeded = Cell::work_in(entry, |entry| {
            change(entry);
            if let Some(parked) = entry.parked.as_ref().filter(|_| entry.queue.is_empty()) {
                self.schedule.hurry(parked);
            }
            if entry.is_idle() {
                entry.is_gone = true;
                self.cells.remove(&cell.lane);
            }
            if entry.queue.is_empty() { entry.wakeups.take() } else { None }
        });
        drop(unneeded);
    }

    /// Brings an acquisition to its lane. One that does not want to wait only queues if it may be granted at once. `heir` is the renewed
    /// lease with which it could take over a hold.
    pub(crate) fn arrive<'a>(
        self: &'a Arc<Self>,
        lane: &Lane,
        who: Newcomer<'a>,
        heir: Option<Duration>,
        now: Moment,
    ) -> Arrival<'a> {
        let Newcomer { mode, owner, is_lone, waits } = who;
        if !is_lone
            && let Some(inside) =
                lane.other(owner).and_then(|other| self.inside(&other, mode, owner))
        {
            return Arrival::Inside(inside);
        }
        let (cell, arrival) = self.at(lane, |cell, entry| {
            if !is_lone && let Some(inside) = entry.inside(owner, mode) {
                return (None, Arrival::Inside(inside));
            }
            if !waits && entry.turns_away(mode, now) {
                return (None, Arrival::Contended);
            }
            let seat = match waits.then(|| self.seat(lane, entry)).transpose() {
                Ok(seat) => seat,
                Err(error) => return (Some(cell.clone()), Arrival::Full(error)),
            };
            let ticket = entry.queue.push(Waiter::new(owner.clone(), is_lone, waits, heir));
            (None, Arrival::Queued(Place::new(self, cell, who, ticket, entry, seat)))
        });
        if let Some(cell) = cell {
            self.change(&cell, |_| ());
        }
        arrival
    }

    /// A seat for one that waits. Where all who wait for a name are in one lane, they are counted there.
    fn seat(&self, lane: &Lane, entry: &Entry) -> Result<Seat<'_>, LockError> {
        match lane.owner {
            None => self.seats.take_behind(entry.queue.patient(), lane.name()),
            Some(_) => self.seats.take(lane.name()),
        }
    }

    /// What `owner` holds in `lane`.
    pub(crate) fn inside(&self, lane: &Lane, mode: Mode, owner: &Owner) -> Option<Inside> {
        self.find(lane)?.with(|entry| entry.inside(owner, mode))
    }

    /// Registers a hold that was granted past the queue. `accept` decides under the lock of the name whether it may still be.
    pub(crate) fn register(&self, hold: &Arc<Hold>, accept: impl FnOnce() -> bool) -> bool {
        let accepted = self.in_cell(&hold.cell, |_, entry| {
            let accepted = accept();
            if accepted {
                entry.admit_granted(hold);
            }
            accepted
        });
        if !accepted {
            self.change(&hold.cell, |_| ());
        }
        accepted
    }

    /// Something may have freed the lock: the head of the lane tries again.
    pub(crate) fn wake(&self, cell: &Cell) {
        self.change(cell, Entry::news);
    }

    /// Everybody looks: the client is closed.
    pub(crate) fn signal_all(&self) {
        for cell in self.all() {
            cell.with(Entry::signal_all);
        }
    }

    /// Takes out `hold`, which is over, to be released.
    pub(crate) fn withdraw(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) -> Releasing {
        self.releasing_after(&hold.cell, |entry| {
            entry.take_out(hold);
            entry.end_turn(self.hand_over, now);
        })
    }

    /// Notes that a release is on its way. Until it is [over](Releasing::end), no acquisition in this lane asks the
    /// backend: whoever drops a guard and then tries the lock must not be refused by his own hold.
    pub(crate) fn releasing(self: &Arc<Self>, cell: &Arc<Cell>) -> Releasing {
        self.releasing_after(cell, |_| ())
    }

    fn releasing_after(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        change: impl FnOnce(&mut Entry),
    ) -> Releasing {
        self.in_cell(cell, |cell, entry| {
            change(entry);
            Releasing::begin(self, cell, entry)
        })
    }

    /// Parks `hold`, which is over, for whoever is first in its lane. False if it has to be released instead. `accept` decides under the
    /// lock of the name whether it may be parked.
    pub(crate) fn park(
        &self,
        hold: &Arc<Hold>,
        now: Moment,
        accept: impl FnOnce() -> bool,
    ) -> bool {
        if hold.window().is_none() {
            return false;
        }
        hold.cell.with(|entry| {
            let is_parked = entry.has_heir(hold, now) && accept();
            if is_parked {
                entry.take_out(hold);
                entry.parked = Some(hold.clone());
                entry.signal_head();
            }
            is_parked
        })
    }

    /// Takes `hold` out, to be released, if it is parked and nobody is there who may take it over.
    pub(crate) fn unpark(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) -> Option<Releasing> {
        hold.cell.with(|entry| {
            if !entry.is_parked(hold) {
                return None;
            }
            if entry.has_heir(hold, now) {
                self.schedule.set(hold, hold.window()?);
                return None;
            }
            entry.parked = None;
            entry.end_turn(self.hand_over, now);
            Some(Releasing::begin(self, &hold.cell, entry))
        })
    }

    /// As [`unpark`](Self::unpark), whoever is there.
    pub(crate) fn unpark_anyway(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<Releasing> {
        hold.close_window();
        self.unpark(hold, hold.sent())
    }

    /// Forgets what is parked of these holds, which the backend no longer has.
    pub(crate) fn forget_parked(&self, name: &LockName, ids: &[HoldId]) {
        let is_over = |parked: &Arc<Hold>| parked.name() == name && ids.contains(&parked.id);
        for parked in self.all_parked().into_iter().filter(is_over) {
            self.change(&parked.cell, |entry| {
                if entry.is_parked(&parked) {
                    entry.parked = None;
                    entry.news();
                }
            });
        }
    }

    /// Every parked hold of this client.
    pub(crate) fn all_parked(&self) -> Vec<Arc<Hold>> {
        self.all().iter().filter_map(|cell| cell.with(|entry| entry.parked.clone())).collect()
    }

    /// Has the head of the lane look for itself: it rests no more.
    pub(crate) fn rouse(&self, cell: &Cell) {
        self.change(cell, Entry::signal_head);
    }

    /// The holds of `name` that are registered here, live or lost, in whatever lane. Looks at all names: for operators.
    pub(crate) fn holds_of(&self, name: &LockName) -> Vec<Arc<Hold>> {
        let mut holds = self.all_holds();
        holds.retain(|hold| hold.name() == name);
        holds
    }

    /// What the backend may have of `name` for this client.
    pub(crate) fn ids_of(&self, name: &LockName) -> Vec<HoldId> {
        let parked = self.all_parked().into_iter().filter(|parked| parked.name() == name);
        self.holds_of(name).into_iter().chain(parked).map(|hold| hold.id.clone()).collect()
    }

    /// Every hold of this client, in the order of the tokens: that of the map differs from machine to machine.
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let mut holds: Vec<_> =
            self.all().iter().flat_map(|cell| cell.with(|entry| entry.holds.clone())).collect();
        holds.sort_by(|one, other| (one.token, one.name()).cmp(&(other.token, other.name())));
        holds
    }
}

impl Drop for Names {
    /// Holds know their cells, and what is left in those would keep both. That is what a runtime leaves that has ended.
    fn drop(&mut self) {
        for cell in self.all() {
            let left = cell.with(std::mem::take);
            drop(left);
        }
    }
}

/// A release on its way; see [`Names::releasing`]. Dropped, it is over.
#[derive(Debug)]
pub(crate) struct Releasing {
    names: Arc<Names>,
    pub(crate) cell: Arc<Cell>,
    number: Option<u64>,
}

impl Releasing {
    fn begin(names: &Arc<Names>, cell: &Arc<Cell>, entry: &mut Entry) -> Self {
        Self { names: names.clone(), cell: cell.clone(), number: Some(entry.begin_release()) }
    }

    /// It has been answered, or has failed. Wakes who is first.
    pub(crate) fn end(&mut self) {
        if let Some(number) = self.number.take() {
            self.names.change(&self.cell, |entry| entry.end_release(number));
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.end();
    }
}
