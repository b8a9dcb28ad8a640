//! The alert rules and the board, on a real Prometheus.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod board;
mod example;
mod faults;
mod folder;
mod rules;
