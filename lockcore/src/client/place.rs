//! [`QueuePlace`]: a place in the queue of a lane.

use std::sync::Arc;

use super::{
    acquisition::Acquisition,
    cleanup::{Cleanup, Undo},
    held::Held,
    lanes::{HoldFacts, LaneCell, WaiterSlot},
    listener::Listener,
};
use crate::{
    Mode,
    engine::{Effects, HoldNumber, Lane, Ticket},
};

/// The place of an acquisition in the queue of a lane. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct QueuePlace<'a> {
    pub(super) acquisition: &'a Acquisition,
    pub(super) cell: Arc<LaneCell>,
    pub(super) ticket: Ticket,
    pub(super) listener: Option<Box<Listener>>,
    /// Set while it is counted among the waiters of the client.
    is_counted: bool,
    /// Set once it has become a hold or was left.
    is_over: bool,
}

impl<'a> QueuePlace<'a> {
    pub(super) fn new(
        acquisition: &'a Acquisition,
        cell: Arc<LaneCell>,
        ticket: Ticket,
        is_counted: bool,
    ) -> Self {
        Self { acquisition, cell, ticket, listener: None, is_counted, is_over: false }
    }

    /// Takes the undo of a request that has no answer.
    pub(super) fn take_asked(&self) -> Option<Undo> {
        let asked = self.cell.look(|lane| lane.waiter_mut(self.ticket)?.asked.take());
        let (request, until) = *asked?;
        let (client, cell) = (self.acquisition.client.clone(), self.cell.clone());
        Some(Undo { client, cell, request, until })
    }

    /// Returns `true` if the next waiter in line can use its subscription. The subscription of a
    /// fair waiter is for one hold only.
    fn leaves_listener(&self) -> bool {
        self.listener.is_some() && self.acquisition.mode != Mode::Fair
    }

    /// The waiter enters if `enter` returns a hold, which ends the place. The subscription stays
    /// for the next waiter in line.
    pub(super) fn enter(
        &mut self,
        enter: impl FnOnce(
            &mut Lane<WaiterSlot, HoldFacts>,
            Ticket,
            &mut Effects<HoldFacts>,
        ) -> Option<HoldNumber>,
    ) -> Option<Held> {
        let leaves_it = self.leaves_listener();
        let Self { acquisition, cell, ticket, is_over, listener, .. } = self;
        let Acquisition { client, lease, .. } = acquisition;
        let (held, left) = client.with_slot(cell, cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(*ticket).and_then(WaiterSlot::take_waker);
            let Some(number) = enter(&mut slot.lane, *ticket, fx) else { return (None, waker) };
            *is_over = true;
            if leaves_it {
                std::mem::swap(&mut slot.listener, listener);
            }
            // Before anybody is woken, since a waker may panic.
            let held = slot.lane.hold(number).map(Held::identity);
            (held.map(|identity| Held::of(client, cell.clone(), identity, *lease)), waker)
        });
        // Outside of the lock, because code attached to it may call back into the client.
        drop(left);
        held
    }
}

impl Drop for QueuePlace<'_> {
    /// Leaves the subscription to the next waiter in line.
    fn drop(&mut self) {
        let client = &self.acquisition.client;
        if self.is_counted {
            client.waiters.forget();
        }
        if self.is_over {
            return;
        }
        // The next waiter in line must not ask before this is on its way.
        if let Some(undo) = self.take_asked() {
            Cleanup::Undo(undo).submit();
        }
        let leaves_it = self.leaves_listener();
        let (now, ticket, mut listener) = (client.clock.now(), self.ticket, self.listener.take());
        let left = client.with_slot(&self.cell, self.cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(ticket).and_then(WaiterSlot::take_waker);
            slot.lane.leave(ticket, now, fx);
            if leaves_it {
                std::mem::swap(&mut slot.listener, &mut listener);
            }
            (waker, listener)
        });
        // Outside of the lock, because code attached to these may call back into the client.
        drop(left);
    }
}
