//! Explores the orders of events in small scenarios, as far as a few delays can produce them.
//!
//! At each await others may run first: before every poll of a task, and on the way to the store and
//! back. A schedule says at which of these points how many turns are left to others; elsewhere the
//! next due task runs. All schedules with one delay are run, or with as many as `DELAYS` says; and
//! all that for longer and shorter holds, and for every number of polls after which a waiter gives
//! up.
//!
//! # Why neither loom nor shuttle
//! Both replace the primitives to be explored: here `std::sync::Mutex` and `dashmap`, but also
//! `tokio::sync`, `tokio::time` and `tokio::select!`, on which the local layer waits. That would be
//! a second set of imports in every file of the core, and loom has no `dashmap`. They would add
//! little: the local layer changes in critical sections without an await, each of which is one call
//! of `Names`, `Place` or `Hold`, and whatever can come between two of them can also come between
//! two polls, except for calls within one poll. Those are left to `stress`, on real threads.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{chance::Chance, number, panics, plan::Leave, scenario::Scenario, world};

/// The numbers of turns of the first hold.
const HELD: [usize; 5] = [0, 1, 3, 6, 12];

/// The numbers of polls after which a waiter gives up. After more it has acquired the lock.
const POLLS: [usize; 5] = [1, 2, 3, 4, 9];

/// The numbers of turns that a delay leaves to others.
const TURNS: [usize; 2] = [1, 3];

/// One order of events.
#[derive(Clone, Debug)]
struct TaskSchedule {
    scenario: Scenario,
    held: usize,
    polls: usize,
    leave: Leave,
    delays: BTreeMap<usize, usize>,
}

impl TaskSchedule {
    /// Runs it. Returns the number of points, or the violation.
    fn run(&self) -> Result<usize, String> {
        let chance = Chance::scheduled(self.delays.clone());
        let outcome = world::run_plan(
            1,
            self.scenario.plan(self.held, self.polls, self.leave),
            &chance,
            false,
        );
        match outcome.violation {
            None => Ok(chance.points()),
            Some(violation) => Err(format!("{}, {self:?}: {violation}", self.scenario.name)),
        }
    }

    /// All schedules with one more delay, after the others.
    fn successors(&self, points: usize) -> Vec<Self> {
        let first = self.delays.last_key_value().map_or(0, |(point, _)| point + 1);
        let delays = (first..points).flat_map(|point| TURNS.map(|turns| (point, turns)));
        let with = |(point, turns)| {
            let mut schedule = self.clone();
            schedule.delays.insert(point, turns);
            schedule
        };
        delays.map(with).collect()
    }
}

/// Explores all scenarios.
pub(crate) fn explore() -> ExitCode {
    panics::note();
    let most = number("DELAYS").map_or(1, |delays| usize::try_from(delays).unwrap());
    let start = Instant::now();
    let mut todo = Vec::new();
    for scenario in Scenario::ALL {
        for (held, polls) in HELD.into_iter().flat_map(|held| POLLS.map(|polls| (held, polls))) {
            for leave in [Leave::Release, Leave::Drop] {
                todo.push(TaskSchedule { scenario, held, polls, leave, delays: BTreeMap::new() });
            }
        }
    }
    let (todo, run) = (Mutex::new(todo), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let work = || loop {
        let next = todo.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(schedule) = next else { return };
        run.fetch_add(1, Ordering::Relaxed);
        match schedule.run() {
            Ok(points) if schedule.delays.len() < most => {
                let successors = schedule.successors(points);
                todo.lock().unwrap_or_else(PoisonError::into_inner).extend(successors);
            }
            Ok(_) => {}
            Err(failure) => failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure),
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (run, failed) = (run.into_inner(), failures.len());
    println!(
        "schedules: {run} of {most} delay(s) at most, in {:.1?}; failed: {failed}",
        start.elapsed()
    );
    for failure in failures.iter().take(5) {
        println!("{failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
