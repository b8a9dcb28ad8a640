//! [`Plan`]: everything that a seed chooses before the run. During the run, it chooses the order of
//! events.

use std::time::Duration;

use lockcore_testkit::{Fault, Op};

/// The longest lease.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(3);

/// The actions of one run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) clients: Vec<ClientPlan>,
    pub(crate) queue_timeout: Duration,
    pub(crate) permits: u32,
    pub(crate) tasks: Vec<TaskPlan>,
    /// The faults and their times. Empty in a healthy run.
    pub(crate) troubles: Vec<(Duration, Trouble)>,
}

#[derive(Debug)]
pub(crate) struct ClientPlan {
    pub(crate) lease: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) hand_over: Duration,
    pub(crate) linger: Duration,
    pub(crate) intensity: usize,
}

#[derive(Debug)]
pub(crate) struct TaskPlan {
    pub(crate) client: usize,
    pub(crate) steps: Vec<(Duration, PlannedStep)>,
}

#[derive(Clone, Debug)]
pub(crate) enum PlannedStep {
    Hold(PlannedHold),
    Multi { members: Vec<Member>, how: How, during: Duration, leave: Leave },
    Downgrade { during: Duration },
    SetLatch(u32),
    CountDown,
    AwaitLatch(Duration),
    Produce { all: bool },
    Consume { patience: Option<Duration>, polls: Option<usize> },
    State(&'static str),
    Resize(u32),
}

/// One acquisition, and the steps while the lock is held.
#[derive(Clone, Debug)]
pub(crate) struct PlannedHold {
    pub(crate) lock: Member,
    pub(crate) how: How,
    pub(crate) whose: Whose,
    /// `None` if it is renewed.
    pub(crate) lease: Option<Duration>,
    pub(crate) during: Duration,
    /// The minimum number of turns of the hold, when no time passes.
    pub(crate) turns: usize,
    pub(crate) inner: Vec<PlannedHold>,
    pub(crate) leave: Leave,
}

/// A lock, and the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Lock(&'static str),
    Fair(&'static str),
    Read,
    Write,
    Permits(u32),
}

impl Member {
    /// A waiter only holds smaller names, so that there are no deadlocks.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock(name) | Self::Fair(name) => name,
            Self::Read | Self::Write => "r",
            Self::Permits(_) => "s",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Acquire,
    Try,
    Timeout(Duration),
    /// Dropped after this many polls.
    Polls(usize),
    /// Dropped after this time.
    Until(Duration),
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A new owner, or that of the outer hold.
    Own,
    /// One of the named owners, which may also be used by other tasks and clients.
    Named(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    Release,
    Drop,
    /// The release is dropped after this many polls.
    Polls(usize),
    /// Another task drops the guard, later.
    Elsewhere(Duration),
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    Next {
        client: usize,
        op: Op,
        fault: Fault,
        times: usize,
    },
    Every {
        client: usize,
        op: Op,
        fault: Fault,
    },
    Heal {
        client: usize,
    },
    Cut {
        client: usize,
    },
    Restore {
        client: usize,
    },
    /// The client's host was suspended, which its timers do not count.
    Suspend {
        client: usize,
        time: Duration,
    },
    /// The client does not run for a while.
    Freeze {
        client: usize,
        time: Duration,
    },
    /// No client runs for a while, but the store does.
    Pause(Duration),
    Force(Member),
    Close {
        client: usize,
    },
}

impl Plan {
    pub(crate) fn is_healthy(&self) -> bool {
        self.troubles.is_empty()
    }

    /// Returns `true` if every woken task runs at once.
    pub(crate) fn is_prompt(&self) -> bool {
        let stops = |trouble| matches!(trouble, Trouble::Freeze { .. } | Trouble::Pause(_));
        !self.troubles.iter().any(|(_, trouble)| stops(*trouble))
    }

    /// All holds, the inner ones included.
    fn holds(&self) -> Vec<&PlannedHold> {
        let steps = self.tasks.iter().flat_map(|task| &task.steps);
        let mut holds: Vec<&PlannedHold> = steps
            .filter_map(|(_, step)| match step {
                PlannedStep::Hold(hold) => Some(hold),
                _ => None,
            })
            .collect();
        let mut seen = 0;
        while seen < holds.len() {
            let hold = holds[seen];
            holds.extend(&hold.inner);
            seen += 1;
        }
        holds
    }

    /// Returns `true` if one actor may take over another's hold.
    pub(crate) fn has_named_owners(&self) -> bool {
        self.holds().iter().any(|hold| hold.whose != Whose::Own)
    }

    /// Returns `true` if no wait ends by a spurious notification: one that is cancelled while it
    /// gives up may pass on a notification that it has not received.
    pub(crate) fn notifications_are_exact(&self) -> bool {
        let gives_up_and_is_cancelled = |step: &PlannedStep| {
            matches!(step, PlannedStep::Consume { patience: Some(_), polls: Some(_) })
        };
        let mut steps = self.tasks.iter().flat_map(|task| &task.steps);
        self.is_healthy() && !steps.any(|(_, step)| gives_up_and_is_cancelled(step))
    }

    /// Returns `true` if every guard is seen: none is in a `run`, or about to be dropped by another
    /// task.
    pub(crate) fn counts_are_exact(&self) -> bool {
        let is_seen = |hold: &&PlannedHold| {
            !matches!(hold.how, How::Run) && !matches!(hold.leave, Leave::Elsewhere(_))
        };
        !self.has_named_owners() && self.holds().iter().all(is_seen)
    }
}
