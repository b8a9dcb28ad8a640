#![doc = include_str!("../README.md")]

mod backend;
mod conditions;
mod entries;
mod latches;
mod state;

pub use backend::MemoryBackend;
