#![doc = include_str!("../README.md")]

mod backend;
mod conditions;
mod directory;
mod expiring_map;
mod latches;
mod state;

pub use backend::MemoryBackend;
