//! The waits of a client, and the holds of its waiters.

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

/// How long an acquisition has waited before its wait is reported.
const LONG: Duration = Duration::from_millis(1500);

/// The most holds of one owner, and of one task, that are looked at.
const MOST_LOOKED_AT: usize = 256;

/// The most holds that are looked at for all waits together, apart from those that each wait gets
/// at least. A record has no room for more.
const MOST_HOLDS: usize = 1024;
const FEWEST_HOLDS: usize = 32;

/// The most waits that are reported: of those that may be in a cycle, and of the others, so that a
/// name with many waiters does not cause a large record each second.
const MOST_LINKED: usize = 2000;
const MOST_OTHERS: usize = 100;

/// The long waits of a client.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Set if anybody waits, for however long.
    pub(super) is_anybody_waiting: bool,
    /// Waits that may be in a cycle come first, the oldest of these first.
    pub(super) waits: Vec<WaitRecord>,
    /// The number of waits that may be in a cycle.
    pub(super) linked: usize,
    /// The number of waits that were left out.
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

/// The holds of owners and tasks that wait for long.
#[derive(Default)]
struct HoldsBeside {
    by_owner: HashMap<Owner, Few>,
    /// The holds of tasks with a single wait. A task with several waits runs things concurrently,
    /// and may go on although one of them waits.
    by_task: HashMap<TaskKey, Few>,
}

/// The holds of one owner, or of one task, each with its owner.
#[derive(Default)]
struct Few {
    holds: Vec<(Owner, HoldRecord)>,
    /// The number of holds that were left out.
    omitted: u64,
}

impl Few {
    fn add(&mut self, hold: &Hold<HoldFacts>, record: impl FnOnce() -> HoldRecord) {
        match self.holds.len() < MOST_LOOKED_AT {
            true => self.holds.push((hold.owner.clone(), record())),
            false => self.omitted += 1,
        }
    }

    /// Sorts into an order that is the same at each look.
    fn sort(&mut self) {
        self.holds
            .sort_by_cached_key(|(_, hold)| (hold.since, hold.lock.clone(), hold.wire.clone()));
    }
}

impl Client {
    /// Collects the waits. Each lane is locked on its own, so the result may be a state that never
    /// existed; a finding needs two looks.
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
        let mut writers = HashSet::new();
        let (linked, others): (Vec<_>, Vec<_>) = long.into_iter().partition(|wait| {
            // The holds of a named owner may be in another client. And the first writer in line
            // keeps readers out, as does the first one that does not give up.
            beside.has_any(wait)
                || wait.owner.name().is_some()
                || wait.mode == Mode::Write && writers.insert((wait.cell, wait.is_limited))
        });
        let all = linked.len() + others.len();
        let (linked, others) = (linked.iter().take(MOST_LINKED), others.iter().take(MOST_OTHERS));
        scan.linked = linked.len();
        let most = (MOST_HOLDS / scan.linked.max(1)).clamp(FEWEST_HOLDS, MOST_LOOKED_AT);
        let told = linked.chain(others);
        scan.waits.extend(told.map(|wait| beside.record(wait, &cells[wait.cell], most)));
        scan.omitted = (all - scan.waits.len()) as u64;
        scan
    }

    /// Returns `true` if anything is held or waited for.
    pub(super) fn is_in_use(&self) -> bool {
        self.lanes.any(|lane| !lane.holds().is_empty() || lane.patient() > 0)
    }
}

/// Adds the long waits of a lane. Returns `true` if anybody waits there.
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
    /// Collects the live holds of the owners and tasks that wait.
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
                        holds.add(hold, || record(hold, cell, false, presence));
                    }
                    if is_one_wait(&hold.facts.task) {
                        let holds = beside.by_task.entry(hold.facts.task).or_default();
                        holds.add(hold, || record(hold, cell, true, presence));
                    }
                }
            });
        }
        beside.by_owner.values_mut().chain(beside.by_task.values_mut()).for_each(Few::sort);
        beside
    }

    /// The holds beside a wait.
    fn beside<'a>(&'a self, wait: &'a LongWait) -> impl Iterator<Item = &'a HoldRecord> {
        let by_task = self.by_task.get(&wait.task).into_iter().flat_map(|few| &few.holds);
        // A hold that the task acquired after the wait began belongs to another, concurrent part of
        // it.
        let is_before = |hold: &HoldRecord| hold.since <= wait.since_unix;
        let by_task = by_task.filter(move |(owner, hold)| *owner != wait.owner && is_before(hold));
        let by_owner = self.by_owner.get(&wait.owner).into_iter().flat_map(|few| &few.holds);
        by_owner.chain(by_task).map(|(_, hold)| hold)
    }

    /// The least number of further holds beside a wait, of which nothing else is known.
    fn omitted(&self, wait: &LongWait) -> u64 {
        let by_owner = self.by_owner.get(&wait.owner).map_or(0, |few| few.omitted);
        by_owner.max(self.by_task.get(&wait.task).map_or(0, |few| few.omitted))
    }

    fn has_any(&self, wait: &LongWait) -> bool {
        self.beside(wait).next().is_some()
    }

    /// The record of a wait with at most `most` holds.
    fn record(&self, wait: &LongWait, cell: &LaneCell, most: usize) -> WaitRecord {
        let name = wait.owner.name();
        let holds: Vec<HoldRecord> = self.beside(wait).take(most).cloned().collect();
        let omitted = (self.beside(wait).count() - holds.len()) as u64 + self.omitted(wait);
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
