//! Fair locks as users see them.

use std::time::Duration;

use lockcore::{Lock, LockError, LockGuard, LockName, Locks};
use tokio::task::JoinHandle;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, nothing_is_left, soon, unique_name},
        through_the_core::{enters, is_refused},
    },
    faulty::{Faults, Faulty, Op},
};

/// A fair lock at one client of the store, with a count of the client's calls.
struct FairClient {
    lock: Lock,
    calls: Faults,
}

/// Two clients of one lock, whose waiters keep their places for `queue_timeout` without asking.
async fn clients<F: Fixture>(fixture: &F, queue_timeout: Duration) -> [FairClient; 2] {
    let name = unique_name("");
    [fixture.client().await, fixture.client().await].map(|backend| {
        let backend = Faulty::new(backend);
        let calls = backend.faults();
        let locks = Locks::builder(backend).lease(LASTING).queue_timeout(queue_timeout).build();
        FairClient { lock: locks.expect("valid options").fair_lock(name.as_str()), calls }
    })
}

/// A task that waits for the lock and has its place.
struct Waiting(JoinHandle<LockGuard>);

impl FairClient {
    /// Starts a waiting task, and returns once it has its place.
    async fn queues(&self) -> Waiting {
        let (before, acquisition) = (self.calls.calls(Op::Subscribe), self.lock.acquire());
        let task = tokio::spawn(async { acquisition.await.expect("acquire failed") });
        // A waiter subscribes after its first refusal, with which it got its place.
        soon(self.calls.reached(Op::Subscribe, before + 1)).await;
        Waiting(task)
    }

    /// Shows that the lock is free, and that nothing is left of it after one more hold.
    async fn is_free_and_forgotten<F: Fixture>(&self, fixture: &F) {
        enters(&self.lock).await.release().await.expect("release failed");
        let name = LockName::new(self.lock.name().expect("a valid name")).expect("a valid name");
        nothing_is_left(fixture, &name).await;
    }
}

impl Waiting {
    /// Shows that the task enters at once, because it is its turn.
    async fn enters(self) -> LockGuard {
        soon(self.0).await.expect("the waiter panicked")
    }

    /// Drops the waiting task.
    async fn gives_up(self) {
        self.0.abort();
        assert!(soon(self.0).await.is_err(), "it should have waited");
    }
}

/// C18: tasks of two clients enter in the order in which they came, and no try gets in between.
pub async fn waiters_of_two_clients_enter_in_the_order_in_which_they_came<F: Fixture>(fixture: &F) {
    let [here, there] = clients(fixture, LASTING).await;
    let held = enters(&here.lock).await;
    let mut queue = Vec::new();
    for client in [&there, &here, &here, &there, &here, &there] {
        queue.push(client.queues().await);
    }
    held.release().await.expect("release failed");
    let mut last = None;
    for waiting in queue {
        let guard = waiting.enters().await;
        assert!(last < Some(guard.token()), "{last:?}, then {:?}", guard.token());
        last = Some(guard.token());
        is_refused(&there.lock).await;
        guard.release().await.expect("release failed");
    }
    here.is_free_and_forgotten(fixture).await;
}

/// C19: a live waiter keeps its place for as long as it waits.
pub async fn a_waiter_keeps_its_place_for_as_long_as_it_waits<F: Fixture>(fixture: &F) {
    let time = fixture.short_lease() * 2;
    let [here, there] = clients(fixture, time).await;
    let held = enters(&here.lock).await;
    let first = there.queues().await;
    fixture.pass(time / 6).await;
    let second = here.queues().await;
    // Each asks again after every third of the time. The last request before the release is that of
    // the first one, so that the second has not just renewed its place.
    fixture.pass(time * 2 - time / 12).await;
    held.release().await.expect("release failed");
    first.enters().await.release().await.expect("release failed");
    second.enters().await.release().await.expect("release failed");
    here.is_free_and_forgotten(fixture).await;
}

/// C20: a dropped waiter leaves no place: the next one enters at once.
pub async fn a_fair_waiter_that_is_dropped_leaves_no_place<F: Fixture>(fixture: &F) {
    let [here, there] = clients(fixture, LASTING).await;
    let held = enters(&here.lock).await;
    let dropped = [here.queues().await, there.queues().await];
    let next = here.queues().await;
    for waiting in dropped {
        waiting.gives_up().await;
    }
    held.release().await.expect("release failed");
    next.enters().await.release().await.expect("release failed");
    there.is_free_and_forgotten(fixture).await;
}

/// C20: a waiter that times out leaves no place: the next one enters at once.
pub async fn a_fair_waiter_that_times_out_leaves_no_place<F: Fixture>(fixture: &F) {
    let [here, there] = clients(fixture, LASTING).await;
    let held = enters(&here.lock).await;
    let impatient = there.lock.acquire_timeout(fixture.short_lease());
    let (error, next) = tokio::join!(impatient, async {
        soon(there.calls.reached(Op::Subscribe, 1)).await;
        here.queues().await
    });
    let error = error.expect_err("the lock is held");
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    held.release().await.expect("release failed");
    next.enters().await.release().await.expect("release failed");
    there.is_free_and_forgotten(fixture).await;
}

/// C5 and C18: `run` inside `run` enters the same fair hold at once, although another task waits.
pub async fn fair_holds_nest<F: Fixture>(fixture: &F) {
    let [here, there] = clients(fixture, LASTING).await;
    let nested = here.lock.run(async |outer| {
        let waiting = there.queues().await;
        let inner = here.lock.run(async |inner| (inner.token(), inner.hold_count()));
        let inner = inner.await.expect("run failed");
        assert_eq!(inner, (outer.token(), 2));
        assert!(!waiting.0.is_finished(), "two owners are inside");
        waiting
    });
    let waiting = soon(nested).await.expect("run failed");
    waiting.enters().await.release().await.expect("release failed");
    here.is_free_and_forgotten(fixture).await;
}
