//! Time: the clock, points in time, lease arithmetic and pauses between attempts.

mod backoff;
mod clock;
pub(crate) mod lease;
mod moment;

use std::time::Duration;

pub use self::clock::Clock;
pub(crate) use self::{
    backoff::{Backoff, random_fraction},
    lease::Lease,
    moment::Moment,
};

/// How long the core waits for a backend to answer a call.
///
/// Backends have time-outs of their own. This one is for backends that have none, so that a call
/// that never returns blocks neither its caller nor the name forever.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
