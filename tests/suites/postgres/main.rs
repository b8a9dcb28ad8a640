//! What only a real PostgreSQL can show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod conformance;
#[path = "../signals/mod.rs"]
mod signals;
