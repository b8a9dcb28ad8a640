//! What only a real Redis can show, and what both backends must show alike. Every test has a redis-server of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod agreement;
mod batches;
mod conditions;
mod conformance;
mod core;
mod deployments;
mod earlier_ends;
mod errors;
mod everything;
mod exclusion;
mod fair;
mod latches;
#[path = "../log.rs"]
mod log;
mod nesting;
mod outage;
mod permits;
mod races;
mod read_write;
mod redis_crate;
mod regressions;
mod rights;
mod secrets;
mod sharing;
#[path = "../signals/mod.rs"]
mod signals;
mod steps;
mod support;
mod wakeups;
mod wire;
