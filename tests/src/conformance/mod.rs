//! The cases, one module per subject. Each is a statement that holds for every backend, and names
//! the clause that requires it.
//!
//! To run them all, use [`conformance_tests!`](crate::conformance_tests); to run them otherwise,
//! [`cases`](crate::cases()).

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the cases are tests: a panic is how they say that the backend breaks a clause"
)]

pub mod cancellation;
pub mod capabilities;
pub mod client_records;
mod condition;
pub mod condition_leaving;
pub mod condition_wakeups;
pub mod conditions;
pub mod declaration;
pub mod demand;
pub mod direct_grant;
pub mod directory;
pub mod downgrade;
pub mod exclusion;
pub mod fair;
pub mod fair_through_the_core;
pub mod force;
pub mod ids;
pub mod inspection;
pub mod kinds;
pub(crate) mod latch;
pub mod latch_wakeups;
pub mod latches;
pub mod leases;
pub mod names;
pub mod nesting;
pub mod own_leases;
pub mod permits;
pub mod proposed_tokens;
pub mod refusals;
pub mod release;
pub mod renewal;
pub mod repetition;
pub mod resizing;
pub(crate) mod scene;
pub mod several_tokens;
pub mod sharing;
pub mod takeover;
pub mod through_the_core;
pub mod tokens;
pub mod wakeups;
mod walk;
pub mod writers;
