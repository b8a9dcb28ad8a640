//! Tests every script of the Redis backend against a small model of what it should do.
//!
//! Random requests of a few holds for one name are sent to a real redis-server through the public
//! traits: each any number of times, repeated, late and in any order. The model gets the same
//! requests, and must give the same answers. A sequence that differs is shrunk and printed.
//!
//! Leases are so long that none ends meanwhile, or so short that it has ended after a pause:
//! nothing depends on the speed of the server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

mod holds;
mod locks;
mod read_write;
mod semaphores;
mod signals;

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    time::Duration,
};

use lockcore::{BackendError, FencingToken, LockName};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestRunner},
};

/// The number of sequences.
const CASES: u32 = 200;

/// After this pause, everything that was to end soon has ended.
const PAUSE: Duration = Duration::from_millis(6);

/// A second implementation of a script.
trait Model: Default {
    type Request: fmt::Debug + Clone;

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

/// The server's tokens, in the order of the grants: the last of each.
#[derive(Debug, Default)]
struct Tokens(RefCell<Vec<u64>>);

impl Tokens {
    /// The number of the grant with this token and `count` tokens from it on. A new one must be
    /// greater than all before.
    fn grant(&self, token: FencingToken, count: u32) -> usize {
        let first = u64::from(token);
        let mut tokens = self.0.borrow_mut();
        // One hold may be requested in different modes, with more or fewer tokens.
        let last = first + u64::from(count) - 1;
        if let Some(known) = tokens.iter().position(|known| *known == last) {
            return known + 1;
        }
        assert!(tokens.last().is_none_or(|known| *known < first), "{token} after {tokens:?}");
        tokens.push(last);
        tokens.len()
    }
}

/// Long leases are told apart by their thousands of seconds.
fn thousands(left: Duration) -> u64 {
    left.as_secs().div_ceil(1000)
}

/// A lease of this many thousands of seconds; zero ends soon.
fn lease(thousands: u64) -> Duration {
    if thousands == 0 { Duration::from_millis(1) } else { Duration::from_secs(1000 * thousands) }
}

/// Sends sequences of requests to a server, and compares its answers with those of a model.
fn compare<M, S, F>(
    requests: impl Strategy<Value = S>,
    send: impl Fn(RedisBackend, Target, M::Request) -> F,
) where
    M: Model,
    S: IntoIterator<Item = M::Request> + fmt::Debug + Clone,
    F: Future<Output = Result<Answer, BackendError>>,
{
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = runtime.block_on(RedisBackend::connect(server.url())).unwrap();
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..Config::default()
    };
    let number = Cell::new(0);
    let compared = TestRunner::new(config).run(&requests, |requests| {
        number.set(number.get() + 1);
        let target = Target::new(number.get());
        runtime.block_on(async {
            let mut model = M::default();
            for (at, request) in requests.into_iter().enumerate() {
                let request = model.adapt(request);
                let answer = send(backend.clone(), target.clone(), request.clone()).await;
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
    tokens: std::rc::Rc<Tokens>,
}

impl Target {
    fn new(number: u32) -> Self {
        Self {
            name: LockName::new(format!("name {number}")).unwrap(),
            tokens: std::rc::Rc::default(),
        }
    }
}
