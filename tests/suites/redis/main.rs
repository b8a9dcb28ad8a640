//! Tests that need a real Redis. Every test has its own redis-server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod batches;
mod braces;
mod cluster;
mod command_proxy;
mod conditions;
mod conformance;
mod core;
mod crashes;
#[path = "../critical.rs"]
mod critical;
mod demand;
mod deployments;
mod diagnosis;
mod direct_grant;
mod directory;
mod earlier_ends;
mod errors;
mod everything;
mod exclusion;
mod failover;
mod fair;
mod full_memory;
mod info;
mod latches;
mod least_tokens;
#[path = "../log.rs"]
mod log;
mod logged_out;
mod lost_messages;
mod many_permits;
mod nesting;
mod out_of_step;
mod outage;
mod panicking;
mod permits;
#[path = "../processes.rs"]
mod processes;
#[path = "../races.rs"]
mod races;
mod read_write;
mod redis_crate;
mod refused;
mod regressions;
mod replicas;
mod restored;
mod rights;
mod secrets;
mod sentinel;
mod sharing;
#[path = "../signals/mod.rs"]
mod signals;
mod steps;
mod storage;
mod support;
mod timing;
mod tokens;
#[path = "../waiting.rs"]
mod waiting;
mod wakeups;
mod wire;
