//! What only a real Redis can show, and what both backends must show alike. Every test has a redis-server of its own.

mod conformance;
mod errors;
mod exclusion;
mod nesting;
mod outage;
mod races;
mod secrets;
mod support;
mod wakeups;
mod wire;
