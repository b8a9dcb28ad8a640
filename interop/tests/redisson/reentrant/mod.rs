//! `Locks::lock` and `RLock`.

mod force;
mod inspection;
mod nesting;
mod refusal;

use crate::section::{Section, tests_of_crashes, tests_of_holds};

tests_of_holds!(Section::Reentrant);
tests_of_crashes!(Section::Reentrant);
