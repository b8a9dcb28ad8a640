//! The invariants of every state.

use super::{
    rules::TICK,
    store::StoreId,
    wires::Wire,
    world::{At, Done, Listening, LockWorld, Noted, Task},
};
use crate::{
    Mode,
    engine::{Effects, Hold, Phase, Step},
    time::Moment,
};

fn fail<T>(what: impl Into<String>) -> Result<T, String> {
    Err(what.into())
}

impl LockWorld<'_> {
    pub(super) fn check(&self) -> Done {
        self.check_places()?;
        self.check_guards()?;
        self.check_exclusion()?;
        self.check_beliefs()?;
        self.check_leftovers()?;
        self.check_requests()?;
        self.check_unpolled()?;
        self.check_counts()?;
        self.check_appointment()?;
        self.check_parked()?;
        self.check_closed()?;
        for task in 0..self.tasks.len() {
            self.check_wait(task)?;
        }
        Ok(())
    }

    /// Exactly the waiting tasks have a place, and nobody else is known as waiting.
    fn check_places(&self) -> Done {
        let waits = |task: &usize| self.tasks[*task].ticket.is_some();
        let waiting = (0..self.tasks.len()).filter(waits);
        let patient = waiting.clone().filter(|task| self.plan(*task).is_patient).count();
        if self.lane.patient() != patient {
            return fail(format!("{patient} wait, the lane knows {}", self.lane.patient()));
        }
        let is_idle = waiting.count() == 0 && self.lane.holds().is_empty() && !self.has_releases();
        if self.lane.is_idle() != is_idle {
            return fail("an idle lane is kept, or one in use is not");
        }
        Ok(())
    }

    /// Returns `true` if the lane waits for a release.
    fn has_releases(&self) -> bool {
        self.wires.iter().any(|wire| matches!(wire, Wire::Release { number: Some(_), .. }))
    }

    /// Each hold has the guards that it counts, and only a parked one has none.
    fn check_guards(&self) -> Done {
        for hold in self.lane.holds() {
            let holds = |at: At| matches!(at, At::Holding { hold: other } if other == hold.number);
            let guards = self.tasks.iter().filter(|task| holds(task.at)).count();
            let is_parked = hold.state.phase() == Phase::Parked;
            if guards != hold.state.count() as usize || is_parked != (guards == 0) {
                return fail(format!("{guards} guards, and the hold is {hold:?}"));
            }
        }
        for task in &self.tasks {
            if let At::Holding { hold } = task.at
                && self.lane.hold(hold).is_none()
            {
                return fail("a guard has no hold");
            }
        }
        let parked = self.lane.holds().iter().filter(|hold| hold.state.phase() == Phase::Parked);
        if parked.count() > 1 { fail("two holds are parked") } else { Ok(()) }
    }

    /// Holds that this client relies on, rightly unless they were released by force.
    fn believed(&self) -> impl Iterator<Item = &Hold<Noted>> {
        self.lane
            .holds()
            .iter()
            .filter(|hold| hold.is_live(self.now) && !self.doomed.contains(&hold.facts.id))
    }

    /// At most one live hold, unless they are shared.
    fn check_exclusion(&self) -> Done {
        for (at, one) in self.believed().enumerate() {
            for other in self.believed().skip(at + 1) {
                let is_one_owner = one.owner == other.owner;
                let may_be = match (one.mode, other.mode) {
                    (Mode::Permit { .. }, Mode::Permit { .. }) => true,
                    (Mode::Read, Mode::Read) => !is_one_owner,
                    (Mode::Read, Mode::Write) | (Mode::Write, Mode::Read) => is_one_owner,
                    _ => false,
                };
                if !may_be {
                    return fail(format!("both are inside: {one:?} and {other:?}"));
                }
            }
        }
        let permits = self.believed().map(|hold| match hold.mode {
            Mode::Permit { count, .. } => count,
            _ => 0,
        });
        if permits.sum::<u32>() > self.rules.permits {
            return fail("more permits are held than there are");
        }
        Ok(())
    }

    /// The store has the holds that this client relies on, parked holds included.
    fn check_beliefs(&self) -> Done {
        let parked = self.lane.holds().iter().filter(|hold| {
            let is_in_window = hold.state.handover_until().is_some_and(|until| self.now < until);
            hold.state.phase() == Phase::Parked
                && is_in_window
                && !self.doomed.contains(&hold.facts.id)
        });
        for hold in self.believed().chain(parked) {
            if self.store.find(hold.facts.id).is_none() {
                return fail(format!("the store does not have {hold:?}"));
            }
        }
        Ok(())
    }

    /// Every hold of this client at the store is used, or will be given back.
    fn check_leftovers(&self) -> Done {
        if self.rules.luck.delays > 0 {
            // A release is given up when the lease has passed, counted from the request, although
            // the store counts from its arrival.
            return Ok(());
        }
        let holds = self.store.holds.iter().map(|kept| kept.id);
        let mut all = holds.chain(self.store.places.iter().map(|place| place.id));
        match all.find(|id| *id != StoreId::Stranger && !self.accounts_for(*id)) {
            None => Ok(()),
            Some(id) => fail(format!("nobody will give back {id:?}")),
        }
    }

    /// Forgets requests for holds that are over, since their answers have no effect, and which of
    /// those somebody else has ended.
    pub(super) fn forget_what_is_over(&mut self) {
        let Self { lane, wires, .. } = self;
        wires.retain(|wire| wire.hold().is_none_or(|hold| lane.hold(hold).is_some()));
        let doomed = std::mem::take(&mut self.doomed);
        self.doomed = doomed.into_iter().filter(|id| self.accounts_for(*id)).collect();
        let holds = self.lane.holds();
        self.wanted = self.wanted.filter(|id| holds.iter().any(|hold| hold.facts.id == *id));
    }

    fn accounts_for(&self, id: StoreId) -> bool {
        let is_open = |hold: &Hold<Noted>| hold.state.phase() != Phase::Closed;
        let is_held = self.lane.holds().iter().any(|hold| hold.facts.id == id && is_open(hold));
        let is_asked_for = self.tasks.iter().any(|task| match task.at {
            At::Asking { call, .. } | At::AskingWithin { call, .. } | At::Growing { call, .. } => {
                call.request.id == id
            }
            _ => task.undo.is_some_and(|(undone, _)| undone == id),
        });
        let is_under_way = self.wires.iter().any(|wire| match wire {
            Wire::Release { id: released, .. } => *released == id,
            Wire::Orphan(request) => request.id == id,
            _ => false,
        });
        is_held || is_asked_for || is_under_way
    }

    /// A request is undone if nobody polls it for too long.
    fn check_unpolled(&self) -> Done {
        let is_forgotten = |task: &Task| {
            let At::Asking { call, .. } = task.at else { return false };
            task.asked.is_some() && call.sent.after(2 * TICK) <= self.now
        };
        match self.tasks.iter().position(is_forgotten).filter(|_| !self.is_due()) {
            Some(task) => fail(format!("nobody polls the request of {task}, and it is not undone")),
            None => Ok(()),
        }
    }

    /// One owner has at most one request under way, because the store might confuse two.
    fn check_requests(&self) -> Done {
        let asks = |task: &usize| match self.tasks[*task].at {
            At::Asking { .. } => self.rules.is_immediate || self.tasks[*task].asked.is_some(),
            At::AskingWithin { .. } => true,
            _ => false,
        };
        let asking: Vec<usize> = (0..self.tasks.len()).filter(asks).collect();
        for (at, one) in asking.iter().enumerate() {
            for other in &asking[at + 1..] {
                let may_both = matches!(self.plan(*one).mode, Mode::Permit { .. });
                if self.rules.are_one(*one, *other) && !may_both {
                    return fail(format!("{one} and {other} are one owner, and both ask"));
                }
            }
        }
        Ok(())
    }

    /// The store counts no more guards than it may have been told, and is told when it does.
    fn check_counts(&self) -> Done {
        for hold in self.lane.holds().iter().filter(|hold| hold.is_live(self.now)) {
            let kept = self.store.find(hold.facts.id);
            if kept.is_some_and(|kept| kept.count > hold.state.stored()) {
                return fail(format!("the store has a greater count than {hold:?}"));
            }
            let is_stored = self.wires.iter().any(|wire| {
                matches!(wire, Wire::StoreCount { hold: other, .. } if *other == hold.number)
            });
            let grows = self.tasks.iter().any(
                |task| matches!(task.at, At::Growing { hold: other, .. } if other == hold.number),
            );
            if hold.state.count_to_store().is_some() && !is_stored && !grows {
                return fail(format!("the store is not told the count of {hold:?}"));
            }
        }
        Ok(())
    }

    /// The background looks as soon as anything is due.
    fn check_appointment(&self) -> Done {
        if self.is_due() {
            return Ok(());
        }
        let mut fx = Effects::default();
        let renewals = self.lane.clone().due(self.now, self.now, &mut fx);
        if !fx.is_quiet() || !renewals.is_empty() {
            return fail("something is due, and nobody looks");
        }
        match fx.due {
            Some(due) if self.appointment.is_none_or(|at| due < at) => {
                fail(format!("due {} ticks from now, and nobody looks", self.ticks_to(due)))
            }
            _ => Ok(()),
        }
    }

    fn ticks_to(&self, moment: Moment) -> u8 {
        (moment.since(self.now).as_nanos().div_ceil(TICK.as_nanos())).min(200) as u8
    }

    /// A parked hold has a taker, or is about to be released.
    fn check_parked(&self) -> Done {
        let in_line = |task: &usize| self.plan(*task).mode != Mode::Fair;
        let line = (0..self.tasks.len()).filter(in_line);
        let head = line.filter_map(|task| Some((self.tasks[task].ticket?, task))).min();
        let has_heir = head.is_some_and(|(_, head)| self.rules.takes_over(head));
        let parked = |hold: &&Hold<_>| hold.state.phase() == Phase::Parked;
        let Some(parked) = self.lane.holds().iter().find(parked).filter(|_| !self.is_due()) else {
            return Ok(());
        };
        if parked.state.handover_until().is_none_or(|until| until <= self.now) {
            return fail("a parked hold outlives its window");
        }
        if has_heir {
            return Ok(());
        }
        if self.tasks.iter().any(|task| task.ticket.is_some()) {
            return fail("a hold is kept although somebody waits");
        }
        match self.wanted == Some(parked.facts.id) {
            true => fail("a hold is kept although another client wants it"),
            false if parked.state.is_kept(self.now) => Ok(()),
            false => fail("a hold is parked for nobody"),
        }
    }

    fn check_closed(&self) -> Done {
        let is_open = |hold: &Hold<_>| matches!(hold.state.phase(), Phase::Live | Phase::Parked);
        if self.is_lane_closed && self.lane.holds().iter().any(is_open) {
            return fail("somebody is inside after `close()`");
        }
        Ok(())
    }

    /// A waiting task waits for a reason: if it took a step now, it would do nothing else.
    fn check_wait(&self, task: usize) -> Done {
        let At::Waiting { until, listens } = self.tasks[task].at else { return Ok(()) };
        let may_go_on = self.tasks[task].is_woken
            || until.is_some_and(|until| until <= self.now)
            || listens && self.has_heard(task);
        // Anything that is due may wake it, and comes first.
        if may_go_on || self.is_due() || self.is_closed {
            return Ok(());
        }
        let step = self.next_step(task);
        let Step::Wait { until: now_until, listens: now_listens } = step else {
            return fail(format!("task {task} sleeps, and nobody wakes it for {step:?}"));
        };
        let ticks = |until: Option<Moment>| until.map_or(u8::MAX, |until| self.ticks_to(until));
        // The end of a release wakes it, and comes within the same time.
        let expects_release = !now_listens && now_until.is_some() && self.has_releases();
        let is_too_long = ticks(until) > ticks(now_until) && !expects_release;
        // As does the answer to a request of its owner.
        let asks = |other: usize| {
            let asks = matches!(self.tasks[other].at, At::Asking { .. });
            asks && self.rules.are_one(task, other)
        };
        let expects_owner = (0..self.tasks.len()).any(asks);
        if (is_too_long || now_listens && !listens) && !expects_owner {
            return fail(format!("task {task} sleeps too long, and nobody wakes it for {step:?}"));
        }
        self.check_news(task, listens)
    }

    /// A task that listens for news has heard everything: it does not trust an older refusal.
    fn check_news(&self, task: usize, listens: bool) -> Done {
        let Some(listener) = self.tasks[task].listener.filter(|_| listens) else { return Ok(()) };
        if !matches!(listener.state, Listening::Listens { .. }) {
            return Ok(());
        }
        let has_heard_all = match self.plan(task).mode {
            Mode::Fair => self.tasks[task].basis.first,
            _ => self.basis.all,
        };
        let mut request = self.request(task);
        request.id = self.tasks[task].id.unwrap_or(request.id);
        if !has_heard_all && self.store.would_grant(&request, self.now) {
            return fail(format!("task {task} believes a refusal that is older than the news"));
        }
        Ok(())
    }

    /// Everything is over, and nothing is left anywhere.
    pub(super) fn is_home(&self) -> bool {
        let is_done = |at: &At| matches!(at, At::Away | At::Over);
        self.tasks.iter().all(|task| is_done(&task.at))
            && self.wires.is_empty()
            && self.lane.is_idle()
            && self.store.holds.iter().all(|kept| kept.id == StoreId::Stranger)
    }
}
