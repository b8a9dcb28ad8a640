//! The requests of a waiter, as in `client/asking.rs`.

use std::time::Duration;

use super::{
    rules::{Mutant, PATIENCE, Routine, TICK, Who},
    store::{Demand, KEPT, Reply, StoreId, Told},
    wires::{Call, Leg, Mishap, Wire},
    world::{At, Done, Listening, LockWorld, Noted},
};
use crate::{
    BackendError, BackendErrorKind, FencingToken, LockError, LockName, Mode,
    engine::{Grant, Offer},
    time::{Moment, lease},
};

impl LockWorld<'_> {
    /// As `Waiting::ask` until its call is polled for the first time.
    pub(super) fn send(&mut self, task: usize) -> Done {
        let At::Sending { tokens, turn_since, sent } = self.tasks[task].at else {
            return Ok(());
        };
        let Routine { mode, is_patient, .. } = self.plan(task);
        let mut request = self.request(task);
        request.id = self.id_of(task);
        request.queues = is_patient && matches!(mode, Mode::Fair | Mode::Write);
        request.tokens = tokens;
        request.number = self.offer(task);
        let call = Call { request, sent, stage: Leg::Sent };
        self.tasks[task].at = At::Asking { turn_since, call };
        if self.rules.is_immediate {
            return Ok(());
        }
        self.arm_undo(task, request, sent);
        let ticket = self.ticket(task);
        self.tasks[task].asked = Some(request.id);
        if self.has(Mutant::PendingNotTold) {
            return Ok(());
        }
        self.event(|lane, _, fx| lane.pending(ticket, sent, fx))
    }

    /// As `Contender::offer`.
    fn offer(&mut self, task: usize) -> Option<u64> {
        let listener = self.tasks[task].listener.map(|listener| listener.state);
        let is_heard = matches!(listener, Some(Listening::Listens { .. }));
        (is_heard && self.rules.takes_direct_grants(task)).then(|| {
            self.next_id += 1;
            self.next_id
        })
    }

    pub(super) fn request(&self, task: usize) -> Demand {
        let Routine { who, mode, lease, .. } = self.plan(task);
        Demand {
            id: StoreId::Own(0),
            is_named: who == Who::Named,
            mode,
            lease: lease.duration(),
            count: 1,
            queues: false,
            within: None,
            tokens: 1,
            number: None,
        }
    }

    /// The store decides on the request of a task.
    pub(super) fn apply_call(&mut self, task: usize) {
        let now = self.now;
        let (At::Asking { call, .. } | At::AskingWithin { call, .. } | At::Growing { call, .. }) =
            &mut self.tasks[task].at
        else {
            return;
        };
        if self.rules.mutant == Some(Mutant::StoreGrantsAll) {
            self.store.holds.clear();
        }
        let (answer, news) = self.store.acquire(&call.request, now);
        call.stage = Leg::Answered(answer);
        self.spread(news);
    }

    /// The answer arrives at the task that has asked.
    pub(super) fn answer(&mut self, task: usize) -> Done {
        let At::Asking { turn_since, call } = self.tasks[task].at else { return Ok(()) };
        let Leg::Answered(answer) = call.stage else { return Ok(()) };
        let was_undone = self.is_answered(task);
        match answer {
            Reply::Granted { token, told } => self.granted(task, turn_since, call, token, told)?,
            Reply::Held { remaining, told } => {
                let end = remaining.saturating_add(Duration::from_millis(1));
                self.refused(task, &call, self.now.after(end), told)?;
            }
            Reply::NotHeld => return Err("an outermost request was answered as nested".into()),
        }
        self.have_another_id(task, was_undone, &call.request);
        Ok(())
    }

    /// A task that waits for an answer takes all signals: a step follows in any case. Returns
    /// `true` if its request was undone meanwhile.
    fn is_answered(&mut self, task: usize) -> bool {
        self.tasks[task].is_woken = false;
        self.tasks[task].asked.take().is_none() && !self.rules.is_immediate
    }

    /// The request after one that was undone has another id.
    fn have_another_id(&mut self, task: usize, was_undone: bool, request: &Demand) {
        let goes_on = matches!(self.tasks[task].at, At::Ready) && self.tasks[task].id.is_some();
        if was_undone && goes_on && !self.has(Mutant::IdUsedAgain) {
            self.undo(task, *request);
        }
    }

    fn granted(
        &mut self,
        task: usize,
        turn_since: Option<Moment>,
        call: Call,
        token: FencingToken,
        told: Told,
    ) -> Done {
        let Call { request, sent, .. } = call;
        let lease = self.plan(task).lease;
        if self.now >= lease::deadline(sent, lease.duration()) {
            return self.granted_late(task, &request);
        }
        let until = self.rules.hand_over().map(|own| turn_since.unwrap_or(sent).after(own.turn));
        let grant = Grant::new(sent, lease, token, request.tokens, until);
        let facts = Noted { id: request.id, is_told: false };
        let ticket = self.ticket(task);
        if self.is_closed {
            self.arm_undo(task, request, self.now);
            return self.leave(task);
        }
        match self.event(|lane, _, fx| lane.granted(ticket, grant, token, facts, fx))? {
            Some(hold) => {
                self.tasks[task].undo = None;
                self.have_left(task);
                self.tasks[task].at = At::Holding { hold };
                self.basis = told;
                self.enters_with(token)
            }
            None => {
                self.undo(task, request);
                self.tasks[task].at = At::Ready;
                Ok(())
            }
        }
    }

    fn granted_late(&mut self, task: usize, request: &Demand) -> Done {
        self.undo(task, *request);
        let was_late = std::mem::replace(&mut self.tasks[task].was_late, true);
        if !self.plan(task).is_patient || was_late {
            return self.leave(task);
        }
        let ticket = self.ticket(task);
        self.event(|lane, now, fx| lane.late(ticket, Duration::ZERO, now, fx))?;
        self.tasks[task].at = At::Ready;
        Ok(())
    }

    fn refused(&mut self, task: usize, call: &Call, end: Moment, told: Told) -> Done {
        let Call { request, sent, .. } = call;
        let kept = if self.has(Mutant::PlacesOverrated) { 2 * KEPT } else { KEPT };
        let offer = request.number.map(|number| Offer { number, sent: *sent, kept });
        self.tasks[task].was_late = false;
        match request.queues {
            true => self.arm_undo(task, *request, self.now),
            false => self.tasks[task].undo = None,
        }
        let mut until = end.min(self.now.after(2 * TICK));
        if request.queues {
            until = until.min(self.now.after(KEPT / 3));
        }
        let ticket = self.ticket(task);
        let waits =
            self.event(|lane, now, fx| lane.refused(ticket, (until, None), offer, now, fx))?;
        match waits {
            true => {
                if self.plan(task).mode == Mode::Fair {
                    self.tasks[task].basis = told;
                }
                if self.believes_until(task, until) {
                    self.basis = told;
                }
                self.tasks[task].at = At::Ready;
            }
            false if self.plan(task).is_patient => {
                return Err("a patient one was refused".into());
            }
            false => {
                self.have_left(task);
                self.finish(task);
            }
        }
        Ok(())
    }

    /// The request of a task fails, or is not answered in time.
    pub(super) fn fail(&mut self, task: usize, failure: Mishap) -> Done {
        let At::Asking { call, .. } = self.tasks[task].at else { return Ok(()) };
        let was_undone = self.is_answered(task);
        match failure {
            Mishap::Unknown => {
                self.cut_off(&call);
                self.undo(task, call.request);
            }
            Mishap::NotApplied if call.request.queues => {}
            Mishap::NotApplied => self.tasks[task].undo = None,
        }
        if !self.plan(task).is_patient {
            return self.leave(task);
        }
        let error = no_answer()?;
        let (ticket, pause) = (self.ticket(task), Duration::from_millis(20));
        let since =
            self.event(|lane, now, fx| lane.failed(ticket, &error, true, pause, now, fx))?;
        if since.is_some_and(|since| self.now.since(since) >= PATIENCE) {
            return self.leave(task);
        }
        self.tasks[task].at = At::Ready;
        self.have_another_id(task, was_undone, &call.request);
        Ok(())
    }

    /// The answer of a call is no longer waited for. The call may still take effect.
    pub(super) fn cut_off(&mut self, call: &Call) {
        if let Leg::Sent = call.stage {
            self.wires.push(Wire::Orphan(call.request));
        }
    }

    /// As `Waiting::arm_undo`.
    pub(super) fn arm_undo(&mut self, task: usize, request: Demand, now: Moment) {
        let latest =
            now.after(if request.queues { request.lease.max(KEPT) } else { request.lease });
        let (_, until) = self.tasks[task].undo.get_or_insert((request.id, latest));
        *until = latest.max(*until);
    }

    /// As `Waiting::undo`.
    pub(super) fn undo(&mut self, task: usize, request: Demand) {
        self.arm_undo(task, request, self.now);
        self.tasks[task].id = None;
        if self.plan(task).mode == Mode::Fair {
            // A subscription is for one hold.
            self.tasks[task].listener = None;
        }
        self.carry_out_undo(task);
    }

    pub(super) fn carry_out_undo(&mut self, task: usize) {
        if let Some((id, until)) = self.tasks[task].undo.take() {
            let number = self.lane.begin_release();
            self.send_release(number, id, until);
        }
    }
}

fn no_answer() -> Result<LockError, String> {
    let error = BackendError::new(BackendErrorKind::Timeout, "no answer");
    let name = LockName::new("explored").map_err(|error| error.to_string())?;
    Ok(error.with_lock(&name).into())
}
