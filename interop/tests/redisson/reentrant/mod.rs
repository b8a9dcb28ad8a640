//! `Locks::lock` and `RLock`. Each further synchronizer is a directory beside this one.

mod crash;
mod exclusion;
mod force;
mod inspection;
mod nesting;
mod refusal;
mod wakeups;
mod watchdog;
