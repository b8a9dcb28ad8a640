//! Drives the real Redisson from Rust, for the suite that proves that lockcore and Redisson share
//! locks.
//!
//! [`Java`] is a process of the program in `interop/java`, [`Redisson`] a client in it, as if in
//! another Java service, and [`JavaThread`] a thread of that client: the owner of holds, in
//! Redisson's terms.
//!
//! The suite itself is `tests/redisson`. It needs a JDK and Maven: `./scripts/interop` checks for
//! them, builds the program and runs it. A plain `cargo test --workspace` leaves it out.

mod client;
mod java;
mod kind;
mod reply;
mod thread;

pub use crate::{
    client::{Configuration, Lease, Redisson},
    java::Java,
    kind::Kind,
    reply::JavaError,
    thread::{Answer, JavaThread},
};
