//! The demand for a lock, and how the flaws change it.

use std::sync::Arc;

use lockcore::{
    BackendError, LockName, Mode,
    backend::{AcquireOutcome, AcquireRequest},
};
use lockcore_testkit::Part;
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    parts::unsupported,
    store::{Cell, Flawed, Subscriber},
};

impl Flawed {
    /// Refuses a subscription to the demand for locks without demand.
    pub(super) fn check_demand(&self, mode: Mode) -> Result<(), BackendError> {
        let is_heard = mode == Mode::Exclusive || self.has(Flaw::HearsOfTheDemandInEveryMode);
        let is_declared =
            self.declares(Part::Demand) || self.has(Flaw::GrantsUndeclared(Part::Demand));
        if is_heard && is_declared { Ok(()) } else { Err(unsupported()) }
    }

    /// The subscribers to the demand for the name of `cell`.
    pub(super) fn wanting<'a>(&self, cell: &'a mut Cell) -> &'a mut Vec<Arc<Subscriber>> {
        match self.flaw {
            Flaw::DemandIsHeardAsAnEnd => &mut cell.listeners,
            _ => &mut cell.wanting,
        }
    }

    /// Handles a new subscription of `listener` to the demand for `name`.
    pub(super) fn begin_demand(&self, name: &LockName, listener: &Arc<Subscriber>) {
        if self.has(Flaw::HearsOfTheDemandOfOneName) {
            for (key, cell) in &mut self.store().cells {
                if *key != self.key(name) {
                    cell.wanting.retain(|other| other.client != listener.client);
                }
            }
        }
        let waits = self.with(name, |cell, _| !cell.listeners.is_empty());
        if waits && !self.has(Flaw::WaitersBeforeAreNotHeardOf) {
            listener.notify.notify_one();
        }
    }

    /// Wakes the subscribers to the demand, if `request` was refused.
    pub(super) fn note_demand(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        outcome: &AcquireOutcome,
        now: Instant,
    ) {
        let is_refused = matches!(outcome, AcquireOutcome::Held { .. });
        let is_demand = match request.mode {
            Mode::Exclusive => true,
            Mode::Fair => !self.has(Flaw::FairRefusalWakesNobody),
            _ => false,
        };
        if !is_refused || !is_demand || cell.wanting.is_empty() {
            return;
        }
        match (self.flaw, &mut cell.hold) {
            (Flaw::RefusalWakesNobody, _) => return,
            (Flaw::DemandEndsTheHold, hold) => *hold = None,
            (Flaw::DemandShortensTheLease, Some(stored)) => {
                stored.ends = now + (stored.ends - now) / 2;
            }
            _ => {}
        }
        if !std::mem::replace(&mut cell.was_wanted, true) || !self.has(Flaw::RefusalWakesOnce) {
            self.wake_all(&cell.wanting);
        }
    }
}
