//! Tests that need a real etcd.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod batches;
mod conformance;
mod crashes;
#[path = "../critical.rs"]
mod critical;
mod endpoints;
mod errors;
mod exclusion;
mod interruptions;
mod late;
mod left_leases;
#[path = "../load.rs"]
mod load;
mod outage;
mod panicking;
#[path = "../processes.rs"]
mod processes;
#[path = "../races.rs"]
mod races;
#[path = "../readers.rs"]
mod readers;
#[path = "../shown.rs"]
mod shown;
mod support;
mod tls;
mod tokens;
mod users;
#[path = "../waiting.rs"]
mod waiting;
mod wakeups;
