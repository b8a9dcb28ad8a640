//! The measurements: one scenario per file.

mod cluster;
mod contended;
mod distinct;
mod fleet;
mod footprint;
mod growth;
mod holds;
mod idle;
mod linger;
mod memory;
mod nested;
mod pingpong;
mod stores;
mod takeover;
mod uncontended;

use crate::run::Scenario;

/// The number of tasks in the name of a metric.
fn of_tasks(tasks: usize) -> String {
    if tasks == 1 { "of 1 task".into() } else { format!("of {tasks} tasks") }
}

/// All scenarios, in the order in which they run.
pub(crate) const ALL: [Scenario; 17] = [
    uncontended::SCENARIO,
    distinct::SCENARIO,
    contended::SCENARIO,
    fleet::SCENARIO,
    cluster::SCENARIO,
    pingpong::SCENARIO,
    stores::QUORUM,
    stores::POSTGRES,
    stores::ETCD,
    idle::SCENARIO,
    holds::SCENARIO,
    nested::SCENARIO,
    linger::SCENARIO,
    memory::SCENARIO,
    footprint::SCENARIO,
    takeover::SCENARIO,
    growth::SCENARIO,
];
