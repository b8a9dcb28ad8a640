//! What a run must not show: checkers of [event logs](crate::Event), each with one rule.
//!
//! All processes of a machine share the clock of the events, so that their real order is known and no search is needed.
//!
//! | checker | rule |
//! |---|---|
//! | [`exclusion`] | who believes to be inside does so alone, or with those it can share with |
//! | [`tokens`] | tokens rise from grant to grant, are nobody else's, and stay the same when nested |
//! | [`lost_updates`] | nobody overwrites at the resource what it has not read |
//! | [`truth`] | who believes to hold holds it at the server |
//! | [`wakeups`] | nobody waits for what has been free for long |
//! | [`outcomes`] | every acquisition comes to an end, and what nobody knows of ends with its lease |
//! | [`leftovers`] | nothing stays behind |

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

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checker that found it.
    pub check: &'static str,
    /// What it is, and where.
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

/// A time of the log for people: seconds with milliseconds.
fn at(t: u64) -> String {
    format!("{:.4} s", std::time::Duration::from_nanos(t).as_secs_f64())
}

#[cfg(test)]
mod script;
