//! The conformance kit of [`lockcore`]: proves that a backend keeps every clause of the
//! [`Backend`](lockcore::backend::Backend) contract.
//!
//! # Testing a backend
//! Implement [`Fixture`] for it, in a few lines, and let [`conformance_tests!`] write the tests: one
//! for each case, grouped by subject, each named after what it shows. Its words name the optional
//! parts of the contract that the backend has; there are no tests of the others, except that the
//! backend must refuse them.
//!
//! ```text
//! conformance_tests!(MyFixture);                         // exclusive locks only
//! conformance_tests!(MyFixture, fair, latches, paused);  // more, on tokio's paused clock
//! ```
//!
//! To run the same cases otherwise than as tests, use [`cases()`] and [`Part`].
//!
//! # Testing what uses a backend
//! - [`Faulty`] wraps any backend and lets single calls fail, dawdle, lose their reply or never answer.
//! - [`History`] records who believed when to hold what, and finds two owners inside and tokens that do not rise.
//! - [`Event`] and [`EventLog`] record what several processes see, and [`checks`] finds what must not be in it.
//! - [`Proxy`] is a bad network in front of a Redis server.
//! - `RedisServer`, with the feature `redis`, is a private redis-server, for as long as a test runs.
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
#[cfg(feature = "redis")]
mod redis_server;
mod run;

#[cfg(feature = "redis")]
pub use crate::redis_server::{RedisServer, StartError};
pub use crate::{
    cases::{Case, Part, cases},
    checks::Operations,
    events::{Event, EventLog, Share, What, monotonic, span, wall_clock},
    faulty::{Fault, Faults, Faulty, Op},
    fixture::Fixture,
    history::{Belief, History, Inside, Violation},
    poll::poll_times,
    proxy::{Conditions, On, Proxy, Way},
    run::{run_case, run_case_paused},
};
