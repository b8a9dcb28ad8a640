//! [`LaneMap`]: the lanes of a client, each behind one short lock, and what the client keeps in
//! them.

use std::{
    fmt,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use hashbrown::HashTable;
use tokio::sync::oneshot;
use tracing::Span;

use super::{listener::Listener, watch::Watch};
use crate::{
    LockName, LossReason,
    backend::{HoldId, ReleaseRequest},
    engine::{Appointment, HandOver, Hold, HoldNumber, Lane, Ticket},
    mode::Kind,
    task::TaskKey,
    time::Moment,
};

/// The data of the client for a waiter.
#[derive(Debug, Default)]
pub(crate) struct WaiterSlot {
    pub(super) signal: Signal,
    /// The undo of its request, and the time until which it is worth trying, while there is no
    /// answer.
    pub(super) asked: Option<Box<(ReleaseRequest, Moment)>>,
    /// Set once it has to wait.
    pub(super) wait: Option<WaitFacts>,
}

/// Facts about a wait, for reports. Kept in the waiter, so that they need no room of their own.
#[derive(Debug)]
pub(super) struct WaitFacts {
    pub(super) since: Moment,
    pub(super) site: &'static std::panic::Location<'static>,
    pub(super) task: TaskKey,
    /// Drawn once it has waited for long.
    pub(super) number: Option<NonZeroU64>,
}

/// The data of the client for a hold.
#[derive(Clone, Debug)]
pub(crate) struct HoldFacts {
    pub(crate) id: HoldId,
    /// The number of replicas that acknowledged the grant, if they were asked.
    pub(crate) replicas: Option<u32>,
    /// Where and by which task it was acquired, for the deadlock warning.
    pub(crate) site: &'static std::panic::Location<'static>,
    pub(crate) task: TaskKey,
    pub(crate) acquired_at: Moment,
    /// Open while the hold lives, if anybody listens.
    pub(crate) span: Option<Arc<Span>>,
    /// Tells the tasks that watch the hold how it ends.
    pub(crate) watch: Option<Arc<Watch>>,
    /// Set if the hold was kept. When it is dropped with the hold, the [listening](super::demand)
    /// for other clients ends.
    pub(super) kept: Option<Arc<oneshot::Sender<()>>>,
    /// Set while its renewals fail.
    pub(super) renewal_fails: bool,
}

/// Tells a waiter to take a step, or knows how to wake it. A signal that comes while the waiter
/// does not listen is kept.
#[derive(Debug, Default)]
pub(super) enum Signal {
    #[default]
    Silent,
    Listening(Waker),
    Given,
}

impl Signal {
    /// Returns the waker to be woken.
    pub(super) fn give(&mut self) -> Option<Waker> {
        match std::mem::replace(self, Self::Given) {
            Self::Listening(waker) => Some(waker),
            Self::Silent | Self::Given => None,
        }
    }

    /// Takes the signal, or listens for it with `waker`, and leaves its former waker in exchange.
    /// `None` if it needs a waker.
    fn poll(&mut self, context: &Context<'_>, waker: &mut Option<Waker>) -> Option<Poll<()>> {
        match self {
            Self::Given => {
                *self = Self::Silent;
                return Some(Poll::Ready(()));
            }
            Self::Listening(waker) if waker.will_wake(context.waker()) => {}
            Self::Listening(listening) => std::mem::swap(listening, waker.as_mut()?),
            Self::Silent => *self = Self::Listening(waker.take()?),
        }
        Some(Poll::Pending)
    }
}

impl WaiterSlot {
    /// Stops listening. The waker is to be dropped when the lane is no longer locked.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        match std::mem::take(&mut self.signal) {
            Signal::Listening(waker) => Some(waker),
            signal => {
                self.signal = signal;
                None
            }
        }
    }
}

/// A lane while something is going on in it. Places, guards and releases keep a reference, and need
/// not look it up in the map.
pub(crate) struct LaneCell {
    pub(super) name: LockName,
    pub(super) kind: Kind,
    /// Short critical sections without awaits, hence not tokio's mutex. Locked before a shard of
    /// the map and before the schedule, never while one of these is locked.
    slot: Mutex<Slot>,
}

/// The data behind the lock of a lane.
pub(super) struct Slot {
    pub(super) lane: Lane<WaiterSlot, HoldFacts>,
    /// The subscription of the line, while no head has it.
    pub(super) listener: Option<Box<Listener>>,
    /// Its place in the schedule.
    pub(super) appointment: Option<Appointment>,
    pub(super) stay: Stay,
}

/// Says if the cell stays in the map when its lane is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// It leaves the map when the lane is idle.
    WhileInUse,
    /// It is the one idle cell that its shard keeps, for a name that is used again and again.
    Resident,
    /// It is no longer in the map: if the lane is in use, there is another cell.
    Gone,
}

impl LaneCell {
    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the lane.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Lane<WaiterSlot, HoldFacts>) -> T) -> T {
        look(&mut self.lock().lane)
    }

    /// Looks at one hold.
    pub(crate) fn look_at<T>(
        &self,
        hold: HoldNumber,
        look: impl FnOnce(&mut Hold<HoldFacts>) -> T,
    ) -> Option<T> {
        self.look(|lane| lane.hold_mut(hold).map(look))
    }

    /// The watch of a hold, created if necessary.
    pub(crate) fn watch(&self, hold: HoldNumber) -> Option<Arc<Watch>> {
        self.look_at(hold, |hold| hold.facts.watch.get_or_insert_default().clone())
    }

    /// Resolves when the waiter is told to take a step.
    pub(super) fn poll_signal(&self, ticket: Ticket, context: &Context<'_>) -> Poll<()> {
        // A waker may do anything when it is cloned or dropped, so neither happens under the lock.
        let mut waker = None;
        loop {
            let polled = self.look(|lane| match lane.waiter_mut(ticket) {
                Some(waiter) => waiter.signal.poll(context, &mut waker),
                None => Some(Poll::Ready(())),
            });
            match polled {
                Some(polled) => return polled,
                None => waker = Some(context.waker().clone()),
            }
        }
    }

    /// Stops listening for the signal of a waiter.
    pub(super) fn ignore_signal(&self, ticket: Ticket) {
        let waker = self.look(|lane| lane.waiter_mut(ticket).and_then(WaiterSlot::take_waker));
        drop(waker);
    }
}

impl fmt::Debug for LaneCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneCell")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The number of parts of the map. Several, so that tasks that use different names seldom contend.
const SHARDS: usize = 32;

/// A part of the map.
#[derive(Default)]
struct Shard {
    cells: HashTable<Arc<LaneCell>>,
    /// The cell of this shard that may stay when its lane is idle.
    resident: Option<Arc<LaneCell>>,
}

impl Shard {
    fn remove(&mut self, cell: &LaneCell) {
        let is_it = |other: &Arc<LaneCell>| std::ptr::eq(&raw const **other, cell);
        if let Ok(entry) = self.cells.find_entry(cell.name.hash(), is_it) {
            entry.remove();
        }
    }
}

/// The lanes in use, and the last idle lane of each shard. Apart from these few, an idle name costs
/// nothing.
pub(crate) struct LaneMap {
    shards: Box<[Mutex<Shard>]>,
    hand_over: Option<HandOver>,
}

impl fmt::Debug for LaneMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cells = self.all();
        cells.retain(|cell| cell.slot.try_lock().map_or(true, |slot| !slot.lane.is_idle()));
        f.debug_struct("LaneMap").field("cells", &cells).finish_non_exhaustive()
    }
}

impl LaneMap {
    /// `hand_over` says for how long holds are handed over, if at all.
    pub(super) fn new(hand_over: Option<HandOver>) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hand_over }
    }

    pub(super) fn hand_over(&self) -> Option<HandOver> {
        self.hand_over
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The hash table itself uses the upper and the lowest bits.
        let shard = (hash >> 32) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane of `name` as `kind`, if it is in use.
    pub(crate) fn find(&self, name: &LockName, kind: Kind) -> Option<Arc<LaneCell>> {
        let is_it = |cell: &Arc<LaneCell>| cell.kind == kind && cell.name == *name;
        self.shard(name.hash()).cells.find(name.hash(), is_it).cloned()
    }

    /// The lane of `name` as `kind`, created if necessary.
    pub(super) fn at(&self, name: &LockName, kind: Kind) -> Arc<LaneCell> {
        let is_it = |cell: &Arc<LaneCell>| cell.kind == kind && cell.name == *name;
        let hash = name.hash();
        let mut shard = self.shard(hash);
        let entry = shard.cells.entry(hash, is_it, |cell| cell.name.hash());
        let made = || {
            let lane = Lane::new(self.hand_over);
            let slot = Slot { lane, listener: None, appointment: None, stay: Stay::WhileInUse };
            Arc::new(LaneCell { name: name.clone(), kind, slot: Mutex::new(slot) })
        };
        entry.or_insert_with(made).get().clone()
    }

    /// The lane of `cell` is idle: the cell becomes the resident of its shard, replacing an idle
    /// one, or leaves the map. Returns the replaced cell with its appointment.
    pub(super) fn retire(
        &self,
        cell: &Arc<LaneCell>,
        slot: &mut Slot,
    ) -> Option<(Arc<LaneCell>, Option<Appointment>)> {
        if slot.stay != Stay::WhileInUse {
            return None;
        }
        let mut shard = self.shard(cell.name.hash());
        let Some(former) = shard.resident.clone() else {
            slot.stay = Stay::Resident;
            shard.resident = Some(cell.clone());
            return None;
        };
        // Only tried: it is locked before a shard otherwise.
        let appointment = match former.slot.try_lock() {
            Ok(mut other) if other.lane.is_idle() => {
                other.stay = Stay::Gone;
                other.appointment.take()
            }
            _ => {
                shard.remove(cell);
                slot.stay = Stay::Gone;
                return None;
            }
        };
        shard.remove(&former);
        slot.stay = Stay::Resident;
        shard.resident = Some(cell.clone());
        Some((former, appointment))
    }

    /// All lanes, none of them locked.
    pub(super) fn all(&self) -> Vec<Arc<LaneCell>> {
        let all = self.shards.iter().flat_map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.cells.iter().cloned().collect::<Vec<_>>()
        });
        all.collect()
    }

    /// Returns `true` if `is_it` is true for some lane, or a lane is locked right now.
    pub(super) fn any(&self, is_it: impl Fn(&Lane<WaiterSlot, HoldFacts>) -> bool) -> bool {
        self.shards.iter().any(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            // Only tried: it is locked before a shard otherwise.
            shard
                .cells
                .iter()
                .any(|cell| cell.slot.try_lock().map_or(true, |slot| is_it(&slot.lane)))
        })
    }

    /// The lanes of `name`, of every kind.
    pub(crate) fn of(&self, name: &LockName) -> impl Iterator<Item = Arc<LaneCell>> {
        Kind::ALL.into_iter().filter_map(|kind| self.find(name, kind))
    }
}

impl HoldFacts {
    /// Tells the watchers of the hold that it was lost for this reason, or released.
    pub(super) fn tell(&self, end: Option<LossReason>) {
        if let Some(watch) = &self.watch {
            watch.end(end);
        }
    }

    pub(crate) fn span(&self) -> &Span {
        static NO_SPAN: Span = Span::none();
        self.span.as_deref().unwrap_or(&NO_SPAN)
    }
}
