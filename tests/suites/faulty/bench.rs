//! [`Bench`]: a store with two clients, one of which has faults.

use std::{future::Future, time::Duration};

use lockcore::{BackendErrorKind, LockError, LockName, Locks, backend::Backend};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::time::{Instant, timeout};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// The default lease.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// The time limit without waiting for a lease: a few attempts and their pauses.
pub(super) const AT_ONCE: Duration = Duration::from_secs(3);

/// Every fault of a call, and none.
pub(super) const ALL: [Option<Fault>; 9] = [
    None,
    Some(Fault::Refuse(BackendErrorKind::Connection)),
    Some(Fault::Refuse(BackendErrorKind::Permission)),
    Some(Fault::LostRequest),
    Some(Fault::LostReply),
    Some(Fault::Delay(SECOND)),
    Some(Fault::DelayReply(SECOND)),
    Some(Fault::NeverAnswer),
    Some(Fault::NeverReply),
];

/// A store with two clients, the first with faults.
pub(super) struct Bench {
    pub(super) store: MemoryBackend,
    pub(super) faults: Faults,
    pub(super) faulty: Locks,
    pub(super) sound: Locks,
}

impl Bench {
    pub(super) fn new() -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        Self { faults, faulty: Locks::new(backend), sound: Locks::new(store.clone()), store }
    }

    pub(super) fn with(op: Op, fault: Option<Fault>) -> Self {
        let bench = Self::new();
        if let Some(fault) = fault {
            bench.faults.next(op, fault);
        }
        bench
    }

    /// Shows that the other client enters within `time`, and that nothing of any lock is left
    /// afterwards.
    pub(super) async fn is_free_within(&self, time: Duration, what: &str) {
        let start = Instant::now();
        let guard = self.sound.lock("a").acquire_timeout(time).await;
        let guard = guard.unwrap_or_else(|error| panic!("{what}: {error}"));
        let waited = start.elapsed();
        guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        // Delayed requests arrive meanwhile, and must be undone as well.
        tokio::time::sleep(AT_ONCE).await;
        assert_eq!(
            self.store.names_in_use(),
            0,
            "{what}: something is left, although free after {waited:?}"
        );
    }

    pub(super) async fn stored_count(&self) -> Option<u32> {
        let state = self.store.inspect(&LockName::new("a").unwrap()).await.unwrap();
        state.holders().first().map(lockcore::Holder::hold_count)
    }
}

/// Runs `scenario` on a fresh bench, dropping its future after each number of polls until it
/// completes, and then runs `check`.
pub(super) async fn dropped_after_each_poll<T>(
    what: &str,
    bench: impl Fn() -> Bench,
    scenario: impl AsyncFn(&Bench) -> T,
    check: impl AsyncFn(&Bench, &str),
) {
    for polls in 0..200 {
        let bench = bench();
        let ended = timeout(5 * SECOND, poll_times(polls, scenario(&bench))).await;
        bench.faults.heal();
        check(&bench, &format!("{what}, dropped after {polls} polls")).await;
        if !matches!(ended, Ok(None)) {
            return;
        }
    }
    panic!("{what}: 200 polls were not enough");
}

pub(super) async fn took<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}

pub(super) fn backend_error<T: std::fmt::Debug>(result: Result<T, LockError>) -> BackendErrorKind {
    match result {
        Err(LockError::Backend(error)) => {
            assert_eq!(
                error.lock().map(LockName::as_str),
                Some("a"),
                "the error names the lock: {error}"
            );
            error.kind()
        }
        other => panic!("the backend's error should have come through: {other:?}"),
    }
}
