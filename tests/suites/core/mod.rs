//! The core as its users see it, in the corners that the other suites do not reach. One module per
//! subject.
//!
//! All tests use the memory backend, and a paused clock unless they are about real time or threads.
//! A hang is a failure that names the awaited event.

mod closing;
mod conditions;
mod fair;
mod latches;
mod late_grants;
mod listening;
mod losses;
mod multi;
mod named_owners;
mod nesting;
mod races;
mod renewing;
mod replicas;
mod runtimes;
mod scaling;
mod scopes;
mod timeouts;
mod wakers;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use lockcore::{Clock, Lock, LockError, LockGuard, Locks, LocksBuilder};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Faults, Faulty, poll_times};
use tokio::{runtime::Runtime, time::Instant};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The maximum delay of a timer on a paused clock.
const SLACK: Duration = Duration::from_millis(20);

/// The limit for everything in real time, generous for a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A store with two clients. The first one has faults.
struct Scene {
    store: MemoryBackend,
    faults: Faults,
    locks: Locks,
    other: Locks,
}

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// A scene whose first client has other options.
    fn with(options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        let locks = options(Locks::builder(backend)).build().unwrap();
        Self { faults, locks, other: Locks::new(store.clone()), store }
    }

    /// Asserts that nothing is held, waited for or listened to once all work is done.
    async fn nothing_is_left(&self) {
        tokio::time::sleep(SECOND).await;
        assert_eq!(self.store.names_in_use(), 0, "something is left");
    }
}

/// A clock, and the seconds for which its host has been suspended.
fn clock() -> (Clock, Arc<AtomicU64>) {
    let asleep = Arc::new(AtomicU64::new(0));
    let clock = Clock::with_suspension({
        let asleep = asleep.clone();
        move || Duration::from_secs(asleep.load(Ordering::SeqCst))
    });
    (clock, asleep)
}

/// Waits for `future`, and fails with the name of the event after `limit`.
async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {limit:?}"),
    }
}

async fn took<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}

type Acquiring = std::pin::Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// An acquisition that has been polled once and has to wait.
async fn begun(lock: Lock) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(lock.acquire());
    assert!(poll_times(1, acquiring.as_mut()).await.is_none(), "it should have to wait");
    acquiring
}

/// A runtime on a paused clock of its own, which only runs inside `block_on`.
fn paused_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Runs `work` on its own thread, so that a blocked thread is a failure and not a hang.
fn on_a_thread<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || done.send(work()));
    match result.recv_timeout(LONG) {
        Ok(output) => output,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: not within {LONG:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => panic!("{what}: there is no result"),
        },
    }
}
