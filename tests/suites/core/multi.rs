//! Multi-locks hold all of their locks or none, even at the moment of the answer.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, LockError, Locks, MultiGuard,
    backend::{AcquireOutcome, AcquireRequest, async_trait},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Op};
use tokio::{sync::Barrier, task::JoinSet};

use super::{LONG, MS, SECOND, Scene, within};
use crate::hooked::{Hooked, Hooks};

/// The time that a release takes to arrive.
const ON_ITS_WAY: Fault = Fault::Delay(Duration::from_millis(50));

/// Shows that `guard` holds all of its locks, at the backend as well.
async fn has_all(scene: &Scene, guard: &MultiGuard) {
    assert!(guard.is_held(), "one of them is lost: {guard:?}");
    for (name, _) in guard.tokens() {
        let stranger = scene.other.lock(name).try_acquire().await.unwrap();
        assert!(stranger.is_none(), "somebody else holds {name}");
    }
}

// ---- losses while it waits

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_lost_one_lock_while_it_waited_for_another_has_it_again() {
    let scene = Scene::new();
    let held = scene.other.lock("b").acquire().await.unwrap();
    let waiter = scene.locks.multi_lock(["a", "b", "c"]).lease(300 * MS).acquire();
    let waiter = tokio::spawn(waiter);
    tokio::time::sleep(SECOND).await;
    held.release().await.unwrap();
    let guard = within(SECOND, "all three", waiter).await.unwrap().unwrap();
    has_all(&scene, &guard).await;
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_from_which_one_lock_was_forced_while_it_waited_has_it_again() {
    for forces_here in [true, false] {
        let scene = Scene::with(|builder| builder.lease(SECOND));
        let held = scene.other.lock("b").acquire().await.unwrap();
        let waiter = tokio::spawn(scene.locks.multi_lock(["a", "b"]).acquire());
        tokio::time::sleep(SECOND / 10).await;
        let operator = if forces_here { &scene.locks } else { &scene.other };
        assert!(operator.lock("a").force_release().await.unwrap(), "it has the first of them");
        // By then a renewal has told the client, whichever client forced the release.
        tokio::time::sleep(SECOND).await;
        held.release().await.unwrap();
        let guard = within(SECOND, "both", waiter).await.unwrap().unwrap();
        has_all(&scene, &guard).await;
        guard.release().await.unwrap();
        scene.nothing_is_left().await;
    }
}

/// An attempt is not repeated. Its answer is that the locks were not acquired, or that the backend
/// was too slow. It never returns a guard with a lock that is already lost.
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_grants_came_too_late_has_lost_nothing() {
    for late in [[Duration::ZERO, SECOND], [SECOND, Duration::ZERO], [300 * MS, 400 * MS]] {
        let scene = Scene::new();
        for time in late {
            scene.faults.next(Op::Acquire, Fault::DelayReply(time));
        }
        let tried = scene.locks.multi_lock(["a", "b"]).lease(SECOND / 2).try_acquire().await;
        match &tried {
            Ok(Some(guard)) => has_all(&scene, guard).await,
            Ok(None) | Err(LockError::Backend(_)) => {}
            Err(error) => panic!("{late:?}, it was never held: {error}"),
        }
        drop(tried);
        scene.nothing_is_left().await;
    }
}

// ---- after a refusal

/// Shows that another client gets each of `free` at once, and only once.
async fn others_get(scene: &Scene, free: &[&str], what: &str) {
    for name in free {
        let next = scene.other.lock(*name).try_acquire().await.unwrap();
        drop(next.unwrap_or_else(|| panic!("{what}: {name} was still held")));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_refused_holds_none_when_it_answers() {
    let scene = Scene::new();
    let _held = scene.other.lock("b").acquire().await.unwrap();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    let multi = scene.locks.multi_lock(["a", "b", "c"]);
    assert!(multi.try_acquire().await.unwrap().is_none());
    others_get(&scene, &["a", "c"], "after `try_acquire`").await;
    let refused = multi.acquire_timeout(Duration::ZERO).await;
    assert!(matches!(refused, Err(LockError::Timeout { .. })), "{refused:?}");
    others_get(&scene, &["a", "c"], "after `acquire_timeout` with zero").await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_time_is_up_holds_none_when_it_answers() {
    let scene = Scene::new();
    let _held = scene.other.lock("b").acquire().await.unwrap();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    let late = scene.locks.multi_lock(["a", "b", "c"]).acquire_timeout(SECOND).await;
    assert!(
        matches!(&late, Err(LockError::Timeout { lock, .. }) if lock.as_str() == "b"),
        "{late:?}"
    );
    others_get(&scene, &["a", "c"], "after the time-out").await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_holds_none_when_it_answers() {
    let scene = Scene::new();
    scene.faults.every(Op::Release, ON_ITS_WAY);
    scene.faults.next_goes_well(Op::Acquire);
    scene.faults.next_goes_well(Op::Acquire);
    scene.faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Permission));
    let failed = scene.locks.multi_lock(["a", "b", "c"]).try_acquire().await;
    if let Ok(Some(guard)) = failed {
        // They were requested in one step, which succeeded.
        guard.release().await.unwrap();
    } else {
        assert!(matches!(failed, Err(LockError::Backend(_))), "{failed:?}");
    }
    others_get(&scene, &["a", "b", "c"], "after the failure").await;
}

/// Releasing before answering must not delay the answer forever when the backend is silent.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_refused_says_so_although_it_cannot_give_back() {
    let scene = Scene::new();
    let _held = scene.other.lock("b").acquire().await.unwrap();
    scene.faults.every(Op::Release, Fault::NeverAnswer);
    let multi = scene.locks.multi_lock(["a", "b", "c"]);
    // The core waits 5 s for an answer.
    let limit = 5 * SECOND + 100 * MS;
    let tried = within(limit, "the refusal", multi.try_acquire()).await;
    assert!(matches!(tried, Ok(None) | Err(LockError::Backend(_))), "{tried:?}");
    scene.faults.heal();
    tokio::time::sleep(30 * SECOND).await;
    scene.faults.every(Op::Release, Fault::NeverAnswer);
    let late = within(SECOND + limit, "the time-out", multi.acquire_timeout(SECOND)).await;
    assert!(matches!(late, Err(LockError::Timeout { .. } | LockError::Backend(_))), "{late:?}");
}

// ---- several at once

/// Delays the requests for one of two names more than those for the other.
#[derive(Debug)]
struct Latency {
    slow: &'static str,
}

#[async_trait]
impl Hooks for Latency {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let time = if request.name.as_str() == self.slow { 20 * MS } else { 10 * MS };
        tokio::time::sleep(time).await;
        None
    }
}

/// Each of the two clients reaches a different name first.
#[tokio::test(start_paused = true)]
async fn of_two_clients_that_try_the_same_free_names_in_different_order_one_wins() {
    let store = MemoryBackend::new();
    let client = |slow| Locks::new(Hooked::new(store.clone(), Arc::new(Latency { slow })));
    let (one, other) = (client("a"), client("b"));
    let (one, other) = (one.multi_lock(["a", "b"]), other.multi_lock(["a", "b"]));
    let both = async { tokio::join!(one.try_acquire(), other.try_acquire()) };
    let (one, other) = within(SECOND, "both attempts", both).await;
    let (one, other) = (one.unwrap(), other.unwrap());
    assert!(one.is_some() || other.is_some(), "the names were free, and nobody has got them");
    assert!(one.is_none() || other.is_none(), "both have got them");
}

/// Ten simultaneous attempts, repeatedly: in one client, and each in its own client.
async fn one_of_ten_wins(clients: &[Locks]) {
    const ROUNDS: usize = 200;
    for round in 0..ROUNDS {
        let start = Arc::new(Barrier::new(10));
        let mut attempts = JoinSet::new();
        for number in 0..10 {
            let multi = clients[number % clients.len()]
                .multi_lock(["a", "b", "c", "d", "e", "f", "g", "h"]);
            let start = start.clone();
            attempts.spawn(async move {
                start.wait().await;
                multi.try_acquire().await.unwrap()
            });
        }
        let tried = within(LONG, "ten attempts", attempts.join_all()).await;
        let mut winners: Vec<_> = tried.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "winners in round {round}: the names were free");
        winners.remove(0).release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_ten_tasks_that_try_a_free_multi_lock_at_once_one_wins() {
    one_of_ten_wins(&[Locks::new(MemoryBackend::new())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_ten_clients_that_try_a_free_multi_lock_at_once_one_wins() {
    let store = MemoryBackend::new();
    let clients: Vec<_> = (0..10).map(|_| Locks::new(store.clone())).collect();
    one_of_ten_wins(&clients).await;
}
