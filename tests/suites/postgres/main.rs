//! Tests that need a real PostgreSQL.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod conformance;
mod crashes;
#[path = "../critical.rs"]
mod critical;
mod durability;
mod errors;
mod exclusion;
mod failover;
mod fencing;
mod late;
#[path = "../load.rs"]
mod load;
mod outage;
mod panicking;
mod pooler;
#[path = "../processes.rs"]
mod processes;
mod proxy;
#[path = "../races.rs"]
mod races;
#[path = "../readers.rs"]
mod readers;
mod refused;
mod renewing;
mod schema;
#[path = "../shown.rs"]
mod shown;
#[path = "../signals/mod.rs"]
mod signals;
mod stalled;
mod support;
mod tls;
mod tokens;
#[path = "../waiting.rs"]
mod waiting;
mod waits;
mod wakeups;
