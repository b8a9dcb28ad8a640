//! The core over a backend that fails, is slow, loses replies or never answers.
//!
//! The tests check what users see. They run on a paused clock, with
//! [`Faulty`](lockcore_testkit::Faulty).

mod bench;

mod acquisition;
mod dropped;
mod ending;
mod release;
mod renewal;
mod wakeups;
