//! Helpers shared by the scenarios.

use std::{
    future::Future,
    time::{Duration, Instant as RealInstant},
};

use lockcore::{
    BackendErrorKind, Condition, Lock, LockError, LockGuard, LockName, Locks, LocksBuilder,
};
use lockcore_testkit::{Fault, Faults, Faulty, Fixture};
use tokio::task::JoinHandle;

/// The limit of a scenario, more than any takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Long enough for a request on its way to arrive.
pub(super) const A_WHILE: Duration = Duration::from_millis(30);

/// The faults of a request that do not make a real store wait for long. With each of them, the
/// request is answered in the end if it is repeated.
pub(super) const FAULTS: [Option<Fault>; 7] = [
    None,
    Some(Fault::Refuse(BackendErrorKind::Connection)),
    Some(Fault::LostRequest),
    Some(Fault::LostReply),
    Some(Fault::Delay(A_WHILE)),
    Some(Fault::DelayReply(A_WHILE)),
    Some(Fault::Straggles(A_WHILE)),
];

pub(super) async fn builder<F: Fixture>(fixture: &F) -> LocksBuilder {
    Locks::builder(fixture.client().await)
}

pub(super) async fn client<F: Fixture>(fixture: &F) -> Locks {
    Locks::new(fixture.client().await)
}

/// A separate client, and the faults of its store.
pub(super) async fn faulty<F: Fixture>(fixture: &F) -> (Locks, Faults) {
    let backend = Faulty::new(fixture.client().await);
    let faults = backend.faults();
    (Locks::new(backend), faults)
}

/// Waits for `condition`, with the lock: once another task has the lock, it waits.
pub(super) async fn waits(
    lock: &Lock,
    condition: &Condition,
) -> JoinHandle<Result<LockGuard, LockError>> {
    let guard = lock.acquire().await.expect("the lock");
    let wait = condition.wait(guard);
    tokio::spawn(async move { Ok(wait.await?) })
}

/// As [`waits`], and then releases the lock at once.
pub(super) async fn waits_and_releases(
    lock: &Lock,
    condition: &Condition,
) -> JoinHandle<Result<(), LockError>> {
    let waiter = waits(lock, condition).await;
    tokio::spawn(async move { waiter.await.expect("no panic")?.release().await })
}

/// Waits for an event that must come soon.
pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// The result of a task.
pub(super) async fn joined<T>(what: &str, task: JoinHandle<T>) -> T {
    soon(what, task).await.expect(what)
}

/// Shows that nothing remains, after a short while, that would stay forever.
pub(super) async fn nothing_is_left<F: Fixture>(fixture: &F, what: &str) {
    let name = LockName::new("a").expect("a valid name");
    let begin = RealInstant::now();
    let mut left = fixture.left_behind(&name).await;
    let mut looks = 0;
    while !left.is_empty() {
        looks += 1;
        assert!(looks < 500 && begin.elapsed() < LONG, "{what}: this is left: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        left = fixture.left_behind(&name).await;
    }
}
