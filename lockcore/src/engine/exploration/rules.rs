//! [`Rules`]: the actors of a world, and the events that may happen in it.

use std::{fmt, time::Duration};

use crate::{Mode, Owner, engine::HandOver, time::Lease};

/// The least time that passes at once. An answer is waited for no longer than one tick, a request
/// that nobody polls is undone after two, and all that is shorter takes one: a pause between two
/// attempts, the courtesy between two turns, the time for which a hold is handed over.
pub(super) const TICK: Duration = Duration::from_millis(5_500);

/// A lease that a holder may rely on for `ticks` ticks, at least two, and that the store keeps for
/// one more, because it counts from the arrival of the request, and without a margin.
pub(super) const fn lasting(ticks: u32) -> Duration {
    Duration::from_millis(5_500 * ticks as u64 + 100)
}

/// The client's `retry_for`.
pub(super) const PATIENCE: Duration = TICK;

/// For how long the client hands over. It is over after one tick.
pub(super) const HAND_OVER: Duration = Duration::from_millis(50);

/// For how long the client keeps a hold that nobody waits for. It is over after one tick.
pub(super) const LINGER: Duration = Duration::from_millis(20);

/// The number of tokens that a request for several asks for. The client asks for more, but two are
/// enough to hand over, and to run out of tokens.
pub(super) const TOKENS: u32 = 2;

/// The owner of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// An owner that nobody else has.
    Fresh,
    /// An owner that several tasks have: that of a scope, or given with `owned_by`.
    Shared,
    /// An owner with a name. To the store, all its requests come from the same one.
    Named,
}

/// The routine of a task: it acquires, works, releases, and repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routine {
    pub(super) who: Who,
    pub(super) mode: Mode,
    pub(super) lease: Lease,
    pub(super) is_patient: bool,
    /// The number of rounds; unlimited if `None`.
    pub(super) rounds: Option<u8>,
}

impl Routine {
    pub(super) const fn new(mode: Mode) -> Self {
        let lease = Lease::Renewed(lasting(2));
        Self { who: Who::Fresh, mode, lease, is_patient: true, rounds: None }
    }

    pub(super) const fn impatient(self) -> Self {
        Self { is_patient: false, ..self }
    }

    pub(super) const fn who(self, who: Who) -> Self {
        Self { who, ..self }
    }

    pub(super) const fn lease(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }

    pub(super) const fn rounds(self, rounds: u8) -> Self {
        Self { rounds: Some(rounds), ..self }
    }
}

/// How often exceptional events may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Luck {
    /// Time passes although something could go on.
    pub(super) delays: u8,
    /// An acquisition is dropped.
    pub(super) drops: u8,
    /// A request, a release, a renewal or a subscription fails.
    pub(super) failures: u8,
    /// An operator, here or elsewhere, frees the lock.
    pub(super) forced: u8,
    /// A guard extends its lease.
    pub(super) extensions: u8,
    /// A failover loses the release that granted the lock to somebody else.
    pub(super) failovers: u8,
    /// The client is closed.
    pub(super) closings: u8,
    /// A subscription wakes for nothing.
    pub(super) false_alarms: u8,
}

/// A defect between the engine, its driver and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// The end of a release wakes nobody.
    ReleaseWakesNobody,
    /// The lane is not told that a release was answered.
    ReleaseNeverEnds,
    /// No answer to what the background does ever comes.
    AnswersLost,
    /// The background looks at nothing.
    NoAppointments,
    /// A parked hold that nobody takes over is not released.
    ParkedForgotten,
    /// The lane is told a time that has passed: it does not notice that a lease has ended.
    ClockBehind,
    /// A guard is counted out twice.
    LeavesTwice,
    /// A waiter that is dropped does not leave its place.
    PlaceKept,
    /// A waiter that leaves wakes nobody.
    LeavesUnnoticed,
    /// The lane is not told that a request is not answered at once.
    PendingNotTold,
    /// A task goes on with the id of a request that was undone.
    IdUsedAgain,
    /// The lane is not told what was heard.
    NewsNotTold,
    /// A waiter asks while another one of its owner does.
    AsksBesideItsOwner,
    /// The store is not told when its count is too high.
    CountNotCorrected,
    /// The lane is not told that somebody else wants the lock.
    DemandNotTold,
    /// `close()` forgets the holds that it has to give back.
    CloseForgets,
    /// The store grants what somebody else holds.
    StoreGrantsAll,
    /// The lane is told that its places are kept for longer than they are.
    PlacesOverrated,
    /// A grant that the store has forgotten is not undone.
    LostKeepsItsPlace,
}

/// The rules of a world.
#[derive(Clone)]
pub(super) struct Rules {
    pub(super) name: &'static str,
    pub(super) tasks: Vec<Routine>,
    /// The mode in which another client acquires.
    pub(super) stranger: Option<Mode>,
    /// The number of permits.
    pub(super) permits: u32,
    pub(super) hands_over: bool,
    /// Holds are kept for a while when nobody waits for them.
    pub(super) lingers: bool,
    /// Releases of fair holds grant the lock to the first in the queue.
    pub(super) grants_directly: bool,
    /// Requests are answered at once, as by a store in memory.
    pub(super) is_immediate: bool,
    /// Anything may happen between two times that a task locks its lane.
    pub(super) is_fine: bool,
    pub(super) luck: Luck,
    /// The defect, if any, so that the checks can be seen to fail.
    pub(super) mutant: Option<Mutant>,
    pub(super) owners: Vec<Owner>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Rules {
    pub(super) fn new(name: &'static str, tasks: &[Routine]) -> Self {
        let named = Owner::named("n");
        let shared = Owner::named("shared");
        let owners = tasks.iter().enumerate().map(|(task, plan)| match plan.who {
            Who::Fresh => Owner::named(format!("fresh {task}")),
            Who::Shared => shared.clone(),
            Who::Named => named.clone(),
        });
        Self {
            name,
            tasks: tasks.to_vec(),
            stranger: None,
            permits: 1,
            hands_over: false,
            lingers: false,
            grants_directly: false,
            is_immediate: false,
            is_fine: false,
            luck: Luck::default(),
            mutant: None,
            owners: owners.collect(),
        }
    }

    /// The owner for whom a task acquires.
    pub(super) fn owner(&self, task: usize) -> &Owner {
        &self.owners[task]
    }

    /// Returns `true` if two tasks have the same owner.
    pub(super) fn are_one(&self, one: usize, other: usize) -> bool {
        self.owners[one] == self.owners[other]
    }

    pub(super) fn hand_over(&self) -> Option<HandOver> {
        let linger = if self.lingers { LINGER } else { Duration::ZERO };
        self.hands_over.then_some(HandOver { turn: HAND_OVER, linger })
    }

    /// As `Acquisition::takes_direct_grants`.
    pub(super) fn takes_direct_grants(&self, task: usize) -> bool {
        let Routine { who, mode, lease, is_patient, .. } = self.tasks[task];
        self.grants_directly
            && mode == Mode::Fair
            && is_patient
            && who != Who::Named
            && matches!(lease, Lease::Renewed(_))
    }

    /// As `Acquisition::takes_over`.
    pub(super) fn takes_over(&self, task: usize) -> bool {
        let Routine { who, mode, lease, .. } = self.tasks[task];
        self.hands_over
            && mode == Mode::Exclusive
            && who != Who::Named
            && matches!(lease, Lease::Renewed(_))
    }
}
