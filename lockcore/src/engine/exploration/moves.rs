//! [`Move`]: everything that can happen in a world, and when it can.

use super::{
    rules::{Mutant, TICK, lasting},
    store::{Demand, StoreId},
    wires::{Call, Leg, Mishap, Wire},
    world::{At, Done, Listening, LockWorld},
};
use crate::{Mode, engine::Phase};

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// Time passes.
    Tick,
    /// Time passes although something could go on: a task is not polled, the background does not
    /// run, or the store takes its time.
    Delay,
    /// An event of the task with this number.
    Task(usize, Act),
    /// An event of something under way, by its number.
    Wire(usize, Trip),
    /// The background looks at the lane.
    Due,
    StrangerAsks,
    StrangerLeaves,
    /// It is heard that another client wants the lock.
    Wanted,
    /// The lock is freed by a forced release, here or elsewhere.
    Forced {
        here: bool,
    },
    /// The store forgets that it has granted the lock directly.
    Forgets,
    /// `close()` begins. Next it looks at the lane.
    Closes,
    LaneCloses,
}

/// An action of a task, or an event that affects it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Arrives,
    Steps,
    TakesOver,
    Sends,
    Subscribes,
    SubscriptionFails,
    FalseAlarm,
    /// With this jitter.
    Hears(f64),
    CallReachesStore,
    CallIsAnswered,
    CallFails(Mishap),
    CallIsNotAnswered,
    Nests,
    ReadsWithin,
    /// It notices that the client is closed.
    IsCutOff,
    IsDropped,
    Departs,
    /// It asks its guard whether it is still held.
    Looks,
    Extends,
}

/// An event of something that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trip {
    Begins,
    ReachesStore,
    Returns,
    Fails,
    IsNotAnswered,
    IsLost,
}

/// The possible next moves.
#[derive(Default)]
struct Moves {
    all: Vec<Move>,
    /// Set if one of them happens before time passes.
    is_urgent: bool,
}

impl Moves {
    /// Adds a move that happens at once by itself, unless time is lost.
    fn at_once(&mut self, next: Move) {
        self.is_urgent = true;
        self.all.push(next);
    }

    /// Adds a move that happens at some time or never: tasks work for any time, come and go.
    fn some_time(&mut self, next: Move) {
        self.all.push(next);
    }
}

impl LockWorld<'_> {
    pub(super) fn moves(&self) -> Vec<Move> {
        let mut moves = Moves::default();
        for task in 0..self.tasks.len() {
            self.moves_of_task(task, &mut moves);
        }
        for at in 0..self.wires.len() {
            self.moves_of_wire(at, &mut moves);
        }
        if self.is_due() {
            moves.at_once(Move::Due);
        }
        self.moves_of_others(&mut moves);
        if !moves.is_urgent {
            moves.all.push(Move::Tick);
        } else if self.luck.delays > 0 {
            moves.all.push(Move::Delay);
        }
        moves.all
    }

    /// Returns `true` if the background has to look at the lane now.
    pub(super) fn is_due(&self) -> bool {
        self.appointment.is_some_and(|at| at <= self.now)
    }

    fn moves_of_task(&self, task: usize, moves: &mut Moves) {
        let act = |act| Move::Task(task, act);
        match self.tasks[task].at {
            At::Over => return,
            At::Away => return moves.some_time(act(Act::Arrives)),
            At::Holding { .. } => return self.moves_of_guard(task, moves),
            At::Ready => moves.at_once(act(Act::Steps)),
            At::Waiting { .. } => self.moves_of_waiter(task, moves),
            At::TakingOver => moves.at_once(act(Act::TakesOver)),
            At::Sending { .. } => moves.at_once(act(Act::Sends)),
            At::Asking { call, .. } => {
                self.moves_of_call(task, &call, moves);
                if self.is_closed && self.tasks[task].is_woken {
                    moves.at_once(act(Act::IsCutOff));
                }
            }
            At::Growing { call, .. } | At::AskingWithin { call, .. } => {
                self.moves_of_call(task, &call, moves);
                if self.is_closed {
                    moves.at_once(act(Act::IsCutOff));
                }
            }
            At::Nesting { hold } if self.is_in_order(hold) => moves.at_once(act(Act::Nests)),
            At::Within { write } if self.is_in_order(write) => {
                moves.at_once(act(Act::ReadsWithin));
            }
            At::Nesting { .. } | At::Within { .. } => {}
        }
        if self.luck.drops > 0 {
            moves.some_time(act(Act::IsDropped));
        }
    }

    /// Returns `true` if the subscription of a listening waiter has something to report.
    pub(super) fn has_heard(&self, task: usize) -> bool {
        match self.tasks[task].listener.map(|listener| listener.state) {
            Some(Listening::Listens { is_woken, .. }) => is_woken,
            Some(Listening::Pauses { until }) => until <= self.now,
            Some(Listening::Subscribing) | None => false,
        }
    }

    /// As the order in `Waiting::wait`: signals come first, then what is heard, then time.
    fn moves_of_waiter(&self, task: usize, moves: &mut Moves) {
        let act = |act| Move::Task(task, act);
        let At::Waiting { until, listens } = self.tasks[task].at else { return };
        if self.tasks[task].is_woken {
            return moves.at_once(act(Act::Steps));
        }
        let has_heard = listens && self.has_heard(task);
        if until.is_some_and(|until| until <= self.now) && !has_heard {
            moves.at_once(act(Act::Steps));
        }
        let Some(listener) = self.tasks[task].listener.filter(|_| listens) else { return };
        match listener.state {
            Listening::Subscribing => {
                moves.at_once(act(Act::Subscribes));
                if self.luck.failures > 0 {
                    moves.some_time(act(Act::SubscriptionFails));
                }
            }
            Listening::Pauses { .. } if has_heard => moves.at_once(act(Act::Subscribes)),
            Listening::Listens { is_woken: true, .. } => {
                moves.at_once(act(Act::Hears(0.0)));
                if self.rules.hands_over {
                    moves.at_once(act(Act::Hears(0.5)));
                }
            }
            Listening::Listens { is_woken: false, .. } if self.luck.false_alarms > 0 => {
                moves.some_time(act(Act::FalseAlarm));
            }
            Listening::Pauses { .. } | Listening::Listens { .. } => {}
        }
    }

    fn moves_of_call(&self, task: usize, call: &Call, moves: &mut Moves) {
        let act = |act| Move::Task(task, act);
        let is_sent = matches!(call.stage, Leg::Sent);
        moves.at_once(act(if is_sent { Act::CallReachesStore } else { Act::CallIsAnswered }));
        if self.luck.failures > 0 {
            moves.some_time(act(Act::CallFails(Mishap::Unknown)));
            if is_sent {
                moves.some_time(act(Act::CallFails(Mishap::NotApplied)));
            }
        }
        if call.sent < self.now {
            moves.at_once(act(Act::CallIsNotAnswered));
        }
    }

    fn moves_of_guard(&self, task: usize, moves: &mut Moves) {
        let act = |act| Move::Task(task, act);
        let At::Holding { hold } = self.tasks[task].at else { return };
        moves.some_time(act(Act::Departs));
        let Some(hold) = self.lane.hold(hold) else { return };
        let is_live = hold.state.phase() == Phase::Live;
        if is_live && hold.state.deadline() <= self.now {
            moves.some_time(act(Act::Looks));
        }
        let extends = self.wires.iter().any(|wire| wire.is_extension_by(task));
        if is_live && self.luck.extensions > 0 && !extends {
            moves.some_time(act(Act::Extends));
        }
    }

    fn moves_of_wire(&self, at: usize, moves: &mut Moves) {
        let (wire, trip) = (&self.wires[at], |trip| Move::Wire(at, trip));
        if let Wire::Orphan(_) = wire {
            moves.some_time(trip(Trip::ReachesStore));
            return moves.some_time(trip(Trip::IsLost));
        }
        if !wire.is_under_way() {
            let waits = matches!(wire, Wire::StoreCount { hold, .. } if !self.is_in_order(*hold));
            if !waits {
                moves.at_once(trip(Trip::Begins));
            }
            return;
        }
        if !wire.is_answered() {
            moves.at_once(trip(Trip::ReachesStore));
        } else if !self.has(Mutant::AnswersLost) {
            moves.at_once(trip(Trip::Returns));
        }
        if wire.sent().is_some() && self.luck.failures > 0 {
            moves.some_time(trip(Trip::Fails));
        }
        if wire.sent().is_some_and(|sent| sent < self.now) {
            moves.at_once(trip(Trip::IsNotAnswered));
        }
    }

    fn moves_of_others(&self, moves: &mut Moves) {
        if let Some(request) = self.strangers_request() {
            let has_place = self.store.places.iter().any(|place| place.id == StoreId::Stranger);
            let has_hold = self.store.find(StoreId::Stranger).is_some();
            if has_hold || has_place {
                moves.some_time(Move::StrangerLeaves);
            }
            let would_get = || self.store.would_grant(&request, self.now);
            if !has_hold && (would_get() || !has_place && request.queues) {
                moves.some_time(Move::StrangerAsks);
            }
        }
        if self.rules.lingers && self.wanted.is_none() && !self.lane.holds().is_empty() {
            moves.some_time(Move::Wanted);
        }
        if self.luck.forced > 0 && !self.store.holds.is_empty() {
            moves.some_time(Move::Forced { here: true });
            moves.some_time(Move::Forced { here: false });
        }
        if self.luck.failovers > 0 && self.believed_grant().is_some() {
            moves.some_time(Move::Forgets);
        }
        if self.luck.closings > 0 && !self.is_closed {
            moves.some_time(Move::Closes);
        }
        if self.is_closed && !self.is_lane_closed {
            moves.at_once(Move::LaneCloses);
        }
    }

    fn strangers_request(&self) -> Option<Demand> {
        let stranger = self.rules.stranger?;
        Some(Demand {
            id: StoreId::Stranger,
            is_named: false,
            mode: stranger,
            lease: lasting(2),
            count: 1,
            queues: matches!(stranger, Mode::Fair | Mode::Write),
            within: None,
            tokens: 1,
            number: None,
        })
    }

    /// Lets something happen. Fails if it goes wrong.
    pub(super) fn make(&mut self, next: Move) -> Done {
        match next {
            Move::Tick => self.tick(),
            Move::Delay => {
                self.luck.delays -= 1;
                self.tick();
            }
            Move::Task(task, act) => self.act(task, act)?,
            Move::Wire(at, trip) => self.travel(at, trip)?,
            Move::Due => self.look_at_due()?,
            Move::StrangerAsks => {
                if let Some(request) = self.strangers_request() {
                    let (_, news) = self.store.acquire(&request, self.now);
                    self.spread(news);
                }
            }
            Move::StrangerLeaves => {
                let (_, news) = self.store.release(StoreId::Stranger, 0);
                self.spread(news);
            }
            Move::Wanted => {
                self.wanted = self.lane.holds().first().map(|hold| hold.facts.id);
                if !self.has(Mutant::DemandNotTold) {
                    self.event(|lane, now, fx| lane.wanted(now, fx))?;
                }
            }
            Move::Forced { here } => {
                self.luck.forced -= 1;
                self.force(here);
            }
            Move::Forgets => {
                self.luck.failovers -= 1;
                self.forget_grant();
            }
            Move::Closes => {
                self.luck.closings -= 1;
                self.is_closed = true;
            }
            Move::LaneCloses => self.close_lane()?,
        }
        self.forget_what_is_over();
        Ok(())
    }

    fn tick(&mut self) {
        self.now = self.now.after(TICK);
        self.store.expire(self.now);
    }

    fn act(&mut self, task: usize, act: Act) -> Done {
        match act {
            Act::Arrives => self.arrive(task)?,
            Act::Steps => self.step(task)?,
            Act::TakesOver => self.take_over(task)?,
            Act::Sends => self.send(task)?,
            Act::Subscribes => self.subscribed(task)?,
            Act::SubscriptionFails => {
                self.luck.failures -= 1;
                self.set_listening(task, Listening::Pauses { until: self.now.after(TICK) });
            }
            Act::FalseAlarm => {
                self.luck.false_alarms -= 1;
                let alarmed = Listening::Listens { is_woken: true, granted: None };
                self.set_listening(task, alarmed);
            }
            Act::Hears(jitter) => self.hear(task, jitter)?,
            Act::CallReachesStore => self.apply_call(task),
            Act::CallIsAnswered => match self.tasks[task].at {
                At::Asking { .. } => self.answer(task)?,
                At::Growing { .. } => self.answer_growth(task)?,
                _ => self.answer_within(task)?,
            },
            Act::CallFails(failure) => {
                self.luck.failures -= 1;
                self.fail_any(task, failure)?;
            }
            Act::CallIsNotAnswered => self.fail_any(task, Mishap::Unknown)?,
            Act::Nests => self.nest(task)?,
            Act::ReadsWithin => self.read_within(task)?,
            Act::IsCutOff => self.drop_any(task)?,
            Act::IsDropped => {
                self.luck.drops -= 1;
                self.drop_any(task)?;
            }
            Act::Departs => self.depart(task)?,
            Act::Looks => self.look(task)?,
            Act::Extends => {
                self.luck.extensions -= 1;
                self.extend(task)?;
            }
        }
        self.proceed(task)
    }

    fn travel(&mut self, at: usize, trip: Trip) -> Done {
        match trip {
            Trip::Begins => self.begin_wire(at),
            Trip::ReachesStore => {
                self.reach_store(at);
                if self.rules.is_immediate {
                    return self.come_back(at);
                }
            }
            Trip::Returns => return self.come_back(at),
            Trip::Fails => {
                self.luck.failures -= 1;
                return self.fail_wire(at);
            }
            Trip::IsNotAnswered => return self.fail_wire(at),
            Trip::IsLost => {
                self.wires.remove(at);
            }
        }
        Ok(())
    }

    fn fail_any(&mut self, task: usize, failure: Mishap) -> Done {
        match self.tasks[task].at {
            At::Asking { .. } => return self.fail(task, failure),
            At::Growing { .. } => self.fail_growth(task),
            _ => self.fail_within(task, failure),
        }
        Ok(())
    }

    fn drop_any(&mut self, task: usize) -> Done {
        match self.tasks[task].ticket {
            Some(_) => return self.leave(task),
            None => self.give_up_inside(task),
        }
        Ok(())
    }
}
