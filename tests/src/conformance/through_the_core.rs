//! The backend under [`Locks`], as users see it, from acquisition to loss.

use std::{pin::pin, time::Duration};

use lockcore::{Lock, LockError, LockGuard, Locks, LossReason, Owner, backend::Backend};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Fixture, History,
    conformance::scene::{
        LASTING, Scene, nothing_is_left, soon, still_waits, stranger, unique_name,
    },
    poll_times,
};

/// A lock, at two clients of one store.
struct Shared {
    one: Locks,
    two: Locks,
    name: String,
}

impl Shared {
    /// A lock whose leases outlast the test.
    async fn lasting<F: Fixture>(fixture: &F) -> Self {
        Self::with_lease(fixture, LASTING).await
    }

    async fn with_lease<F: Fixture>(fixture: &F, lease: Duration) -> Self {
        let [one, two] =
            [fixture.client().await, fixture.client().await].map(|client| locks(client, lease));
        Self { one, two, name: unique_name("").as_str().to_owned() }
    }

    /// The handle at the first client.
    fn here(&self) -> Lock {
        self.one.lock(&self.name)
    }

    /// The handle at the second client.
    fn there(&self) -> Lock {
        self.two.lock(&self.name)
    }

    /// Shows that the lock is free, and that nothing is left of it after one more hold.
    async fn is_free_and_forgotten<F: Fixture>(&self, fixture: &F) {
        enters(&self.there()).await.release().await.expect("release failed");
        let name = lockcore::LockName::new(&self.name).expect("a valid name");
        nothing_is_left(fixture, &name).await;
    }
}

fn locks(backend: impl Backend, lease: Duration) -> Locks {
    Locks::builder(backend).lease(lease).build().expect("a valid lease")
}

/// Enters at once.
pub(super) async fn enters(lock: &Lock) -> LockGuard {
    soon(lock.acquire()).await.expect("acquire failed")
}

pub(super) async fn is_refused(lock: &Lock) {
    let guard = soon(lock.try_acquire()).await.expect("try_acquire failed");
    assert!(guard.is_none(), "two owners hold the lock: {guard:?}");
}

/// C1 and C12: a waiter enters when the owner at another client releases.
pub async fn a_waiter_enters_when_another_client_releases<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here()).await;
    let mut waiting = pin!(shared.there().acquire());
    still_waits(fixture, waiting.as_mut()).await;
    guard.release().await.expect("release failed");
    let guard = soon(waiting).await.expect("acquire failed");
    is_refused(&shared.here()).await;
    guard.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C3: a waiter enters when the lease of a dead owner ends, and not before.
pub async fn a_waiter_enters_when_a_dead_holders_lease_ends<F: Fixture>(fixture: &F) {
    let (scene, dead, lease) = (Scene::of(fixture).await, stranger(), fixture.short_lease());
    let sent = Instant::now();
    scene.one(&dead).enters_for(lease).await;
    let locks = locks(fixture.client().await, LASTING);
    let guard = enters(&locks.lock(scene.name.as_str())).await;
    let waited = sent.elapsed() + Duration::from_millis(1);
    assert!(waited >= lease, "entered after {waited:?}, the lease was {lease:?}");
    guard.release().await.expect("release failed");
}

/// C2: `try_acquire` does not wait, neither at the owner's client nor at another.
pub async fn a_held_lock_is_not_acquired_by_trying<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here()).await;
    is_refused(&shared.here()).await;
    is_refused(&shared.there()).await;
    drop(guard);
    shared.is_free_and_forgotten(fixture).await;
}

/// C2 and C12: an acquisition that times out says so, and leaves nothing behind.
pub async fn a_timeout_leaves_nothing<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here()).await;
    for lock in [shared.here(), shared.there()] {
        let error =
            lock.acquire_timeout(fixture.short_lease() / 4).await.expect_err("the lock is held");
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    }
    guard.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C10 and C11: nested guards may be released in any order; the last one frees the lock.
pub async fn nested_guards_release_in_any_order<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let lock = shared.here().owned_by(&Owner::new());
        let mut guards =
            [Some(enters(&lock).await), Some(enters(&lock).await), Some(enters(&lock).await)];
        for (left, index) in [2, 1, 0].into_iter().zip(order) {
            is_refused(&shared.there()).await;
            let guard = guards[index].take().expect("each goes once");
            assert_eq!(guard.hold_count(), left + 1);
            guard.release().await.expect("release failed");
        }
        enters(&shared.there()).await.release().await.expect("release failed");
    }
    shared.is_free_and_forgotten(fixture).await;
}

/// C7: a nested acquisition with a longer lease extends the lease at the backend, and its release
/// keeps the hold.
pub async fn a_nested_acquisition_can_lengthen_the_lease<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let lock = shared.here().owned_by(&Owner::new());
    let outer = enters(&lock.clone().lease(LASTING / 10)).await;
    let inner = enters(&lock.clone().lease(LASTING)).await;
    assert!(inner.remaining() > LASTING / 2, "{:?}", inner.remaining());
    let state = soon(shared.there().state()).await.expect("state failed");
    assert!(state.remaining() > Some(LASTING / 2), "{state:?}");
    inner.release().await.expect("release failed");
    is_refused(&shared.there()).await;
    outer.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C1: the branches of one `join!` are different owners.
pub async fn two_branches_of_one_join_exclude_each_other<F: Fixture>(fixture: &F) {
    let (shared, history) = (Shared::lasting(fixture).await, History::new());
    let branch = async |lock: Lock| {
        let guard = enters(&lock).await;
        let inside = history.enter(guard.name(), guard.wire_owner(), guard.token());
        fixture.pass(fixture.short_lease() / 10).await;
        inside.leave();
        guard.release().await.expect("release failed");
    };
    tokio::join!(branch(shared.here()), branch(shared.here()), branch(shared.there()));
    history.check().expect("exclusion");
    assert_eq!(history.beliefs().len(), 3);
}

/// C1: a spawned task is a different owner, even inside a scope.
pub async fn a_spawned_task_is_a_stranger<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let lock = shared.here();
    let inside = async {
        let guard = enters(&lock).await;
        let nested = enters(&lock).await;
        let task = tokio::spawn(lock.try_acquire());
        let stranger = task.await.expect("the task panicked").expect("try_acquire failed");
        assert!(stranger.is_none(), "a spawned task entered its parent's hold");
        drop((guard, nested));
    };
    shared.one.scope(inside).await;
    shared.is_free_and_forgotten(fixture).await;
}

/// C4 and C5: `run` inside `run` enters the same hold.
pub async fn run_nests<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let lock = shared.here();
    let tokens = lock.run(async |outer| {
        let inner = lock.run(async |inner| {
            is_refused(&shared.there()).await;
            (inner.token(), inner.hold_count())
        });
        (outer.token(), inner.await.expect("run failed"), outer.hold_count())
    });
    let (outer, (inner, depth), back) = soon(tokens).await.expect("run failed");
    assert_eq!((inner, depth, back), (outer, 2, 1));
    shared.is_free_and_forgotten(fixture).await;
}

/// C4: re-entering keeps the token, and every new hold has a greater one, whichever client it is
/// at.
pub async fn a_hold_has_one_token_and_the_next_a_greater<F: Fixture>(fixture: &F) {
    let (shared, owner) = (Shared::lasting(fixture).await, Owner::new());
    let mut last = None;
    for lock in [shared.here(), shared.there(), shared.there(), shared.here()] {
        let lock = lock.owned_by(&owner);
        let (outer, inner) = (enters(&lock).await, enters(&lock).await);
        assert_eq!(outer.token(), inner.token());
        assert!(last < Some(outer.token()), "{last:?}, then {:?}", outer.token());
        last = Some(outer.token());
        outer.release().await.expect("release failed");
        inner.release().await.expect("release failed");
    }
}

/// C5: a named owner re-enters from another handle.
pub async fn a_named_owner_re_enters_from_another_handle<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let outer = enters(&shared.here().owned_by(&Owner::named("job-17"))).await;
    let inner = enters(&shared.here().owned_by(&Owner::named("job-17"))).await;
    assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
    outer.release().await.expect("release failed");
    is_refused(&shared.there()).await;
    inner.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C6: a named owner enters at once from another client; its earlier hold is lost, and releasing
/// that one frees nothing.
pub async fn a_named_owner_takes_its_hold_along_to_another_client<F: Fixture>(fixture: &F) {
    let shared = Shared::with_lease(fixture, fixture.short_lease() * 4).await;
    let (owner, again) = (Owner::named("job-17"), Owner::named("job-17"));
    let before = enters(&shared.here().owned_by(&owner)).await;
    let after = enters(&shared.there().owned_by(&again)).await;
    assert!(after.token() > before.token());
    assert_eq!(soon(before.lost()).await, LossReason::Gone);
    assert!(matches!(before.release().await, Err(LockError::Lost { .. })));
    is_refused(&shared.here()).await;
    assert!(after.is_held());
    after.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C8: the watchdog renews a hold for as long as it is wanted, and no longer.
pub async fn the_watchdog_keeps_a_hold_beyond_its_lease<F: Fixture>(fixture: &F) {
    let lease = fixture.short_lease() * 3;
    let shared = Shared::with_lease(fixture, lease).await;
    let guard = enters(&shared.here()).await;
    let mut waiting = pin!(shared.there().acquire());
    tokio::select! {
        biased;
        _ = waiting.as_mut() => panic!("the hold was not renewed"),
        () = fixture.pass(lease * 2) => {}
    }
    assert!(guard.is_held());
    drop(guard);
    soon(waiting).await.expect("acquire failed").release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}

/// C3: a fixed lease is not renewed; its owner learns of the end before anybody else enters.
pub async fn the_holder_of_a_fixed_lease_learns_of_its_end_first<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here().lease(fixture.short_lease())).await;
    let lost = guard.lost();
    let successor = async {
        let successor = enters(&shared.there()).await;
        (guard.is_held(), successor)
    };
    let (reason, (still_believed, successor)) = soon(async { tokio::join!(lost, successor) }).await;
    assert_eq!(reason, LossReason::LeaseEnded);
    assert!(!still_believed, "two owners believed to be inside");
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert!(successor.is_held());
}

/// C8 and C13: an owner that is forced out at another client learns of it with the next renewal.
pub async fn a_forced_release_is_noticed_by_the_next_renewal<F: Fixture>(fixture: &F) {
    let shared = Shared::with_lease(fixture, fixture.short_lease() * 4).await;
    let guard = enters(&shared.here()).await;
    assert!(shared.there().force_release().await.expect("force_release failed"));
    let successor = enters(&shared.there()).await;
    assert_eq!(soon(guard.lost()).await, LossReason::Gone);
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    successor.release().await.expect("the successor's hold was touched");
}

/// C8: `run` drops its body when the hold is lost.
pub async fn run_drops_its_body_when_the_hold_is_lost<F: Fixture>(fixture: &F) {
    let shared = Shared::with_lease(fixture, fixture.short_lease() * 4).await;
    let ended = shared.here().run(async |_| {
        assert!(shared.there().force_release().await.expect("force_release failed"));
        std::future::pending::<()>().await;
    });
    let error = soon(ended).await.expect_err("the body never ends");
    assert!(matches!(error, LockError::Lost { reason: LossReason::Gone, .. }), "{error}");
    shared.is_free_and_forgotten(fixture).await;
}

/// C10: dropping a guard releases at once, outside of the runtime as well.
pub async fn a_dropped_guard_releases<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here()).await;
    drop(guard);
    let guard = enters(&shared.there()).await;
    std::thread::spawn(move || drop(guard)).join().expect("dropping a guard panicked");
    drop(enters(&shared.here()).await);
    shared.is_free_and_forgotten(fixture).await;
}

/// C17: an acquisition that is dropped after any number of polls leaves nothing behind, and the
/// next one enters at once.
pub async fn a_dropped_acquisition_leaves_nothing<F: Fixture>(fixture: &F) {
    for polls in 0..64 {
        let shared = Shared::lasting(fixture).await;
        let acquired = poll_times(polls, shared.here().acquire()).await.map(drop).is_some();
        shared.is_free_and_forgotten(fixture).await;
        if acquired {
            return;
        }
    }
    panic!("an acquisition of a free lock was polled 64 times");
}

/// C12 and C17: a waiter that is dropped after any number of polls takes no turn from the others.
pub async fn a_dropped_waiter_takes_nobodys_turn<F: Fixture>(fixture: &F) {
    for polls in 0..8 {
        let shared = Shared::lasting(fixture).await;
        let guard = enters(&shared.here()).await;
        let next = shared.there();
        let dropped = shared.there().acquire();
        let next = async {
            // Queues behind the waiter that is dropped, at the same client.
            tokio::task::yield_now().await;
            enters(&next).await
        };
        let dropped = async {
            let pause = fixture.pass(fixture.short_lease() / 10);
            tokio::select! { _ = poll_times(polls, dropped) => {}, () = pause => {} }
            guard.release().await.expect("release failed");
        };
        let ((), guard) = soon(async { tokio::join!(dropped, next) }).await;
        guard.release().await.expect("release failed");
        shared.is_free_and_forgotten(fixture).await;
    }
}

/// C1 and C12: many tasks of two clients all get their turn, one after the other.
pub async fn everybody_gets_a_turn<F: Fixture>(fixture: &F) {
    let (shared, history) = (Shared::lasting(fixture).await, std::sync::Arc::new(History::new()));
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let lock = if task % 2 == 0 { shared.here() } else { shared.there() };
        let history = history.clone();
        tasks.spawn(async move {
            for _ in 0..3 {
                let guard = lock.acquire().await.expect("acquire failed");
                let inside = history.enter(guard.name(), guard.wire_owner(), guard.token());
                tokio::task::yield_now().await;
                inside.leave();
                guard.release().await.expect("release failed");
            }
        });
    }
    tasks.join_all().await;
    history.check().expect("exclusion and rising tokens");
    assert_eq!(history.beliefs().len(), 48);
    shared.is_free_and_forgotten(fixture).await;
}

/// C14: `state` names the owner, from any client.
pub async fn the_state_tells_the_holder_from_any_client<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let guard = enters(&shared.here().owned_by(&Owner::named("job-17"))).await;
    let nested = enters(&shared.here().owned_by(&Owner::named("job-17"))).await;
    for lock in [shared.here(), shared.there()] {
        let state = soon(lock.state()).await.expect("state failed");
        let [holder] = state.holders() else { panic!("there should be one holder: {state:?}") };
        assert_eq!(holder.owner(), "job-17");
        assert!(state.remaining() > Some(LASTING / 2), "{state:?}");
    }
    let state = shared.here().state().await.expect("state failed");
    assert_eq!(state.holders()[0].hold_count(), 2, "nested guards are counted where they are");
    drop((guard, nested));
    shared.is_free_and_forgotten(fixture).await;
    assert!(!shared.there().state().await.expect("state failed").is_held());
}

/// C10: closing a client releases its holds, ends its waits, and does not affect other clients.
pub async fn closing_a_client_releases_what_it_holds<F: Fixture>(fixture: &F) {
    let shared = Shared::lasting(fixture).await;
    let (held, also) = (enters(&shared.here()).await, format!("{}:also", shared.name));
    let theirs = enters(&shared.two.lock(&also)).await;
    let mut waiting = pin!(shared.one.lock(&also).acquire());
    still_waits(fixture, waiting.as_mut()).await;
    soon(shared.one.close()).await.expect("close failed");
    assert!(matches!(soon(waiting).await, Err(LockError::Closed { .. })));
    assert_eq!(soon(held.lost()).await, LossReason::Closed);
    assert!(matches!(held.release().await, Err(LockError::NotHeld { .. })));
    enters(&shared.there()).await.release().await.expect("release failed");
    assert!(theirs.is_held());
    theirs.release().await.expect("release failed");
    shared.is_free_and_forgotten(fixture).await;
}
