//! `Locks::fair_lock` and `RFairLock`.

mod crash;
mod exclusion;
mod nesting;
mod order;
mod wakeups;
