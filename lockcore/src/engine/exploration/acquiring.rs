//! The steps of an acquisition, as in `client/acquire.rs` and `client/waiting.rs`.

use super::{
    rules::{Mutant, PATIENCE, Routine, TOKENS, Who},
    store::{DirectGrant, StoreId, Told},
    world::{At, Done, Hearing, Listening, LockWorld, Noted},
};
use crate::{
    FencingToken, Mode,
    engine::{Asker, Effects, Lane, Nesting, Step, Ticket},
    time::Moment,
};

/// A task that takes more steps at once than this goes in circles.
const MOST_STEPS: u32 = 8;

impl LockWorld<'_> {
    pub(super) fn plan(&self, task: usize) -> Routine {
        self.rules.tasks[task]
    }

    /// The place of a task that waits.
    pub(super) fn ticket(&self, task: usize) -> Ticket {
        match self.tasks[task].ticket {
            Some(ticket) => ticket,
            None => unreachable!("task {task} does not wait"),
        }
    }

    /// As `Acquisition::run`: comes to the lane.
    pub(super) fn arrive(&mut self, task: usize) -> Done {
        if self.is_closed {
            self.tasks[task].at = At::Over;
            return Ok(());
        }
        let Routine { who, mode, lease, is_patient, .. } = self.plan(task);
        let asker = Asker {
            owner: self.rules.owner(task).clone(),
            has_fresh_owner: who == Who::Fresh,
            mode,
            is_patient,
            takes_over: self.rules.takes_over(task),
            fails_alone: false,
            has_limit: false,
        };
        match self.event(|lane, now, fx| lane.arrive(asker, lease, (), now, fx))? {
            Err(Step::Inside(inside)) => self.enter(task, inside)?,
            Err(Step::Refused) if !is_patient => self.finish(task),
            Err(step) => return Err(format!("one that arrives was told: {step:?}")),
            Ok(ticket) => {
                self.tasks[task].ticket = Some(ticket);
                self.tasks[task].at = At::Ready;
            }
        }
        Ok(())
    }

    /// A task goes on until it has to wait, if nothing else may happen meanwhile.
    pub(super) fn proceed(&mut self, task: usize) -> Done {
        for _ in 0..MOST_STEPS {
            if self.rules.is_fine {
                return Ok(());
            }
            match self.tasks[task].at {
                At::Ready => self.step(task)?,
                At::TakingOver => self.take_over(task)?,
                At::Sending { .. } => self.send(task)?,
                At::Asking { .. } if self.rules.is_immediate => {
                    self.apply_call(task);
                    self.answer(task)?;
                }
                _ => return Ok(()),
            }
        }
        Err(format!("task {task} goes in circles"))
    }

    /// As one turn of `Waiting::take_turn`.
    pub(super) fn step(&mut self, task: usize) -> Done {
        if self.is_closed {
            return self.leave(task);
        }
        let ticket = self.ticket(task);
        if let At::Waiting { .. } = self.tasks[task].at {
            self.tasks[task].is_woken = false;
        }
        let Routine { lease, is_patient, who, .. } = self.plan(task);
        let mut step = self.event(|lane, now, fx| lane.step(ticket, lease, PATIENCE, now, fx))?;
        if self.has(Mutant::AsksBesideItsOwner)
            && who != Who::Fresh
            && matches!(step, Step::Wait { until: None, listens: false })
        {
            step = Step::Ask { tokens: 1, turn_since: None, held_until: None };
        }
        let now = self.now;
        match step {
            Step::Inside(inside) => {
                self.have_left(task);
                self.enter(task, inside)?;
            }
            Step::TakeOver => self.tasks[task].at = At::TakingOver,
            Step::Refused if is_patient => return Err("a patient one was refused".into()),
            Step::Refused | Step::Failed(_) => {
                self.have_left(task);
                self.finish(task);
            }
            Step::Wait { until: Some(until), .. } if until <= now => {
                return Err(format!("task {task} waits for what has come"));
            }
            Step::Wait { until, listens } => self.wait(task, until, listens),
            Step::Ask { tokens, turn_since, .. } => {
                let tokens = tokens.min(TOKENS);
                self.tasks[task].at = At::Sending { tokens, turn_since, sent: now };
            }
        }
        Ok(())
    }

    fn wait(&mut self, task: usize, until: Option<Moment>, listens: bool) {
        self.tasks[task].at = At::Waiting { until, listens };
        if !listens {
            return;
        }
        let id = self.id_of(task);
        let is_fair = self.plan(task).mode == Mode::Fair;
        if self.tasks[task].listener.is_none() {
            let parked = if is_fair { None } else { self.listener.take() };
            let of = is_fair.then_some(id);
            let new = Hearing { of, state: Listening::Subscribing };
            self.tasks[task].listener = Some(parked.unwrap_or(new));
        }
    }

    pub(super) fn id_of(&mut self, task: usize) -> StoreId {
        match self.tasks[task].id {
            Some(id) => id,
            None => {
                let id = self.draw_id();
                self.tasks[task].id = Some(id);
                id
            }
        }
    }

    /// The subscription is in effect, or its pause after a failure is over.
    pub(super) fn subscribed(&mut self, task: usize) -> Done {
        if let Some(listener) = &mut self.tasks[task].listener {
            listener.state = match listener.state {
                Listening::Subscribing => Listening::Listens { is_woken: false, granted: None },
                // It begins anew when it waits the next time.
                _ => Listening::Subscribing,
            };
        }
        let ticket = self.ticket(task);
        self.event(|lane, _, fx| lane.listening(ticket, fx))?;
        self.tasks[task].at = At::Ready;
        Ok(())
    }

    /// The subscription reports that the lock may be free.
    pub(super) fn hear(&mut self, task: usize, jitter: f64) -> Done {
        let granted = match self.tasks[task].listener.map(|listener| listener.state) {
            Some(Listening::Listens { granted, .. }) => granted,
            _ => None,
        };
        self.set_listening(task, Listening::Listens { is_woken: false, granted: None });
        if let Some(granted) = granted
            && self.told(task, granted)?
        {
            return Ok(());
        }
        let ticket = self.ticket(task);
        if !self.has(Mutant::NewsNotTold) {
            self.event(|lane, now, fx| lane.heard(ticket, jitter, now, fx))?;
        }
        self.tasks[task].at = At::Ready;
        Ok(())
    }

    /// As `Contender::told`. Returns `true` if it enters.
    fn told(&mut self, task: usize, granted: DirectGrant) -> Result<bool, String> {
        let (ticket, id, lease) = (self.ticket(task), self.id_of(task), self.plan(task).lease);
        if self.is_closed {
            return Ok(false);
        }
        let DirectGrant { number, token } = granted;
        let facts = Noted { id, is_told: false };
        let told = |lane: &mut Lane<_, _>, now, fx: &mut _| {
            lane.told(ticket, (number, token), lease, facts, now, fx)
        };
        let told = self.event(told)?;
        let Some(hold) = told else { return Ok(false) };
        self.tasks[task].undo = None;
        self.have_left(task);
        self.tasks[task].at = At::Holding { hold };
        self.enters_with(token)?;
        Ok(true)
    }

    pub(super) fn take_over(&mut self, task: usize) -> Done {
        self.tasks[task].at = At::Ready;
        if self.is_closed {
            return Ok(());
        }
        let ticket = self.ticket(task);
        let take = |facts: &mut Noted| facts.is_told = false;
        let taken = self.event(|lane, now, fx| lane.take_over(ticket, take, now, fx))?;
        if let Some(hold) = taken {
            let token = self.lane.hold(hold).ok_or("a hold that was taken over is gone")?.token;
            self.have_left(task);
            self.tasks[task].at = At::Holding { hold };
            self.enters_with(token)?;
        }
        Ok(())
    }

    /// Returns `true` if a task that took a step now would wait for news until `moment`.
    pub(super) fn believes_until(&self, task: usize, moment: Moment) -> bool {
        let step = self.next_step(task);
        matches!(step, Step::Wait { until: Some(until), listens: true } if until == moment)
    }

    /// The step that a task would take now.
    pub(super) fn next_step(&self, task: usize) -> Step {
        let (ticket, lease) = (self.ticket(task), self.plan(task).lease);
        self.lane.clone().step(ticket, lease, PATIENCE, self.now, &mut Effects::default())
    }

    /// A waiter is dropped, wherever it is: as `Waiting` and its `Place`.
    pub(super) fn leave(&mut self, task: usize) -> Done {
        if let At::Asking { call, .. } = self.tasks[task].at {
            self.cut_off(&call);
        }
        self.carry_out_undo(task);
        let ticket = self.ticket(task);
        let (is_kept, is_unnoticed) =
            (self.has(Mutant::PlaceKept), self.has(Mutant::LeavesUnnoticed));
        self.event(|lane, now, fx| {
            if !is_kept {
                lane.leave(ticket, now, fx);
            }
            if is_unnoticed {
                fx.wake.clear();
            }
        })?;
        self.have_left(task);
        self.finish(task);
        Ok(())
    }

    /// A waiter that has no place any more is dropped. It leaves its subscription to the line.
    pub(super) fn have_left(&mut self, task: usize) {
        self.carry_out_undo(task);
        let listener = self.tasks[task].listener.take();
        // The subscription of a fair waiter is for one hold only.
        let listener = listener.filter(|listener| listener.of.is_none());
        if listener.is_some() && self.lane.has_line() {
            self.listener = listener;
        }
        let gone = &mut self.tasks[task];
        (gone.ticket, gone.id, gone.was_late) = (None, None, false);
        (gone.is_woken, gone.asked, gone.basis) = (false, None, Told::NONE);
    }

    /// Enters as an owner that is inside already.
    pub(super) fn enter(&mut self, task: usize, inside: Nesting) -> Done {
        match inside {
            Nesting::Entered(hold) => self.tasks[task].at = At::Holding { hold },
            Nesting::Grow(hold) => self.tasks[task].at = At::Nesting { hold },
            Nesting::Within(write) => self.tasks[task].at = At::Within { write },
            Nesting::Upgrade | Nesting::Lost(_) | Nesting::TooDeep => self.finish(task),
        }
        Ok(())
    }

    /// An acquisition is over, or its guard is gone.
    pub(super) fn finish(&mut self, task: usize) {
        let task = &mut self.tasks[task];
        task.rounds = task.rounds.map(|rounds| rounds - 1);
        task.at = if task.rounds == Some(0) { At::Over } else { At::Away };
    }

    /// A new hold has this token.
    pub(super) fn enters_with(&mut self, token: FencingToken) -> Done {
        if token <= self.greatest_token {
            let greatest = self.greatest_token;
            return Err(format!("a hold has the token {token}, an earlier one had {greatest}"));
        }
        self.greatest_token = token;
        Ok(())
    }
}
