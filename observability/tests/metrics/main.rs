//! Every metric, with every label.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod acquiring;
mod backend;
mod cancelling;
mod figures;
mod groups;
mod holding;
mod recorders;
mod slow;
mod telling;
