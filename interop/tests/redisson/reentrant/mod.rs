//! `Locks::lock` and `RLock`.

mod force;
mod inspection;
pub(crate) mod nesting;
mod refusal;
mod restored;
pub(crate) mod tokens;

use crate::section::{Section, tests_of_crashes, tests_of_holds};

tests_of_holds!(Section::Reentrant);
tests_of_crashes!(Section::Reentrant);
