//! What only a real etcd can show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod conformance;
mod support;
#[path = "../waiting.rs"]
mod waiting;
