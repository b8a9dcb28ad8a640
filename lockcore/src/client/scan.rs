//! What waits in a client, and what is held by those who wait.

use std::{
    collections::{HashMap, HashSet},
    panic::Location,
    sync::Arc,
    time::Duration,
};

use super::{
    lanes::{HoldFacts, LaneCell},
    presence::Presence,
    shared::Client,
};
use crate::{
    Mode, Owner,
    engine::Hold,
    task::TaskKey,
    time::Moment,
    waits::{HoldRecord, WaitRecord, site_text},
};

/// How long an acquisition has to wait before others are told.
const LONG: Duration = Duration::from_millis(1500);

/// The most holds of one owner, and of one task, that are looked at.
const MOST_LOOKED_AT: usize = 256;

/// The most holds that are told beside one wait.
const MOST_HOLDS: usize = 32;

/// The most waits that are told: of those that hold something, which may be in a cycle, and of the
/// others, so that a name with many waiters does not make for a large record each second.
const MOST_HOLDING: usize = 2000;
const MOST_OTHERS: usize = 100;

/// The long waits of a client.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Somebody waits, for however long.
    pub(super) is_anybody_waiting: bool,
    /// Those that hold something first, and of these the oldest first.
    pub(super) waits: Vec<WaitRecord>,
    /// How many of them hold something.
    pub(super) holding: usize,
    /// How many there were too many.
    pub(super) omitted: u64,
}

/// A long wait, before it is known what is held beside it.
struct LongWait {
    number: u64,
    /// The index of its lane.
    cell: usize,
    mode: Mode,
    owner: Owner,
    task: TaskKey,
    since: Moment,
    /// The same in milliseconds of Unix time.
    since_unix: u64,
    site: &'static Location<'static>,
    is_limited: bool,
}

/// The holds of those who wait for long.
#[derive(Default)]
struct HoldsBeside {
    /// Each with its task.
    by_owner: HashMap<Owner, Vec<HoldRecord>>,
    /// Each with its owner, of tasks that wait for one thing only. One that waits for several does
    /// things side by side, and may go on although one of them waits.
    by_task: HashMap<TaskKey, Vec<(Owner, HoldRecord)>>,
}

impl Client {
    /// Looks who waits. Each lane is locked for itself, so that this may be a picture that never
    /// was; it has to be looked at twice.
    pub(super) fn scan(&self, now: Moment) -> Scan {
        let (cells, mut scan) = (self.lanes.all(), Scan::default());
        let mut long = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            scan.is_anybody_waiting |= long_waits(cell, at, &self.presence, now, &mut long);
        }
        if long.is_empty() {
            return scan;
        }
        long.sort_unstable_by_key(|wait| (wait.since, wait.number));
        let beside = HoldsBeside::of(&cells, &long, &self.presence, now);
        let (holding, others): (Vec<_>, Vec<_>) =
            long.into_iter().partition(|wait| beside.has_any(wait));
        let all = holding.len() + others.len();
        let (holding, others) =
            (holding.iter().take(MOST_HOLDING), others.iter().take(MOST_OTHERS));
        scan.holding = holding.len();
        let told = holding.chain(others);
        scan.waits.extend(told.map(|wait| beside.record(wait, &cells[wait.cell])));
        scan.omitted = (all - scan.waits.len()) as u64;
        scan
    }

    /// Whether anything is held or waited for.
    pub(super) fn is_in_use(&self) -> bool {
        self.lanes.any(|lane| !lane.holds().is_empty() || lane.patient() > 0)
    }
}

/// Adds the long waits of a lane. Returns whether anybody waits there.
fn long_waits(
    cell: &LaneCell,
    at: usize,
    presence: &Presence,
    now: Moment,
    long: &mut Vec<LongWait>,
) -> bool {
    cell.look(|lane| {
        let mut is_anybody_waiting = false;
        for (asker, slot) in lane.waiters_mut() {
            let Some(wait) = &mut slot.wait else { continue };
            is_anybody_waiting = true;
            if now.since(wait.since) < LONG {
                continue;
            }
            let number = wait.number.get_or_insert_with(|| presence.number_wait());
            long.push(LongWait {
                number: number.get(),
                cell: at,
                mode: asker.mode,
                owner: asker.owner.clone(),
                task: wait.task,
                since: wait.since,
                since_unix: presence.unix(wait.since),
                site: wait.site,
                is_limited: asker.has_limit,
            });
        }
        is_anybody_waiting
    })
}

impl HoldsBeside {
    /// The live holds of the owners and tasks that wait.
    fn of(cells: &[Arc<LaneCell>], long: &[LongWait], presence: &Presence, now: Moment) -> Self {
        let owners: HashSet<&Owner> = long.iter().map(|wait| &wait.owner).collect();
        let mut tasks: HashMap<TaskKey, usize> = HashMap::new();
        long.iter().for_each(|wait| *tasks.entry(wait.task).or_default() += 1);
        let is_one_wait = |task: &TaskKey| tasks.get(task) == Some(&1);
        let mut beside = Self::default();
        for cell in cells {
            cell.look(|lane| {
                for hold in lane.holds().iter().filter(|hold| hold.is_live(now)) {
                    if owners.contains(&hold.owner) {
                        let holds = beside.by_owner.entry(hold.owner.clone()).or_default();
                        if holds.len() < MOST_LOOKED_AT {
                            holds.push(record(hold, cell, false, presence));
                        }
                    }
                    if is_one_wait(&hold.facts.task) {
                        let holds = beside.by_task.entry(hold.facts.task).or_default();
                        if holds.len() < MOST_LOOKED_AT {
                            holds.push((hold.owner.clone(), record(hold, cell, true, presence)));
                        }
                    }
                }
            });
        }
        // In an order that does not change from look to look.
        let order = |hold: &HoldRecord| (hold.since, hold.lock.clone(), hold.wire.clone());
        beside.by_owner.values_mut().for_each(|holds| holds.sort_by_cached_key(order));
        let by_task = beside.by_task.values_mut();
        by_task.for_each(|holds| holds.sort_by_cached_key(|(_, hold)| order(hold)));
        beside
    }

    /// The holds beside a wait.
    fn beside<'a>(&'a self, wait: &'a LongWait) -> impl Iterator<Item = &'a HoldRecord> {
        let by_task = self.by_task.get(&wait.task).into_iter().flatten();
        // What the task has acquired since it waits, it has acquired in another part of itself.
        let is_before = |hold: &HoldRecord| hold.since <= wait.since_unix;
        let by_task = by_task.filter(move |(owner, hold)| *owner != wait.owner && is_before(hold));
        let by_task = by_task.map(|(_, hold)| hold);
        self.by_owner.get(&wait.owner).into_iter().flatten().chain(by_task)
    }

    fn has_any(&self, wait: &LongWait) -> bool {
        self.beside(wait).next().is_some()
    }

    fn record(&self, wait: &LongWait, cell: &LaneCell) -> WaitRecord {
        let name = wait.owner.name();
        let holds: Vec<HoldRecord> = self.beside(wait).take(MOST_HOLDS).cloned().collect();
        let omitted = (self.beside(wait).count() - holds.len()) as u64;
        WaitRecord {
            number: wait.number,
            lock: cell.name().as_str().into(),
            mode: wait.mode.to_string(),
            owner: name.map_or_else(|| wait.owner.to_string(), str::to_owned),
            named: name.is_some(),
            site: site_text(wait.site),
            since: wait.since_unix,
            limited: wait.is_limited,
            holds,
            omitted,
        }
    }
}

fn record(
    hold: &Hold<HoldFacts>,
    cell: &LaneCell,
    is_by_task: bool,
    presence: &Presence,
) -> HoldRecord {
    HoldRecord {
        lock: cell.name().as_str().into(),
        mode: hold.mode.to_string(),
        wire: hold.facts.id.owner().into(),
        site: site_text(hold.facts.site),
        since: presence.unix(hold.facts.acquired_at),
        renewed: hold.state.is_renewed(),
        task: is_by_task,
    }
}
