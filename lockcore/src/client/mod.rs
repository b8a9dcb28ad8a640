//! The client drives the engine: it carries out actions and reports their results.
//!
//! From the bottom up: [`LaneMap`](lanes::LaneMap), calendar and background are what a [`Client`]
//! keeps; `events` brings events into a lane and carries their effects out, with `release` and
//! `cleanup`; the rest is what acquisitions, guards, the watchdog and `close()` do with that.

mod acquire;
mod acquisition;
mod answer;
mod asking;
mod background;
mod calendar;
mod cleanup;
mod close;
mod condition;
mod demand;
mod events;
mod foreign;
mod held;
mod inspect;
mod lanes;
#[cfg(feature = "metrics")]
mod ledger;
mod listener;
mod looks;
#[cfg(feature = "metrics")]
mod measure;
#[cfg(not(feature = "metrics"))]
#[path = "unmeasured.rs"]
mod measure;
#[cfg(feature = "metrics")]
mod measured_acquisition;
#[cfg(not(feature = "metrics"))]
#[path = "unmeasured_acquisition.rs"]
mod measured_acquisition;
#[cfg(feature = "metrics")]
mod measured_call;
#[cfg(feature = "metrics")]
mod meters;
mod nested;
mod outcome;
mod place;
mod presence;
mod records;
mod release;
mod report;
mod scan;
mod shared;
mod survey;
mod tally;
#[cfg(feature = "metrics")]
mod timed;
mod waiters;
mod waiting;
mod watch;
mod watchdog;
#[cfg(feature = "metrics")]
mod within;

use std::sync::Arc;

pub(crate) use self::{
    acquisition::Acquisition,
    cleanup::OnDrop,
    condition::ConditionPlace,
    held::Held,
    measure::Grouping,
    measured_acquisition::Beginning,
    outcome::BackendCall,
    shared::{Client, Settings},
    tally::{Counting, Tally},
    waiters::Counted,
};
use crate::{backend::Backend, time::Clock};

/// A client of `backend`.
pub(crate) fn open(
    backend: Arc<dyn Backend>,
    clock: Clock,
    settings: Settings,
    grouping: Grouping,
) -> Arc<Client> {
    Client::new(backend, clock, settings, grouping, watchdog::serve)
}
