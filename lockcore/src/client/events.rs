//! Reports events to a lane, and carries out their effects.

use std::{
    sync::{Arc, MutexGuard},
    task::Waker,
};

use smallvec::SmallVec;

use super::{
    cleanup::Cleanup,
    foreign::foreign,
    lanes::{HoldFacts, LaneCell, Slot, Stay, WaiterSlot},
    release::ReleaseWork,
    report::LostHold,
    shared::Client,
};
use crate::{
    LossReason,
    backend::ReleaseRequest,
    engine::{Effect, Effects, Hold, HoldNumber, Lane, Release, Ticket},
    time::Moment,
};

/// The work that an event leaves to be done once the lane is unlocked.
#[derive(Default)]
struct Aftermath {
    wakers: SmallVec<[Waker; 2]>,
    /// Holds that were just lost.
    lost: Vec<(LossReason, Hold<HoldFacts>)>,
    cleanups: Vec<Cleanup>,
    /// To be dropped later: code that is attached to their spans may call back into the client.
    over: Vec<HoldFacts>,
}

impl Client {
    /// Reports an event to a lane and carries out its effects.
    #[inline]
    pub(crate) fn with<T>(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        event: impl FnOnce(&mut Lane<WaiterSlot, HoldFacts>, &mut Effects<HoldFacts>) -> T,
    ) -> T {
        self.with_slot(cell, cell.lock(), |slot, fx| event(&mut slot.lane, fx))
    }

    /// As [`with`](Self::with), where the lane is locked already.
    pub(super) fn with_slot<T>(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        mut slot: MutexGuard<'_, Slot>,
        event: impl FnOnce(&mut Slot, &mut Effects<HoldFacts>) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let result = event(&mut slot, &mut effects);
        let unneeded = match slot.listener {
            Some(_) if !slot.lane.has_line() => slot.listener.take(),
            _ => None,
        };
        if effects.is_quiet() {
            self.settle(cell, &mut slot, effects.due);
            drop(slot);
        } else {
            let aftermath = self.carry_out(cell, &mut slot, effects);
            drop(slot);
            self.finish(cell, aftermath);
        }
        drop(unneeded);
        result
    }

    /// Runs code on the lane of `cell`. If that cell went idle, the lane has another cell by now.
    /// Returns the cell as well.
    pub(super) fn in_lane<T>(
        self: &Arc<Self>,
        mut cell: Arc<LaneCell>,
        event: impl FnOnce(&mut Slot, &mut Effects<HoldFacts>) -> T,
    ) -> (Arc<LaneCell>, T) {
        loop {
            let slot = cell.lock();
            if slot.stay == Stay::Gone {
                drop(slot);
                cell = self.lanes.at(&cell.name, cell.kind);
                continue;
            }
            let result = self.with_slot(&cell, slot, event);
            return (cell, result);
        }
    }

    /// Carries out the effects that are safe under the lock, and returns the rest.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        slot: &mut Slot,
        effects: Effects<HoldFacts>,
    ) -> Aftermath {
        let Effects { wake, due, rare } = effects;
        let mut aftermath = Aftermath::default();
        for ticket in wake {
            let waiter = slot.lane.waiter_mut(ticket);
            aftermath.wakers.extend(waiter.and_then(|waiter| waiter.signal.give()));
        }
        for effect in rare {
            match effect {
                Effect::Lost(number, reason) => {
                    let hold = slot.lane.hold(number).cloned();
                    aftermath.lost.extend(hold.map(|hold| (reason, hold)));
                }
                Effect::Release(release) => {
                    self.pending_releases.add();
                    aftermath.cleanups.push(Cleanup::Release(self.release_of(cell, release)));
                }
                Effect::Over(facts) => aftermath.over.push(facts),
                Effect::Undo(ticket) => {
                    aftermath.cleanups.extend(self.undo_unpolled(cell, slot, ticket));
                }
                Effect::UndoLost(hold) => {
                    aftermath.cleanups.extend(self.undo_lost(cell, slot, hold));
                }
            }
        }
        self.settle(cell, slot, due);
        aftermath
    }

    /// Retires the lane if it became idle, and reschedules it otherwise.
    #[inline]
    fn settle(&self, cell: &Arc<LaneCell>, slot: &mut Slot, due: Option<Moment>) {
        if !slot.lane.is_idle() {
            if let Some(due) = due
                && slot.appointment.is_none_or(|appointment| due < appointment.at)
            {
                self.calendar.reschedule(&mut slot.appointment, due, cell);
            }
            return;
        }
        self.retire(cell, slot);
    }

    fn retire(&self, cell: &Arc<LaneCell>, slot: &mut Slot) {
        slot.lane.rest();
        let former = self.lanes.retire(cell, slot);
        if let Some((_, Some(appointment))) = former {
            self.calendar.remove(appointment);
        }
        // A resident keeps its appointment: it is early enough for the next hold, and lapses if
        // there is none by then. In a closed client there will be none.
        if (slot.stay == Stay::Gone || self.is_closed())
            && let Some(appointment) = slot.appointment.take()
        {
            self.calendar.remove(appointment);
        }
    }

    fn finish(self: &Arc<Self>, cell: &Arc<LaneCell>, aftermath: Aftermath) {
        let Aftermath { wakers, lost, cleanups, over } = aftermath;
        wakers.into_iter().for_each(|waker| foreign(|| waker.wake()));
        cleanups.into_iter().for_each(Cleanup::submit);
        for (reason, hold) in lost {
            self.report_loss(cell, reason, &LostHold::of(&hold));
            foreign(|| drop(hold));
        }
        foreign(|| drop(over));
    }

    /// The release of a hold that nobody can enter any more. It was
    /// [counted](Self::pending_releases).
    pub(super) fn release_of(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        release: Release<HoldFacts>,
    ) -> ReleaseWork {
        let Release { number, mode, until, facts } = release;
        facts.tell(None);
        let request = ReleaseRequest::new(cell.name.clone(), facts.id).mode(mode);
        ReleaseWork::new(self, cell, number, request, until)
    }

    /// The release that undoes a request whose answer nobody polled for.
    fn undo_unpolled(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        slot: &mut Slot,
        ticket: Ticket,
    ) -> Option<Cleanup> {
        let (request, until) = *slot.lane.waiter_mut(ticket)?.asked.take()?;
        Some(self.undo_at_once(cell, slot, request, until))
    }

    /// The release that undoes the grant of a hold that was lost. A place of a named owner may be
    /// that of its next hold, and is granted to nobody without a request.
    fn undo_lost(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        slot: &mut Slot,
        number: HoldNumber,
    ) -> Option<Cleanup> {
        let hold = slot.lane.hold(number).filter(|hold| !hold.facts.id.is_named())?;
        let release = ReleaseRequest::new(cell.name.clone(), hold.facts.id.clone());
        let request = ReleaseRequest { is_undo: true, ..release.mode(hold.mode) };
        let until = hold.state.asked();
        Some(self.undo_at_once(cell, slot, request, until))
    }

    fn undo_at_once(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        slot: &mut Slot,
        request: ReleaseRequest,
        until: Moment,
    ) -> Cleanup {
        let number = slot.lane.begin_release();
        self.pending_releases.add();
        Cleanup::Release(ReleaseWork::new(self, cell, number, request, until))
    }
}
