//! Tests every backend against small models of what it should do, and against the memory backend.
//!
//! Random requests of a few holds for one name are sent to a store through the public traits: each
//! any number of times, repeated, late and in any order. The model gets the same requests, and must
//! give the same answers. A sequence that differs is shrunk and printed.
//!
//! Leases are so long that none ends meanwhile, or so short that it has ended after a pause:
//! nothing depends on the speed of the server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod agreement;
mod holds;
mod leaving;
mod locks;
mod read_write;
mod semaphores;
mod signals;
mod stores;

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendError, FencingToken, LockName, backend::Backend};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestRunner},
};

use crate::stores::{Differences, Store};

/// Generates the tests of each store: those of the kinds of locks and signals that it has.
macro_rules! tests_on_stores {
    ($($store:ident { $($subject:ident::$test:ident)* })*) => {
        $(mod $store {
            $(#[test]
            fn $test() {
                crate::$subject::$test(&crate::stores::$store());
            })*
        })*
    };
}

tests_on_stores! {
    memory {
        locks::exclusive_and_fair_locks_do_as_their_model
        read_write::read_write_locks_do_as_their_model
        semaphores::semaphores_do_as_their_model
        semaphores::plain_semaphores_do_as_their_model
        signals::latches_do_as_their_model
        signals::conditions_do_as_their_model
        leaving::a_partial_release_of_a_waiter_gives_its_place_up
    }
    redis {
        locks::exclusive_and_fair_locks_do_as_their_model
        read_write::read_write_locks_do_as_their_model
        semaphores::semaphores_do_as_their_model
        semaphores::plain_semaphores_do_as_their_model
        signals::latches_do_as_their_model
        signals::conditions_do_as_their_model
        leaving::a_partial_release_of_a_waiter_gives_its_place_up
        agreement::exclusive_and_fair_locks_do_as_in_memory
        agreement::read_write_locks_do_as_in_memory
        agreement::leased_permits_do_as_in_memory
        agreement::plain_permits_do_as_in_memory
        agreement::kinds_do_as_in_memory
    }
    postgres {
        locks::exclusive_and_fair_locks_do_as_their_model
        read_write::read_write_locks_do_as_their_model
        semaphores::semaphores_do_as_their_model
        semaphores::plain_semaphores_do_as_their_model
        signals::latches_do_as_their_model
        signals::conditions_do_as_their_model
        leaving::a_partial_release_of_a_waiter_gives_its_place_up
        agreement::exclusive_and_fair_locks_do_as_in_memory
        agreement::read_write_locks_do_as_in_memory
        agreement::leased_permits_do_as_in_memory
        agreement::plain_permits_do_as_in_memory
        agreement::kinds_do_as_in_memory
    }
    etcd {
        locks::exclusive_and_fair_locks_do_as_their_model
        read_write::read_write_locks_do_as_their_model
        leaving::a_partial_release_of_a_waiter_gives_its_place_up
        agreement::exclusive_and_fair_locks_do_as_in_memory
        agreement::read_write_locks_do_as_in_memory
        agreement::kinds_do_as_in_memory
    }
}

/// The number of sequences, on a store that is not slow.
const CASES: u32 = 200;

/// After this pause, everything that was to end soon has ended.
const PAUSE: Duration = Duration::from_millis(6);

/// A second implementation of what a store decides.
trait Model {
    type Request: fmt::Debug + Clone;

    /// The model of a name that nobody has used, at a store with these differences.
    fn new(differences: Differences) -> Self;

    /// The request to make instead, where the model knows no answer.
    fn adapt(&self, request: Self::Request) -> Self::Request {
        request
    }

    /// Returns `true` if something ends soon after this request.
    fn lapses(request: &Self::Request) -> bool;

    /// The expected answer.
    fn expect(&mut self, request: &Self::Request) -> Answer;

    /// Drops everything that ends soon.
    fn lapse(&mut self);
}

/// An answer, without its unpredictable parts.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// The number of the grant, among those of this name.
    Acquired(usize),
    /// The remaining thousands of seconds.
    Held(Option<u64>),
    NotHeld,
    TooMany(u32),
    Renewed,
    Released,
    StillHeld,
    Flag(bool),
    Number(u32),
    State(State),
    /// Unpredictable.
    Any,
}

/// The expected result of an inspection.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    /// Owner, mode and count, sorted.
    holders: Vec<(String, String, u32)>,
    remaining: Option<u64>,
    waiters: usize,
    /// Available permits, and the total.
    permits: Option<(u32, Option<u32>)>,
}

impl Answer {
    fn matches(&self, expected: &Self) -> bool {
        *expected == Self::Any || self == expected
    }
}

/// The store's tokens, in the order of the grants: the first and the last of each.
#[derive(Debug, Default)]
struct Tokens(RefCell<Vec<[u64; 2]>>);

impl Tokens {
    /// The number of the grant with this token and `count` tokens from it on. A new one must be
    /// greater than all before.
    fn grant(&self, token: FencingToken, count: u32) -> usize {
        let first = u64::from(token);
        let mut tokens = self.0.borrow_mut();
        let last = first + u64::from(count) - 1;
        // One hold may be requested in different modes, with more or fewer tokens. Some stores know
        // the first token then, and some the last one.
        let is_known = |known: &[u64; 2]| known[0] == first || known[1] == last;
        if let Some(known) = tokens.iter().position(is_known) {
            return known + 1;
        }
        assert!(tokens.last().is_none_or(|[_, known]| *known < first), "{token} after {tokens:?}");
        tokens.push([first, last]);
        tokens.len()
    }
}

/// Long leases are told apart by their thousands of seconds. A few seconds make no difference.
fn thousands(left: Duration) -> u64 {
    (left.as_secs() + 500) / 1000
}

/// A lease of this many thousands of seconds; zero ends soon.
fn lease(thousands: u64) -> Duration {
    if thousands == 0 { Duration::from_millis(1) } else { Duration::from_secs(1000 * thousands) }
}

/// Sends sequences of requests to a store, and compares its answers with those of a model.
fn compare<M, S, F>(
    store: &Store,
    requests: impl Strategy<Value = S>,
    send: impl Fn(Arc<dyn Backend>, Target, M::Request) -> F,
) where
    M: Model,
    S: IntoIterator<Item = M::Request> + fmt::Debug + Clone,
    F: Future<Output = Result<Answer, BackendError>>,
{
    let config = Config {
        cases: CASES / store.slowness,
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..Config::default()
    };
    let compared = TestRunner::new(config).run(&requests, |requests| {
        let target = Target::new();
        store.runtime.block_on(async {
            let mut model = M::new(store.differences);
            for (at, request) in requests.into_iter().enumerate() {
                let request = model.adapt(request);
                let answer = send(store.backend.clone(), target.clone(), request.clone()).await;
                let answer = answer
                    .map_err(|error| TestCaseError::fail(format!("{at}: {request:?}: {error}")))?;
                let expected = model.expect(&request);
                if !answer.matches(&expected) {
                    let message =
                        format!("{at}: {request:?} was answered {answer:?}, not {expected:?}");
                    return Err(TestCaseError::fail(message));
                }
                if M::lapses(&request) {
                    tokio::time::sleep(PAUSE).await;
                    model.lapse();
                }
            }
            Ok(())
        })
    });
    if let Err(failure) = compared {
        panic!("{failure}");
    }
}

/// The subject of the requests of one sequence.
#[derive(Clone, Debug)]
struct Target {
    name: LockName,
    tokens: Rc<Tokens>,
}

impl Target {
    fn new() -> Self {
        Self { name: new_name(), tokens: Rc::default() }
    }
}

/// A name that no other sequence has, whatever store it is sent to.
fn new_name() -> LockName {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    LockName::new(format!("name {number}")).unwrap()
}
