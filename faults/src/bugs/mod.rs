//! Seeded bugs: a copy of the tree is broken on purpose, to see that the tests notice.
//!
//! The crates have no switch for that. A [`Bug`] is a list of [edits](Edit) of their source, and
//! the tests that have to fail with it. The place of an edit is its *anchor*: a function, by its
//! path within a crate (the file does not matter), and a part of that function, by a call, a
//! condition, a match arm or a variable in it. Most refactorings leave anchors as they are. An
//! anchor has to be in the source exactly once. Otherwise `cargo test -p lockcore-faults` fails,
//! and names the bug and the anchor. An anchor cannot be inside a macro call such as `select!`.
//!
//! # Adding a bug
//! Add it to [`list`], beside those of the same part of the library:
//!
//! ```text
//! bug(
//!     "a cancelled waiter does not wake the next one",
//!     [core("Lane::leave").statement("wake_head").removed()],
//!     suites("hand_over::a_cancelled_heir_is_passed_over"),
//! ),
//! ```
//!
//! 1. The name states the defect.
//! 2. [`core()`](operators::core), [`redis()`](operators::redis) or [`lua()`](operators::lua) names
//!    a function, a method of [`Function`](operators::Function) a part of it, and a method of
//!    [`Spot`](operators::Spot) the change. A bug may have several edits.
//! 3. [`lib()`], [`redis_lib()`], [`suites()`] or [`redis_suites()`] names the tests that have to
//!    fail: a test binary, and a filter of its tests. Prefer one fast test to many.
//! 4. Run `./scripts/faults bugs NAME`: it runs the bugs whose names contain `NAME`. If a bug is
//!    not caught, a test is missing.

mod apply;
mod list;
mod lua;
mod operators;
mod run;
mod rust;
mod source;

use self::operators::Edit;
pub(crate) use self::run::run;

/// A deliberate defect.
#[derive(Debug)]
struct Bug {
    name: &'static str,
    edits: Vec<Edit>,
    tests: Tests,
}

fn bug(name: &'static str, edits: impl Into<Vec<Edit>>, tests: Tests) -> Bug {
    Bug { name, edits: edits.into(), tests }
}

/// The tests that have to fail with a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tests {
    binary: Binary,
    /// A part of their names.
    filter: &'static str,
}

/// A test binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Binary {
    /// The unit tests of lockcore.
    Lib,
    /// The unit tests of lockcore-redis.
    RedisLib,
    /// The suites on the memory backend.
    Suites,
    /// The suites on Redis.
    Redis,
}

fn lib(filter: &'static str) -> Tests {
    Tests { binary: Binary::Lib, filter }
}

fn redis_lib(filter: &'static str) -> Tests {
    Tests { binary: Binary::RedisLib, filter }
}

fn suites(filter: &'static str) -> Tests {
    Tests { binary: Binary::Suites, filter }
}

fn redis_suites(filter: &'static str) -> Tests {
    Tests { binary: Binary::Redis, filter }
}
