//! The conformance kit of [`lockcore`]: proves that a backend keeps every clause of the
//! [`Backend`](lockcore::backend::Backend) contract.
//!
//! # Testing a backend
//! Implement [`Fixture`] for it, in a few lines, and let [`conformance_tests!`] write the tests: one a case, grouped by
//! subject, each named after what it shows.
//!
//! # Testing what uses a backend
//! - [`Faulty`] wraps any backend and lets single calls fail, dawdle, lose their reply or never answer.
//! - [`History`] records who believed when to hold what, and finds two owners inside and tokens that do not rise.
//! - [`Event`] and [`EventLog`] record what several processes see, and [`checks`] finds what must not be in it.
//! - [`Proxy`] is a bad network in front of a Redis server.
//! - [`RedisServer`] is a private redis-server, for as long as a test runs.
//! - [`poll_times`] drops a future after a number of polls.
//!
//! The kit itself is tested: for each clause there are backends that break it on purpose, and the cases of that clause
//! must find them (`suites/kit_catches.rs`).

mod cases;
pub mod checks;
pub mod conformance;
mod events;
mod faulty;
mod fixture;
mod history;
mod poll;
mod proxy;
mod redis_server;
mod run;

pub use crate::{
    cases::{Case, cases},
    checks::Operations,
    events::{Event, EventLog, Share, What, monotonic, span, wall_clock},
    faulty::{Fault, Faults, Faulty, Op},
    fixture::Fixture,
    history::{Belief, History, Inside, Violation},
    poll::poll_times,
    proxy::{Conditions, On, Proxy, Way},
    redis_server::{RedisServer, StartError},
    run::{run_case, run_case_paused},
};
