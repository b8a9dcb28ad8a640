//! [`Scenario`]: small plans that are run in every order of events.

use std::{cmp::Ordering, time::Duration};

use crate::plan::{
    ClientPlan, How, LONGEST_LEASE, Leave, Member, Plan, PlannedHold, PlannedStep, TaskPlan, Whose,
};

/// A small plan, to explore every order of events: one task holds, one waits and may give up after
/// some polls, and one waits behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The client of each task, and the lock that it wants.
    tasks: &'static [(usize, Member)],
    /// The index of the holder; the next task gives up. A task before it enters briefly while the
    /// others arrive.
    holder: usize,
    whose: Whose,
}

impl Scenario {
    pub(crate) const ALL: [Self; 12] = {
        const fn new(name: &'static str, tasks: &'static [(usize, Member)]) -> Scenario {
            // The first grant with waiters behind it is the one that can be handed over.
            Scenario { name, tasks, holder: tasks.len() - 3, whose: Whose::Own }
        }
        const LOCK: Member = Member::Lock("a");
        const FAIR: Member = Member::Fair("b");
        const ALSO_FAIR: Member = Member::Fair("a");
        const ONE: Member = Member::Permits(1);
        const READ: Member = Member::Read;
        const WRITE: Member = Member::Write;
        [
            new("one client", &[(0, LOCK), (0, LOCK), (0, LOCK)]),
            new("two clients", &[(0, LOCK), (1, LOCK), (1, LOCK)]),
            new("three clients", &[(0, LOCK), (1, LOCK), (2, LOCK)]),
            new("handed on", &[(0, LOCK), (0, LOCK), (0, LOCK), (0, LOCK)]),
            new("handed on beside another client", &[(0, LOCK), (0, LOCK), (0, LOCK), (1, LOCK)]),
            new("handed on beside a fair lock", &[(0, LOCK), (0, LOCK), (0, LOCK), (0, ALSO_FAIR)]),
            new("fair lock", &[(0, FAIR), (1, FAIR), (1, FAIR)]),
            new("mixed lock", &[(0, ALSO_FAIR), (1, LOCK), (0, ALSO_FAIR)]),
            new("writer between readers", &[(0, READ), (1, WRITE), (1, READ)]),
            new("reader between writers", &[(0, WRITE), (0, READ), (1, WRITE)]),
            new("permits", &[(0, ONE), (1, ONE), (1, ONE)]),
            Scenario {
                whose: Whose::Named(0),
                ..new("one owner", &[(0, LOCK), (0, LOCK), (1, LOCK)])
            },
        ]
    };

    /// The plan of this scenario, in which the holder holds for `turns` turns, and the next task
    /// gives up after `polls` polls.
    pub(crate) fn plan(self, turns: usize, polls: usize, leave: Leave) -> Plan {
        let client = || ClientPlan {
            lease: LONGEST_LEASE,
            retry_for: Duration::ZERO,
            hand_over: Duration::from_millis(50),
            linger: Duration::ZERO,
            intensity: 1,
        };
        let task = |(number, &(client, lock)): (usize, &(usize, Member))| TaskPlan {
            client,
            steps: vec![(
                Duration::ZERO,
                PlannedStep::Hold(PlannedHold {
                    lock,
                    how: if number == self.holder + 1 { How::Polls(polls) } else { How::Acquire },
                    whose: self.whose,
                    lease: None,
                    during: Duration::ZERO,
                    turns: match number.cmp(&self.holder) {
                        Ordering::Less => 6,
                        Ordering::Equal => turns,
                        Ordering::Greater => 0,
                    },
                    inner: Vec::new(),
                    leave,
                }),
            )],
        };
        Plan {
            clients: (0..3).map(|_| client()).collect(),
            queue_timeout: Duration::from_secs(3),
            permits: 1,
            tasks: self.tasks.iter().enumerate().map(task).collect(),
            troubles: Vec::new(),
        }
    }
}
