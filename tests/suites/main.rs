//! The workspace's own suites: one binary, one module per subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod abandoning;
mod asking;
mod backend_limits;
mod circles;
mod client_records;
mod clients;
mod core;
mod core_regressions;
mod direct_grant;
mod extending;
mod faulty;
mod fixtures;
mod hand_over;
mod hooked;
mod kit_catches;
mod layers;
mod limits;
mod linger;
mod links;
mod log;
mod memory_conformance;
mod multi;
mod observing;
mod panicking_log;
mod promises;
mod races;
mod read_write;
mod regressions;
mod requests;
mod seats;
mod semaphore;
mod signals;
mod unsupported;
mod who_waits;
