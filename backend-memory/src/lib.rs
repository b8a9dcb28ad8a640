//! The in-memory backend of [`lockcore`], for tests and for single processes.
//!
//! [`MemoryBackend`] is also the reference implementation: the shortest code that meets every
//! clause of the [`Backend`](lockcore::backend::Backend) contract.

mod backend;
mod conditions;
mod expiring_map;
mod latches;
mod state;

pub use backend::MemoryBackend;
