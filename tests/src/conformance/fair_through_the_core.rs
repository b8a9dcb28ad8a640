//! Fair locks as users see them. A backend without them is shown to have none through [`Locks`] either.

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

/// A fair lock at one client of the store, and what the client has asked for.
struct FairClient {
    lock: Lock,
    calls: Faults,
}

/// Two clients of one lock, whose waiters keep their places for so long without asking. None from a backend without fair
/// locks.
async fn clients<F: Fixture>(fixture: &F, queue_timeout: Duration) -> Option<[FairClient; 2]> {
    let name = unique_name("");
    let clients = [fixture.client().await, fixture.client().await].map(|backend| {
        let backend = Faulty::new(backend);
        let calls = backend.faults();
        let locks = Locks::builder(backend).lease(LASTING).queue_timeout(queue_timeout).build();
        FairClient { lock: locks.expect("valid options").fair_lock(name.as_str()), calls }
    });
    match soon(clients[0].lock.try_acquire()).await {
        Err(LockError::Unsupported { .. }) => None,
        tried => {
            drop(tried.expect("try_acquire failed").expect("nobody has the lock"));
            Some(clients)
        }
    }
}

/// A task that waits for the lock, and has its place.
struct Waiting(JoinHandle<LockGuard>);

impl FairClient {
    /// Lets a task wait until it has its place.
    async fn queues(&self) -> Waiting {
        let (before, acquisition) = (self.calls.calls(Op::Subscribe), self.lock.acquire());
        let task = tokio::spawn(async { acquisition.await.expect("acquire failed") });
        // Whoever subscribes has been refused before, and queued with that.
        soon(self.calls.reached(Op::Subscribe, before + 1)).await;
        Waiting(task)
    }

    /// Shows that the lock is free, and that nothing is left of it once it was.
    async fn is_free_and_forgotten<F: Fixture>(&self, fixture: &F) {
        enters(&self.lock).await.release().await.expect("release failed");
        let name = LockName::new(self.lock.name().expect("a valid name")).expect("a valid name");
        nothing_is_left(fixture, &name).await;
    }
}

impl Waiting {
    /// Enters at once: it is its turn.
    async fn enters(self) -> LockGuard {
        soon(self.0).await.expect("the waiter panicked")
    }

    /// Gives up: the task is dropped while it waits.
    async fn gives_up(self) {
        self.0.abort();
        assert!(soon(self.0).await.is_err(), "it should have waited");
    }
}

/// C18: tasks of two clients enter in the order in which they came, and nobody gets in between by trying.
pub async fn waiters_of_two_clients_enter_in_the_order_in_which_they_came<F: Fixture>(fixture: &F) {
    let Some([here, there]) = clients(fixture, LASTING).await else { return };
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

/// C19: a waiter that lives keeps its place for as long as it waits.
pub async fn a_waiter_keeps_its_place_for_as_long_as_it_waits<F: Fixture>(fixture: &F) {
    let time = fixture.short_lease() * 2;
    let Some([here, there]) = clients(fixture, time).await else { return };
    let held = enters(&here.lock).await;
    let first = there.queues().await;
    fixture.pass(time / 6).await;
    let second = here.queues().await;
    fixture.pass(time * 2).await;
    held.release().await.expect("release failed");
    first.enters().await.release().await.expect("release failed");
    second.enters().await.release().await.expect("release failed");
    here.is_free_and_forgotten(fixture).await;
}

/// C20: a waiter that is dropped leaves no place: the next enters at once.
pub async fn a_fair_waiter_that_is_dropped_leaves_no_place<F: Fixture>(fixture: &F) {
    let Some([here, there]) = clients(fixture, LASTING).await else { return };
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

/// C20: a waiter that has waited for long enough leaves no place: the next enters at once.
pub async fn a_fair_waiter_that_times_out_leaves_no_place<F: Fixture>(fixture: &F) {
    let Some([here, there]) = clients(fixture, LASTING).await else { return };
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

/// C5 and C18: `run` inside `run` enters the same fair hold at once, although somebody waits for it.
pub async fn fair_holds_nest<F: Fixture>(fixture: &F) {
    let Some([here, there]) = clients(fixture, LASTING).await else { return };
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
