//! [`LockWorld`]: one client with a few tasks that want one name, the store, and another client.
//!
//! It does what `client/` does, and nothing else. The names of functions in the comments say where
//! to find each rule there.

use std::hash::Hash;

use smallvec::SmallVec;

use super::{
    portrait::{BITS, FIRST_ID, FIRST_TICK, FIRST_TOKEN, Portrait},
    rules::{Luck, Mutant, Rules, TICK, Who},
    store::{DirectGrant, ModelStore, News, Reply, StoreId, Told},
    wires::{Call, Leg, Wire},
};
use crate::{
    FencingToken,
    engine::{Effect, Effects, HoldNumber, Lane, Release, ReleaseNumber, Ticket},
    time::Moment,
};

pub(super) type Done = Result<(), String>;

/// As `HoldFacts`.
#[derive(Clone, Debug, Hash)]
pub(super) struct Noted {
    pub(super) id: StoreId,
    /// Set once the watchers were told how it ended, as by `Watch::end`.
    pub(super) is_told: bool,
}

/// As `Listener`.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Hearing {
    /// It listens for the place of this hold in the queue, or for everything else.
    pub(super) of: Option<StoreId>,
    pub(super) state: Listening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Listening {
    Subscribing,
    Listens { is_woken: bool, granted: Option<DirectGrant> },
    Pauses { until: Moment },
}

/// The present activity of a task.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum At {
    /// It wants nothing, at the moment.
    Away,
    /// It wants nothing any more.
    Over,
    /// It has a place, and takes a step.
    Ready,
    /// It sleeps until it is woken, until a moment, or until it hears something.
    Waiting {
        until: Option<Moment>,
        listens: bool,
    },
    /// It was told to take over the parked hold.
    TakingOver,
    /// It was told to ask.
    Sending {
        tokens: u32,
        turn_since: Option<Moment>,
        sent: Moment,
    },
    Asking {
        turn_since: Option<Moment>,
        call: Call,
    },
    /// It nests in this hold, which has to grow first.
    Nesting {
        hold: HoldNumber,
    },
    Growing {
        hold: HoldNumber,
        call: Call,
    },
    /// It reads beside this write hold.
    Within {
        write: HoldNumber,
    },
    AskingWithin {
        write: HoldNumber,
        call: Call,
    },
    /// It is inside, with a guard of this hold.
    Holding {
        hold: HoldNumber,
    },
}

/// A task, and what its acquisition keeps: as `Waiting`, `Place` and `Held`.
#[derive(Clone, Debug, Hash)]
pub(super) struct Task {
    pub(super) at: At,
    pub(super) rounds: Option<u8>,
    pub(super) ticket: Option<Ticket>,
    /// Set if it was told to take a step, and has not taken it.
    pub(super) is_woken: bool,
    /// Its request, unless that was undone.
    pub(super) asked: Option<StoreId>,
    /// The id that it asks for, drawn when it is first sent.
    pub(super) id: Option<StoreId>,
    /// The hold that its requests may have left behind, and until when.
    pub(super) undo: Option<(StoreId, Moment)>,
    pub(super) listener: Option<Hearing>,
    /// Set if a grant came too late, so that the next one has to be in time.
    pub(super) was_late: bool,
    /// Which listeners were told nothing since the store last refused this task, or granted the
    /// hold in its way.
    pub(super) basis: Told,
}

#[derive(Clone, Debug)]
pub(super) struct LockWorld<'a> {
    pub(super) rules: &'a Rules,
    pub(super) luck: Luck,
    pub(super) now: Moment,
    pub(super) lane: Lane<(), Noted>,
    /// When the background looks at the lane.
    pub(super) appointment: Option<Moment>,
    /// The subscription of the line, while no head has it.
    pub(super) listener: Option<Hearing>,
    pub(super) tasks: SmallVec<[Task; 4]>,
    /// Requests that are under way and that no task waits for.
    pub(super) wires: Vec<Wire>,
    pub(super) store: ModelStore,
    pub(super) is_closed: bool,
    /// `close()` has looked at the lane.
    pub(super) is_lane_closed: bool,
    pub(super) next_id: u64,
    /// The greatest token that anybody entered with.
    pub(super) greatest_token: FencingToken,
    /// Holds that somebody else has ended at the store.
    pub(super) doomed: SmallVec<[StoreId; 2]>,
    /// The hold for which it was heard that somebody else wants the lock.
    pub(super) wanted: Option<StoreId>,
    /// Which listeners were told nothing since the line was last refused.
    pub(super) basis: Told,
}

impl<'a> LockWorld<'a> {
    pub(super) fn new(rules: &'a Rules) -> Self {
        let tasks = rules.tasks.iter().map(|plan| Task {
            at: At::Away,
            rounds: plan.rounds,
            ticket: None,
            is_woken: false,
            asked: None,
            id: None,
            undo: None,
            listener: None,
            was_late: false,
            basis: Told::NONE,
        });
        Self {
            rules,
            luck: rules.luck,
            now: Moment::ORIGIN.after(FIRST_TICK * TICK),
            lane: Lane::explored(rules.hand_over(), BITS),
            appointment: None,
            listener: None,
            tasks: tasks.collect(),
            wires: Vec::new(),
            store: ModelStore::new(rules.permits),
            is_closed: false,
            is_lane_closed: false,
            next_id: FIRST_ID,
            greatest_token: FencingToken::from(FIRST_TOKEN - 1),
            doomed: SmallVec::new(),
            wanted: None,
            basis: Told::NONE,
        }
    }

    /// The same for all states from which the same follows.
    pub(super) fn fingerprint(&self) -> u64 {
        let Self { rules: _, luck, now, lane, appointment, listener, tasks, wires, store, .. } =
            self;
        let Self {
            is_closed,
            is_lane_closed,
            next_id: _,
            greatest_token,
            doomed,
            wanted,
            basis,
            ..
        } = self;
        let mut portrait = Portrait::default();
        (luck, lane, appointment, listener, tasks, store).hash(&mut portrait);
        (is_closed, is_lane_closed, greatest_token, doomed, wanted, basis).hash(&mut portrait);
        portrait.unordered(wires);
        portrait.fingerprint(*now)
    }

    pub(super) fn has(&self, mutant: Mutant) -> bool {
        self.rules.mutant == Some(mutant)
    }

    pub(super) fn set_listening(&mut self, task: usize, state: Listening) {
        if let Some(listener) = &mut self.tasks[task].listener {
            listener.state = state;
        }
    }

    pub(super) fn draw_id(&mut self) -> StoreId {
        self.next_id += 1;
        StoreId::Own(self.next_id)
    }

    /// Reports an event to the lane and carries out what follows, as `Client::with`.
    pub(super) fn event<T>(
        &mut self,
        event: impl FnOnce(&mut Lane<(), Noted>, Moment, &mut Effects<Noted>) -> T,
    ) -> Result<T, String> {
        let mut fx = Effects::default();
        let now = match self.has(Mutant::ClockBehind) {
            true => Moment::ORIGIN.after(self.now.since(Moment::ORIGIN).saturating_sub(2 * TICK)),
            false => self.now,
        };
        let result = event(&mut self.lane, now, &mut fx);
        self.carry_out(fx)?;
        Ok(result)
    }

    /// As `Client::carry_out` and `Client::settle`.
    fn carry_out(&mut self, fx: Effects<Noted>) -> Done {
        let Effects { wake, due, rare } = fx;
        for ticket in wake {
            if let Some(task) = self.with_ticket(ticket) {
                self.tasks[task].is_woken = true;
            }
        }
        for effect in rare {
            match effect {
                Effect::Lost(number, reason) => {
                    // A hold whose last guard goes no longer exists.
                    let Some(hold) = self.lane.hold_mut(number) else { continue };
                    if std::mem::replace(&mut hold.facts.is_told, true) {
                        return Err(format!("{number:?} ended twice, last: {reason}"));
                    }
                }
                Effect::Release(_) if self.has(Mutant::ParkedForgotten) => {}
                Effect::Release(release) => self.release(release),
                Effect::Undo(ticket) => self.undo_unpolled(ticket),
                Effect::UndoLost(number) => self.undo_lost(number),
                Effect::Over(_) => {}
            }
        }
        if !self.lane.has_line() {
            self.listener = None;
        }
        if self.lane.is_idle() {
            self.lane.rest();
            (self.appointment, self.listener) = (None, None);
        } else if let Some(due) = due
            && self.appointment.is_none_or(|at| due < at)
            && !self.has(Mutant::NoAppointments)
        {
            self.appointment = Some(due);
        }
        Ok(())
    }

    fn with_ticket(&self, ticket: Ticket) -> Option<usize> {
        self.tasks.iter().position(|task| task.ticket == Some(ticket))
    }

    /// As `Client::undo_unpolled`.
    fn undo_unpolled(&mut self, ticket: Ticket) {
        let Some(task) = self.with_ticket(ticket) else { return };
        let Some(id) = self.tasks[task].asked.take() else { return };
        let until = match self.tasks[task].at {
            At::Asking { call, .. } => call.sent.after(call.request.lease),
            _ => self.now,
        };
        let number = self.lane.begin_release();
        self.send_release(number, id, until);
    }

    /// As `Client::undo_lost`.
    fn undo_lost(&mut self, number: HoldNumber) {
        let Some(hold) = self.lane.hold(number) else { return };
        let has_name = |task: &usize| self.rules.tasks[*task].who == Who::Named;
        let mut named = (0..self.tasks.len()).filter(has_name);
        let is_named = named.any(|task| *self.rules.owner(task) == hold.owner);
        if !is_named && !self.has(Mutant::LostKeepsItsPlace) {
            let (id, until) = (hold.facts.id, hold.state.asked());
            let number = self.lane.begin_release();
            self.send_release(number, id, until);
        }
    }

    pub(super) fn send_release(&mut self, number: ReleaseNumber, id: StoreId, until: Moment) {
        self.wires.push(Wire::Release {
            number: Some(number),
            id,
            until,
            stage: Some(Leg::Sent),
            sent: self.now,
            is_repeated: false,
        });
    }

    /// As `Client::release_of`.
    pub(super) fn release(&mut self, release: Release<Noted>) {
        let Release { number, mode: _, until, facts } = release;
        self.send_release(number, facts.id, until);
    }

    /// The store has sent news.
    pub(super) fn spread(&mut self, news: News) {
        if news == News::None {
            return;
        }
        let (first, told) = match news {
            News::Granted { to, granted } => (Some(to), Some(granted)),
            News::AllAndFirst => (self.store.places.first().map(|place| place.id), None),
            News::None => (None, None),
        };
        let outdate = |told: &mut Told, id: Option<StoreId>| {
            told.all = false;
            told.first &= first.is_none() || first != id;
        };
        outdate(&mut self.basis, None);
        for task in &mut self.tasks {
            if task.ticket.is_some() {
                outdate(&mut task.basis, task.id);
            }
            if let At::Asking { call, .. } = &mut task.at
                && let Leg::Answered(Reply::Granted { told, .. } | Reply::Held { told, .. }) =
                    &mut call.stage
            {
                outdate(told, Some(call.request.id));
            }
        }
        let own = self.tasks.iter_mut().filter_map(|task| task.listener.as_mut());
        for listener in own.chain(&mut self.listener) {
            let hears = match listener.of {
                None => true,
                Some(_) => listener.of == first,
            };
            if let Listening::Listens { is_woken, granted } = &mut listener.state
                && hears
            {
                *is_woken = true;
                *granted = told.filter(|_| listener.of.is_some());
            }
        }
    }
}
