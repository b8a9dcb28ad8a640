//! Every order of events in small worlds: the engine is pure, so it can be tried out completely.
//!
//! A [world](world::LockWorld) has one lane, a few tasks that use it, a model of the store, another
//! client, and whatever is under way between them. It drives the lane as `client/` does. In each
//! state, all that can happen next does happen, in a copy of its own; states from which the same
//! follows are visited once. In each, everything in [`invariants`] is checked, and in the end, that
//! from each of them everything can come to an end. What is wrong is told with a shortest way to
//! it.
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

/// Says something past the test harness, which keeps what a test prints to itself.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "exploration: {what}");
}
