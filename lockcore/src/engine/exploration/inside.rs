//! The steps of owners that are inside, as in `client/nested.rs` and `client/held.rs`.

use super::{
    rules::{Mutant, lasting},
    store::{Demand, Reply},
    wires::{Call, Leg, Mishap, Wire},
    world::{At, Done, LockWorld, Noted},
};
use crate::{
    LossReason,
    engine::{Grant, Growth, HoldNumber, Keeping, Nesting, Parting, Phase},
    time::{Moment, lease},
};

/// The expectation of the model for a departing guard, from the state of the hold before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Live { guards: u32 },
    Lost { reason: LossReason, guards: u32 },
    Closed,
}

/// A hold may be handed over, and kept where the world says so.
const KEEPING: Keeping = Keeping::ForAWhile;

impl LockWorld<'_> {
    /// Returns `true` if one more request with a count may begin for this hold: `Watch::storing`
    /// keeps their order.
    pub(super) fn is_in_order(&self, hold: HoldNumber) -> bool {
        let grows = self.tasks.iter().any(|task| match task.at {
            At::Growing { hold: other, .. } | At::AskingWithin { write: other, .. } => {
                other == hold
            }
            _ => false,
        });
        !grows && !self.wires.iter().any(|wire| wire.stores_count_of(hold))
    }

    /// As `Client::ask_for_more`, until it is sent.
    pub(super) fn nest(&mut self, task: usize) -> Done {
        let At::Nesting { hold } = self.tasks[task].at else { return Ok(()) };
        if self.is_closed {
            self.finish(task);
            return Ok(());
        }
        let lease = self.plan(task).lease;
        let growth = self.event(|lane, now, fx| lane.grow(hold, lease, now, fx))?;
        let Growth::Ask { count, lease } = growth else {
            self.grown(task, hold, growth);
            return Ok(());
        };
        let id = self.lane.hold(hold).ok_or("a hold grows that is not there")?.facts.id;
        let request = Demand { id, count, lease, ..self.request(task) };
        let call = Call { request, sent: self.now, stage: Leg::Sent };
        self.tasks[task].at = At::Growing { hold, call };
        Ok(())
    }

    fn grown(&mut self, task: usize, hold: HoldNumber, growth: Growth) {
        match growth {
            Growth::Enough => self.tasks[task].at = At::Holding { hold },
            Growth::Lost(_) | Growth::TooDeep => self.finish(task),
            // There is nothing to nest in any more: it starts over.
            Growth::Ended | Growth::Ask { .. } => self.tasks[task].at = At::Away,
        }
    }

    /// The answer to a request for more lease.
    pub(super) fn answer_growth(&mut self, task: usize) -> Done {
        let At::Growing { hold, call } = self.tasks[task].at else { return Ok(()) };
        let Leg::Answered(answer) = call.stage else { return Ok(()) };
        let lease = self.plan(task).lease;
        let growth = match answer {
            Reply::Granted { .. } => {
                self.event(|lane, now, fx| lane.grown(hold, lease, call.sent, now, fx))?
            }
            Reply::Held { .. } | Reply::NotHeld => self.event(|lane, now, fx| {
                match lane.phase(hold, now, fx) {
                    None => return Growth::Ended,
                    Some(Phase::Live) => lane.gone(hold, fx),
                    Some(_) => {}
                }
                Growth::Lost(LossReason::Gone)
            })?,
        };
        self.grown(task, hold, growth);
        if growth != Growth::Enough {
            self.correct_count(hold);
        }
        Ok(())
    }

    /// Brings the count at the store down after a growth that came to nothing.
    fn correct_count(&mut self, hold: HoldNumber) {
        if self.lane.hold(hold).is_some() && !self.has(Mutant::CountNotCorrected) {
            self.wires.push(Wire::store_count(hold, self.now));
        }
    }

    /// The request for more lease fails, or is dropped.
    pub(super) fn fail_growth(&mut self, task: usize) {
        let At::Growing { hold, call } = self.tasks[task].at else { return };
        self.cut_off(&call);
        self.correct_count(hold);
        self.finish(task);
    }

    /// As one turn of `Acquisition::read_within`.
    pub(super) fn read_within(&mut self, task: usize) -> Done {
        let At::Within { write } = self.tasks[task].at else { return Ok(()) };
        if self.is_closed {
            self.finish(task);
            return Ok(());
        }
        let (owner, plan) = (self.rules.owner(task), self.plan(task));
        let enter = |lane: &mut crate::engine::Lane<_, _>, now: Moment, fx: &mut _| {
            lane.enter(owner, plan.mode, plan.lease, now, fx)
        };
        match self.event(enter)? {
            Some(Nesting::Entered(hold)) => self.tasks[task].at = At::Holding { hold },
            Some(Nesting::Lost(_)) => self.finish(task),
            Some(Nesting::Within(_)) if self.lane.hold(write).is_some() => {
                let within = self.lane.hold(write).map(|hold| hold.facts.id);
                let request = Demand { id: self.draw_id(), within, ..self.request(task) };
                let call = Call { request, sent: self.now, stage: Leg::Sent };
                self.tasks[task].at = At::AskingWithin { write, call };
            }
            _ => self.tasks[task].at = At::Away,
        }
        Ok(())
    }

    pub(super) fn answer_within(&mut self, task: usize) -> Done {
        let At::AskingWithin { write, call } = self.tasks[task].at else { return Ok(()) };
        let Leg::Answered(answer) = call.stage else { return Ok(()) };
        let lease = self.plan(task).lease;
        match answer {
            Reply::Granted { token, .. } => {
                if self.now >= lease::deadline(call.sent, lease.duration()) || self.is_closed {
                    self.undo_within(&call);
                    self.finish(task);
                    return Ok(());
                }
                let grant = Grant::new(call.sent, lease, token, 1, None);
                let (owner, mode) = (self.rules.owner(task).clone(), self.plan(task).mode);
                let facts = Noted { id: call.request.id, is_told: false };
                let admit = |lane: &mut crate::engine::Lane<_, _>, _, fx: &mut _| {
                    lane.admit(owner, mode, grant, token, facts, fx)
                };
                let hold = self.event(admit)?;
                self.tasks[task].at = At::Holding { hold };
                self.enters_with(token)
            }
            Reply::Held { .. } => {
                self.tasks[task].at = At::Within { write };
                self.event(|lane, _, fx| lane.gone(write, fx))
            }
            Reply::NotHeld => Err("an outermost request was answered as nested".into()),
        }
    }

    fn undo_within(&mut self, call: &Call) {
        let number = self.lane.begin_release();
        let until = call.sent.after(call.request.lease);
        self.send_release(number, call.request.id, until);
    }

    /// The request to read beside a write hold fails, or is dropped.
    pub(super) fn fail_within(&mut self, task: usize, failure: Mishap) {
        let At::AskingWithin { write, call } = self.tasks[task].at else { return };
        if failure == Mishap::Unknown {
            self.cut_off(&call);
            self.undo_within(&call);
        }
        self.tasks[task].at = At::Within { write };
    }

    /// An acquisition of an owner that is inside is dropped, or cut off by `close()`.
    pub(super) fn give_up_inside(&mut self, task: usize) {
        match self.tasks[task].at {
            At::Growing { .. } => return self.fail_growth(task),
            At::AskingWithin { .. } => self.fail_within(task, Mishap::Unknown),
            _ => {}
        }
        self.finish(task);
    }

    fn before(&self, hold: HoldNumber) -> Option<Before> {
        let hold = self.lane.hold(hold)?;
        let guards = hold.state.count();
        Some(match hold.state.phase() {
            Phase::Live if self.now < hold.state.deadline() => Before::Live { guards },
            Phase::Live => Before::Lost { reason: LossReason::LeaseEnded, guards },
            Phase::Lost(reason) => Before::Lost { reason, guards },
            Phase::Parked | Phase::Closed => Before::Closed,
        })
    }

    /// A guard goes, as `Held::depart`.
    pub(super) fn depart(&mut self, task: usize) -> Done {
        let At::Holding { hold } = self.tasks[task].at else { return Ok(()) };
        let lease = self.plan(task).lease;
        let before = self.before(hold).ok_or("a guard of a hold that is not there")?;
        let parting =
            self.event(|lane, now, fx| lane.depart(hold, lease, true, KEEPING, now, fx))?;
        if self.has(Mutant::LeavesTwice) && matches!(parting, Parting::Nested { .. }) {
            self.event(|lane, now, fx| lane.depart(hold, lease, true, KEEPING, now, fx))?;
        }
        self.wires.retain(|wire| !wire.is_extension_by(task));
        self.finish(task);
        let is_as_expected = match (&parting, before) {
            (Parting::Nested { .. }, Before::Live { guards }) => guards > 1,
            (
                Parting::HandedOver | Parting::Kept | Parting::Release(_),
                Before::Live { guards },
            ) => guards == 1,
            (Parting::Lost { reason, release }, Before::Lost { reason: expected, guards }) => {
                let may_be_held = *reason == LossReason::LeaseEnded && guards == 1;
                *reason == expected && release.is_some() == may_be_held
            }
            (Parting::Closed, Before::Closed) => true,
            _ => self.has(Mutant::ClockBehind),
        };
        if !is_as_expected {
            return Err(format!("a guard of a hold that was {before:?} parted as {parting:?}"));
        }
        match parting {
            Parting::Nested { store: true } => self.correct_count(hold),
            Parting::Release(release) | Parting::Lost { release: Some(release), .. } => {
                self.release(release);
            }
            Parting::Nested { store: false }
            | Parting::HandedOver
            | Parting::Kept
            | Parting::Lost { release: None, .. }
            | Parting::Closed => {}
        }
        Ok(())
    }

    /// A task asks its guard whether it is still held.
    pub(super) fn look(&mut self, task: usize) -> Done {
        let At::Holding { hold } = self.tasks[task].at else { return Ok(()) };
        let phase = self.event(|lane, now, fx| lane.phase(hold, now, fx))?;
        match phase {
            Some(Phase::Parked) | None => Err("a guard has no hold".into()),
            Some(_) => Ok(()),
        }
    }

    /// A guard extends its lease, as `Held::extend`.
    pub(super) fn extend(&mut self, task: usize) -> Done {
        let At::Holding { hold } = self.tasks[task].at else { return Ok(()) };
        let lease = lasting(3);
        let growth = self.event(|lane, now, fx| lane.extend(hold, lease, now, fx))?;
        if let Growth::Ask { lease, .. } = growth {
            let id = self.lane.hold(hold).ok_or("a hold is extended that is not there")?.facts.id;
            let sent = self.now;
            self.wires.push(Wire::Extension { task, hold, id, lease, sent, stage: Leg::Sent });
        }
        Ok(())
    }
}
