//! Drawing a [`Plan`] by chance.

use std::time::Duration;

use lockcore::BackendErrorKind;
use lockcore_testkit::{Fault, Op};

use crate::{
    chance::Chance,
    plan::{
        ClientPlan, How, LONGEST_LEASE, Leave, Member, Plan, PlannedHold, PlannedStep, TaskPlan,
        Trouble, Whose,
    },
};

impl Plan {
    /// The plan that a seed chooses.
    pub(crate) fn of(chance: &Chance) -> Self {
        let clients = chance.pick(&[1, 2, 2, 3]);
        let permits = chance.within(1..5) as u32;
        let healthy = chance.once_in(3);
        let closes = !healthy && chance.once_in(6);
        let signals = chance.once_in(3);
        let draw = Draw { chance, clients, permits, healthy, closes, signals };
        let intensity = chance.within(0..4);
        Self {
            clients: (0..clients).map(|_| draw.client(intensity)).collect(),
            queue_timeout: chance.pick(&[100, 1000, 3000].map(Duration::from_millis)),
            permits,
            tasks: draw.tasks(),
            troubles: if healthy { Vec::new() } else { draw.troubles() },
        }
    }
}

struct Draw<'a> {
    chance: &'a Chance,
    clients: usize,
    permits: u32,
    healthy: bool,
    closes: bool,
    /// Latches and conditions are in use.
    signals: bool,
}

impl Draw<'_> {
    fn client(&self, intensity: usize) -> ClientPlan {
        let millis = Duration::from_millis;
        let hand_over = self.chance.pick(&[Duration::ZERO, millis(50), millis(50), millis(1000)]);
        let lingers = !hand_over.is_zero() && self.chance.once_in(2);
        ClientPlan {
            lease: self.chance.pick(&[millis(300), millis(1000), LONGEST_LEASE]),
            retry_for: self.chance.pick(&[Duration::ZERO, millis(500), millis(5000)]),
            hand_over,
            linger: if lingers {
                self.chance.pick(&[millis(5), millis(100)])
            } else {
                Duration::ZERO
            },
            intensity,
        }
    }

    fn tasks(&self) -> Vec<TaskPlan> {
        // A run covers one subject or two, so that there is contention.
        let subject = self.chance.below(7);
        let subjects =
            [subject, if self.chance.once_in(2) { self.chance.below(7) } else { subject }];
        let mut tasks: Vec<_> =
            (0..self.chance.within(2..8)).map(|_| self.task(subjects)).collect();
        if self.signals {
            self.add_latches(&mut tasks);
            // Closed clients produce nothing.
            if !self.closes {
                self.add_consumers(&mut tasks);
            }
        }
        tasks
    }

    fn task(&self, subjects: [usize; 2]) -> TaskPlan {
        let steps = 0..self.chance.within(1..9);
        TaskPlan {
            client: self.chance.below(self.clients),
            steps: steps.map(|_| (self.idle(), self.step(self.chance.pick(&subjects)))).collect(),
        }
    }

    fn idle(&self) -> Duration {
        match self.chance.below(4) {
            0 | 1 => Duration::ZERO,
            2 => self.chance.millis(0..20),
            _ => self.chance.millis(0..400),
        }
    }

    fn step(&self, subject: usize) -> PlannedStep {
        let chance = self.chance;
        if chance.once_in(12) {
            return PlannedStep::State(chance.pick(&["a", "b", "r", "s"]));
        }
        match subject {
            0 => PlannedStep::Hold(self.hold(Member::Lock("a"), 0)),
            1 => PlannedStep::Hold(self.hold(Member::Fair("b"), 0)),
            2 if chance.once_in(4) => PlannedStep::Downgrade { during: self.during() },
            2 | 3 => PlannedStep::Hold(
                self.hold(chance.pick(&[Member::Read, Member::Read, Member::Write]), 0),
            ),
            4 if chance.once_in(10) => PlannedStep::Resize(self.permits),
            4 => PlannedStep::Hold(self.hold(self.some_permits(), 0)),
            5 => self.multi(),
            _ => PlannedStep::Hold(self.hold(self.any_member(), 0)),
        }
    }

    fn some_permits(&self) -> Member {
        Member::Permits(self.chance.within(1..self.permits as usize + 1) as u32)
    }

    fn any_member(&self) -> Member {
        let name = self.chance.pick(&["a", "b"]);
        match self.chance.below(5) {
            0 => Member::Lock(name),
            1 => Member::Fair(name),
            2 => Member::Read,
            3 => Member::Write,
            _ => self.some_permits(),
        }
    }

    fn multi(&self) -> PlannedStep {
        let chance = self.chance;
        let mut all = [
            Member::Lock("a"),
            Member::Lock("b"),
            chance.pick(&[Member::Read, Member::Write]),
            self.some_permits(),
        ];
        // In whatever order.
        all.rotate_left(chance.below(4));
        if chance.once_in(2) {
            all.reverse();
        }
        let members: Vec<_> = all.into_iter().filter(|_| chance.once_in(2)).collect();
        let members = if members.is_empty() { all[..2].to_vec() } else { members };
        PlannedStep::Multi { members, how: self.how(), during: self.during(), leave: self.leave() }
    }

    fn hold(&self, lock: Member, depth: usize) -> PlannedHold {
        let chance = self.chance;
        let whose = if depth == 0 && chance.once_in(10) {
            Whose::Named(chance.below(2))
        } else {
            Whose::Own
        };
        let inner = if depth < 3 && chance.once_in(3) { chance.within(1..3) } else { 0 };
        PlannedHold {
            lock,
            how: self.how(),
            whose,
            lease: chance.once_in(3).then(|| chance.millis(20..2000)),
            during: self.during(),
            turns: 0,
            inner: (0..inner).map(|_| self.inner(lock, depth + 1)).collect(),
            leave: self.leave(),
        }
    }

    fn inner(&self, lock: Member, depth: usize) -> PlannedHold {
        let hold = self.hold(self.within(lock), depth);
        if self.chance.once_in(4) {
            // Wants more than the outer hold has, and gives up while that is requested.
            let how = How::Polls(self.chance.within(1..8));
            return PlannedHold { how, lease: Some(self.chance.millis(2000..3000)), ..hold };
        }
        hold
    }

    /// A lock that may be acquired while holding this one.
    fn within(&self, lock: Member) -> Member {
        if let Member::Permits(_) = lock {
            return Member::Lock("z");
        }
        if self.chance.once_in(3) {
            let other = self.any_member();
            if other.name() > lock.name() {
                return other;
            }
        }
        match lock {
            Member::Lock(name) | Member::Fair(name) => {
                self.chance.pick(&[Member::Lock(name), Member::Fair(name)])
            }
            Member::Read if self.chance.once_in(4) => Member::Write,
            Member::Write if self.chance.once_in(2) => Member::Read,
            same => same,
        }
    }

    fn how(&self) -> How {
        let chance = self.chance;
        match chance.below(10) {
            0..=3 => How::Acquire,
            4 => How::Try,
            5 | 6 => How::Timeout(chance.millis(0..600)),
            7 => How::Polls(chance.within(1..12)),
            8 => How::Until(chance.millis(1..300)),
            _ => How::Run,
        }
    }

    fn leave(&self) -> Leave {
        let chance = self.chance;
        match chance.below(6) {
            0..=2 => Leave::Release,
            3 => Leave::Drop,
            4 => Leave::Polls(chance.below(5)),
            _ => Leave::Elsewhere(chance.millis(0..100)),
        }
    }

    fn during(&self) -> Duration {
        match self.chance.below(6) {
            0 | 1 => Duration::ZERO,
            2 | 3 => self.chance.millis(0..30),
            4 => self.chance.millis(0..400),
            // Longer than any lease, where renewals may fail.
            _ if !self.healthy && self.chance.once_in(3) => self.chance.millis(0..6000),
            _ => self.chance.millis(0..1500),
        }
    }

    fn add(&self, tasks: &mut [TaskPlan], step: PlannedStep) {
        let task = self.chance.below(tasks.len());
        let at = self.chance.below(tasks[task].steps.len() + 1);
        tasks[task].steps.insert(at, (self.idle(), step));
    }

    fn add_latches(&self, tasks: &mut Vec<TaskPlan>) {
        let chance = self.chance;
        if chance.once_in(2) {
            // A waiter arrives at the very moment of the opening.
            let at = chance.millis(0..2000);
            let moment = || chance.millis(0..12);
            let client = || chance.below(self.clients);
            let opens = vec![(at, PlannedStep::SetLatch(1)), (moment(), PlannedStep::CountDown)];
            tasks.push(TaskPlan { client: client(), steps: opens });
            for _ in 0..chance.within(1..4) {
                let waits =
                    vec![(at + moment(), PlannedStep::AwaitLatch(chance.millis(1000..8000)))];
                tasks.push(TaskPlan { client: client(), steps: waits });
            }
        }
        for _ in 0..chance.below(4) {
            self.add(tasks, PlannedStep::SetLatch(chance.within(1..4) as u32));
            for _ in 0..chance.below(5) {
                self.add(tasks, PlannedStep::CountDown);
            }
            for _ in 0..chance.below(6) {
                self.add(tasks, PlannedStep::AwaitLatch(chance.millis(0..8000)));
            }
        }
    }

    /// Adds an independent producer for each consumer.
    fn add_consumers(&self, tasks: &mut Vec<TaskPlan>) {
        let chance = self.chance;
        let count = tasks.len();
        for _ in 0..chance.below(5) {
            // Where notifications may be lost with their waiters, no consumer may rely on them
            // alone.
            let patience = match self.healthy {
                false => Some(Duration::from_millis(700)),
                true => chance.once_in(3).then(|| chance.millis(1..700)),
            };
            let polls = chance.once_in(3).then(|| chance.within(1..30));
            self.add(&mut tasks[..count], PlannedStep::Consume { patience, polls });
            let produce = PlannedStep::Produce { all: chance.once_in(3) };
            let steps = vec![(chance.millis(0..3000), produce)];
            tasks.push(TaskPlan { client: chance.below(self.clients), steps });
        }
    }

    fn troubles(&self) -> Vec<(Duration, Trouble)> {
        let count = self.chance.within(1..25);
        let mut troubles = Vec::new();
        for _ in 0..count {
            let at = self.chance.millis(0..4000);
            troubles.extend(self.trouble().into_iter().map(|trouble| (at, trouble)));
        }
        if self.closes {
            troubles.push((
                self.chance.millis(0..4000),
                Trouble::Close { client: self.chance.below(self.clients) },
            ));
        }
        troubles.sort_by_key(|(at, _)| *at);
        troubles
    }

    /// One fault, or two at a time.
    fn trouble(&self) -> Vec<Trouble> {
        let client = self.chance.below(self.clients);
        if self.chance.once_in(8) {
            // An answer is lost, and so is the request that undoes it.
            let next = |op, fault| Trouble::Next { client, op, fault, times: 1 };
            return vec![
                next(Op::Acquire, self.chance.pick(&[Fault::LostReply, Fault::LostRequest])),
                next(Op::Release, Fault::Straggles(self.chance.millis(20..1500))),
            ];
        }
        vec![self.single_trouble(client)]
    }

    fn single_trouble(&self, client: usize) -> Trouble {
        let chance = self.chance;
        match chance.below(16) {
            0..=5 => {
                let (op, fault) = self.fault();
                Trouble::Next { client, op, fault, times: chance.within(1..4) }
            }
            6 | 7 => {
                let (op, fault) = self.fault();
                Trouble::Every { client, op, fault }
            }
            8 | 9 => Trouble::Heal { client },
            10 => Trouble::Cut { client },
            11 => Trouble::Restore { client },
            12 => Trouble::Suspend { client, time: chance.millis(1..4000) },
            13 => Trouble::Freeze { client, time: chance.millis(1..2000) },
            14 => Trouble::Pause(chance.millis(1..2000)),
            _ => Trouble::Force(self.any_member()),
        }
    }

    fn fault(&self) -> (Op, Fault) {
        let chance = self.chance;
        let of_signals = [
            Op::Subscribe,
            Op::SetCount,
            Op::CountDown,
            Op::CountDown,
            Op::Count,
            Op::Join,
            Op::Stay,
            Op::Leave,
            Op::Notify,
            Op::Woken,
        ];
        let of_all = [
            Op::Acquire,
            Op::Acquire,
            Op::Acquire,
            Op::Renew,
            Op::Renew,
            Op::Release,
            Op::Release,
            Op::Subscribe,
            Op::Inspect,
            Op::ForceRelease,
            Op::Resize,
            Op::SetCount,
            Op::CountDown,
            Op::Count,
            Op::Join,
            Op::Stay,
            Op::Leave,
            Op::Notify,
            Op::Woken,
        ];
        let op = if self.signals && chance.once_in(2) {
            chance.pick(&of_signals)
        } else {
            chance.pick(&of_all)
        };
        let delay = Fault::Delay(chance.millis(1..1500));
        if op == Op::Woken {
            return (op, delay);
        }
        // A straggler is a request that nobody remembers. Repetitions of requests to latches and
        // conditions are only recognized for a while.
        let straggles = matches!(op, Op::Acquire | Op::Renew | Op::Release);
        let kinds = [
            BackendErrorKind::Unavailable,
            BackendErrorKind::Connection,
            BackendErrorKind::Permission,
        ];
        let fault = match chance.below(if straggles { 9 } else { 8 }) {
            0 => Fault::Refuse(chance.pick(&kinds)),
            1 => Fault::LostRequest,
            2 | 3 => Fault::LostReply,
            4 => delay,
            5 => Fault::DelayReply(chance.millis(1..1500)),
            6 => Fault::NeverAnswer,
            7 => Fault::NeverReply,
            _ => Fault::Straggles(chance.millis(1..1500)),
        };
        (op, fault)
    }
}
