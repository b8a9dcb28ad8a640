//! lockcore and the real Redisson on one Redis: a single server, one with Sentinels, and a Redis
//! Cluster. Run it with `./scripts/interop`: it needs a JDK and Maven.
//!
//! Every test has its own servers (`deployment.rs`); the tests share one Java process, with
//! separate Redisson clients. When all of them have passed, the suite writes the table of its
//! measurements (`report/`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod contention;
mod crash;
mod deployment;
mod directory;
mod elsewhere;
mod failover;
mod fair;
mod kept;
mod latch;
mod messages;
mod mixed;
mod plain_semaphore;
mod reentrant;
mod report;
mod rw_lock;
mod section;
mod semaphore;
mod support;
mod takeover;
mod wakeups;
mod watchdog;
