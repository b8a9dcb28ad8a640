//! The in-memory backend of [`lockcore`]: for tests, and for single processes.
//!
//! [`MemoryBackend`] is also the reference: the shortest code that keeps every clause of the
//! [`Backend`](lockcore::backend::Backend) contract.

mod backend;
mod conditions;
mod entries;
mod latches;
mod state;

pub use backend::MemoryBackend;
