//! [`QueuePlace`]: a place in the queue of a lane.

use std::sync::Arc;

use super::{
    held::Held,
    lanes::{HoldFacts, LaneCell, Tasks, WaiterSlot},
    listener::Listener,
    shared::Client,
    waiters::Counted,
};
use crate::{
    Mode,
    engine::{Effects, HoldNumber, Lane, Ticket},
    time::Lease,
};

/// A place in the queue of a lane. Dropped, it is left.
#[derive(Debug)]
pub(super) struct QueuePlace<'a> {
    client: &'a Arc<Client>,
    pub(super) cell: Arc<LaneCell>,
    pub(super) ticket: Ticket,
    /// It has become a hold, or was left.
    is_over: bool,
    pub(super) listener: Option<Box<Listener>>,
    /// Its subscription is for one hold only, and is of no use to others.
    is_fair: bool,
    _counted: Option<Counted<'a>>,
}

impl<'a> QueuePlace<'a> {
    pub(super) fn new(
        client: &'a Arc<Client>,
        cell: Arc<LaneCell>,
        ticket: Ticket,
        mode: Mode,
        counted: Option<Counted<'a>>,
    ) -> Self {
        let is_fair = mode == Mode::Fair;
        Self { client, cell, ticket, is_over: false, listener: None, is_fair, _counted: counted }
    }

    /// The waiter enters, if `enter` returns a hold: the place is over with that. The subscription
    /// stays for the next one in line.
    pub(super) fn enter(
        &mut self,
        lease: Lease,
        enter: impl FnOnce(&mut Lane<Tasks>, Ticket, &mut Effects<HoldFacts>) -> Option<HoldNumber>,
    ) -> Option<Held> {
        let Self { client, cell, ticket, is_over, listener, is_fair, .. } = self;
        let leaves_it = listener.is_some() && !*is_fair;
        let (held, left) = client.with_slot(cell, cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(*ticket).and_then(WaiterSlot::take_waker);
            let Some(number) = enter(&mut slot.lane, *ticket, fx) else { return (None, waker) };
            *is_over = true;
            if leaves_it {
                std::mem::swap(&mut slot.listener, listener);
            }
            (slot.lane.hold_mut(number).map(|hold| Held::of(client, cell, hold, lease)), waker)
        });
        // Outside of the lock: whatever hangs on it may come here again.
        drop(left);
        held
    }
}

impl Drop for QueuePlace<'_> {
    /// Leaves the subscription to the next one in line. That of a fair waiter hears of its own turn
    /// only, and is of no use to anybody else.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (now, ticket, mut listener) =
            (self.client.clock.now(), self.ticket, self.listener.take());
        let leaves_it = listener.is_some() && !self.is_fair;
        let left = self.client.with_slot(&self.cell, self.cell.lock(), |slot, fx| {
            let waker = slot.lane.waiter_mut(ticket).and_then(WaiterSlot::take_waker);
            slot.lane.leave(ticket, now, fx);
            if leaves_it {
                std::mem::swap(&mut slot.listener, &mut listener);
            }
            (waker, listener)
        });
        // Outside of the lock: whatever hangs on these may come here again.
        drop(left);
    }
}
