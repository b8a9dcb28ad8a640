//! Checkers of [event logs](crate::Event), each with one rule that every run must keep.
//!
//! All processes of a machine share the clock of the events, so that their real order is known and
//! no search is needed.
//!
//! | checker | rule |
//! |---|---|
//! | [`exclusion`] | a believed hold overlaps only with holds that it can be shared with |
//! | [`tokens`] | tokens rise from grant to grant, are unique, and stay the same when nested |
//! | [`lost_updates`] | no write replaces a version that its writer has not read |
//! | [`truth`] | a believed hold exists at the server |
//! | [`wakeups`] | nobody waits long for a free lock |
//! | [`outcomes`] | every acquisition comes to an end, and an unknown hold ends with its lease |
//! | [`leftovers`] | nothing is left behind |

mod exclusion;
mod history;
mod leftovers;
mod lost_updates;
mod outcomes;
mod tokens;
mod truth;
mod wakeups;

use std::fmt;

pub use self::{
    exclusion::exclusion,
    history::{Belief, Ending, Operation, Operations},
    leftovers::{Vitals, leftovers},
    lost_updates::{lost_updates, stale_writes},
    outcomes::{outcomes, takeover_after},
    tokens::tokens,
    truth::{ServerTruth, Stored, truth},
    wakeups::{Waits, wakeups},
};

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checker that found it.
    pub check: &'static str,
    /// The violation, and where it is in the log.
    pub message: String,
}

impl Finding {
    fn new(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.message)
    }
}

/// Formats a time of the log for people: in seconds, with milliseconds.
fn at(t: u64) -> String {
    format!("{:.4} s", std::time::Duration::from_nanos(t).as_secs_f64())
}

#[cfg(test)]
mod script;
