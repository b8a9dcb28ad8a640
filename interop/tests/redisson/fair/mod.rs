//! `Locks::fair_lock` and `RFairLock`.

mod crash;
mod nesting;
mod order;

use crate::section::{Section, tests_of_crashes, tests_of_holds};

tests_of_holds!(Section::Fair);
tests_of_crashes!(Section::Fair);
