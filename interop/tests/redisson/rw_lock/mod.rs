//! `Locks::rw_lock` and `RReadWriteLock`.

mod crash;
mod downgrade;
mod inspection;
mod nesting;

use crate::section::{Section, tests_of_crashes, tests_of_holds};

tests_of_holds!(Section::ReadWrite);
tests_of_crashes!(Section::ReadWrite);
