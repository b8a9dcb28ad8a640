//! Every order of events in small worlds: the engine is pure, so it can be tried out completely.
//!
//! A [world](world::LockWorld) has one lane, a few tasks that use it, a model of the store, another
//! client, and whatever is under way between them. It drives the lane as `client/` does. In each
//! state, everything that can happen next does happen, each in a copy of its own; equivalent states
//! are visited once. In each state, all [`invariants`] are checked, and at the end, that everything
//! can come to an end from each of them. An error is reported with a shortest path to it.
//!
//! | file | what |
//! |---|---|
//! | [`scenarios`] | the worlds |
//! | [`rules`] | what a world consists of |
//! | [`world`], [`wires`] | its state, and how an event is carried into the lane |
//! | [`moves`] | what can happen, and when |
//! | [`acquiring`], [`asking`], [`inside`], [`background`] | what tasks and the client do |
//! | [`store`] | the model of the store |
//! | [`invariants`] | what must hold |
//! | [`search`], [`portrait`] | the search, and which states are the same |
//! | [`mutants`] | broken worlds, which have to be found |

use std::io::Write;

mod acquiring;
mod asking;
mod background;
mod inside;
mod invariants;
mod moves;
mod mutants;
mod portrait;
mod rules;
mod scenarios;
mod search;
mod store;
mod wires;
mod world;

/// Prints past the test harness, which captures the output of tests.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "exploration: {what}");
}
