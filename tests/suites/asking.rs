//! Queries: who holds what, how a hold ended, and several locks at once.

use std::pin::Pin;

use lockcore::{
    BackendErrorKind, Lock, LockError, LockGuard, Locks, LossReason, MultiGuard, MultiLock, Owner,
    Semaphore,
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::task::JoinHandle;

use crate::clients::{SECOND, assert_all_free, two_clients};

#[tokio::test(start_paused = true)]
async fn a_guard_finds_its_own_hold_in_the_state_of_its_lock() {
    let (_, one, other) = two_clients();
    let shared = [one.rw_lock("a"), other.rw_lock("a")];
    let mine = shared[0].read().acquire().await.unwrap();
    let theirs = shared[1].read().acquire().await.unwrap();
    for lock in &shared {
        let state = lock.state().await.unwrap();
        assert_eq!(state.holder_of(&mine).unwrap().owner(), mine.wire_owner());
        assert_eq!(state.holder_of(&theirs).unwrap().owner(), theirs.wire_owner());
    }
    let before = shared[0].state().await.unwrap();
    mine.release().await.unwrap();
    let again = shared[0].read().acquire().await.unwrap();
    assert!(before.holder_of(&again).is_none(), "it is another hold");
    shared[1].force_release().await.unwrap();
    assert!(shared[0].state().await.unwrap().holder_of(&again).is_none());

    // An owner that writes and reads has one hold of each kind.
    let owner = Owner::named("both");
    let (read, write) = (one.rw_lock("b").read(), one.rw_lock("b").write());
    let writing = write.owned_by(&owner).acquire().await.unwrap();
    let reading = read.owned_by(&owner).acquire().await.unwrap();
    let state = one.rw_lock("b").state().await.unwrap();
    assert_eq!(state.holder_of(&writing).unwrap().mode(), writing.mode());
    assert_eq!(state.holder_of(&reading).unwrap().mode(), reading.mode());

    let fair = one.fair_lock("c").acquire().await.unwrap();
    assert!(one.lock("c").state().await.unwrap().holder_of(&fair).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_owner_can_ask_how_often_it_holds_a_lock_without_a_call() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    let (owner, stranger) = (Owner::new(), Owner::named("stranger"));
    let lock = locks.lock("a").owned_by(&owner);
    assert_eq!(lock.hold_count_of(&owner), 0);
    let guards = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
    let calls = faults.all_calls();
    assert_eq!(lock.hold_count_of(&owner), 2);
    assert_eq!(locks.lock("a").hold_count_of(&owner), 2, "through any handle");
    assert_eq!(locks.fair_lock("a").hold_count_of(&owner), 2, "one kind of lock");
    assert_eq!(lock.hold_count_of(&stranger), 0);
    assert_eq!(locks.lock("b").hold_count_of(&owner), 0);
    assert_eq!(locks.lock("").hold_count_of(&owner), 0);
    assert_eq!(faults.all_calls(), calls);
    let [outer, inner] = guards;
    inner.release().await.unwrap();
    assert_eq!(lock.hold_count_of(&owner), 1);
    outer.release().await.unwrap();
    assert_eq!(lock.hold_count_of(&owner), 0);

    let shared = locks.rw_lock("c");
    let writing = shared.write().owned_by(&owner).acquire().await.unwrap();
    let reading = shared.read().owned_by(&owner).acquire().await.unwrap();
    assert_eq!(shared.write().hold_count_of(&owner), 1);
    assert_eq!(shared.read().hold_count_of(&owner), 1);
    drop((writing, reading));

    let semaphore = locks.semaphore("d", 9).owned_by(&stranger);
    let permits = [3, 4].map(|count| semaphore.permits(count));
    let held = [permits[0].acquire().await.unwrap(), permits[1].acquire().await.unwrap()];
    assert_eq!(semaphore.permits(1).hold_count_of(&stranger), 2, "each acquisition is one");
    drop(held);

    let lost = locks.lock("e").owned_by(&owner).lease(SECOND).acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(locks.lock("e").hold_count_of(&owner), 0);
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_hold_is_told_whether_it_was_released_or_lost() {
    let (_, one, other) = two_clients();
    let owner = Owner::new();
    let lock = one.lock("a").owned_by(&owner);
    let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let watching = [tokio::spawn(outer.ended()), tokio::spawn(inner.ended())];
    inner.release().await.unwrap();
    tokio::time::sleep(100 * SECOND).await;
    assert!(watching.iter().all(|watcher| !watcher.is_finished()), "the hold goes on");
    let after = outer.ended();
    drop(outer);
    for watcher in watching {
        assert_eq!(watcher.await.unwrap(), None);
    }
    assert_eq!(after.await, None, "also for who asks late");

    // A hold that is handed on to the next task has ended.
    let first = one.lock("a").acquire().await.unwrap();
    let next = tokio::spawn({
        let lock = one.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let ended = tokio::spawn(first.ended());
    drop(first);
    let next = next.await.unwrap();
    assert_eq!(ended.await.unwrap(), None);
    drop(next);

    let guard = one.lock("b").lease(SECOND).acquire().await.unwrap();
    let loss = guard.ended().await.expect("a loss");
    assert!(loss == LossReason::LeaseEnded && loss.lock().as_str() == "b", "{loss}");
    assert_eq!(loss.reason(), LossReason::LeaseEnded);
    assert!(loss.to_string().starts_with("the hold of lock `b` was lost"), "{loss}");
    assert_eq!(guard.lost().await, loss);
    assert!(matches!(LockError::from(loss), LockError::Lost { .. }));

    let guard = one.lock("c").acquire().await.unwrap();
    assert!(other.lock("c").force_release().await.unwrap());
    assert_eq!(guard.ended().await.expect("a loss"), LossReason::Gone);
    let closed = one.lock("d").acquire().await.unwrap();
    one.close().await.unwrap();
    assert_eq!(closed.ended().await.expect("a loss"), LossReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_several_holds_is_the_loss_of_one_or_the_release_of_all() {
    let (_, one, other) = two_clients();
    let guard = one.multi_lock(["a", "b", "c"]).acquire().await.unwrap();
    let watcher = tokio::spawn(guard.ended());
    tokio::time::sleep(100 * SECOND).await;
    assert!(!watcher.is_finished());
    guard.release().await.unwrap();
    assert_eq!(watcher.await.unwrap(), None);

    let guard = one.multi_lock(["a", "b", "c"]).acquire().await.unwrap();
    assert!(
        poll_times(1, guard.ended()).await.is_none() && poll_times(1, guard.lost()).await.is_none()
    );
    assert!(other.lock("b").force_release().await.unwrap());
    let loss = guard.ended().await.expect("a loss");
    assert!(loss == LossReason::Gone && loss.lock().as_str() == "b", "{loss}");
    assert_eq!(guard.lost().await, loss);
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_inspected_and_freed_together() {
    let (store, one, other) = two_clients();
    let several = |locks: &Locks| {
        MultiLock::of([
            locks.semaphore("c", 2).permits(1),
            locks.lock("a"),
            locks.rw_lock("b").read(),
        ])
    };
    let held = async |locks: &Locks| {
        let states = several(locks).state().await.unwrap();
        let held = states.iter().filter(|(_, state)| state.is_held());
        (states.len(), held.map(|(name, _)| name.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(held(&other).await, (3, vec![]));
    assert!(!several(&other).force_release().await.unwrap());
    let guard = several(&one).acquire().await.unwrap();
    assert_eq!(held(&other).await, (3, vec!["a".into(), "b".into(), "c".into()]));
    assert!(several(&other).force_release().await.unwrap());
    assert_eq!(held(&other).await, (3, vec![]));
    assert_eq!(guard.lost().await, LossReason::Gone);

    let part = one.lock("a").acquire().await.unwrap();
    assert_eq!(held(&other).await, (3, vec!["a".into()]));
    assert!(several(&one).force_release().await.unwrap());
    assert!(!part.is_held(), "this client learns of it at once");
    drop((part, guard));

    let error = one.multi_lock(["a", ""]).state().await.unwrap_err();
    assert!(matches!(error, LockError::InvalidName { .. }), "{error}");
    let error = one.multi_lock::<[&str; 0]>([]).force_release().await.unwrap_err();
    assert!(matches!(error, LockError::InvalidOption { .. }), "{error}");
    assert_all_free(&store).await;
}

#[test]
fn a_namespace_that_no_valid_name_can_begin_with_is_refused() {
    let with = |namespace: &str| Locks::builder(MemoryBackend::new()).namespace(namespace).build();
    for namespace in ["{}", "a{}b", "a\0", &"x".repeat(512)] {
        let error = with(namespace).unwrap_err();
        assert!(matches!(error, LockError::InvalidName { .. }), "{namespace}: {error}");
    }
    for namespace in ["", "shop:", "{shop}:", "{", "shop{", "a}", &"x".repeat(510)] {
        with(namespace).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_freed_keeps_no_other_lock_of_several_from_being_freed() {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let (locks, other) = (Locks::new(backend), Locks::new(store));
    let guard = other.multi_lock(["a", "b", "c"]).acquire().await.unwrap();
    faults.next(Op::ForceRelease, Fault::Refuse(BackendErrorKind::Permission));
    let several = locks.multi_lock(["a", "b", "c"]);
    let error = several.force_release().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Backend(_)) && error.to_string().contains("`a`"),
        "{error}"
    );
    let states = several.state().await.unwrap();
    let held: Vec<_> = states.iter().map(|(_, state)| state.is_held()).collect();
    assert_eq!(held, [true, false, false]);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_size_of_a_semaphore_is_set_once_unless_it_is_resized() {
    let (_, one, other) = two_clients();
    let (here, there) = (one.semaphore("s", 10), other.semaphore("s", 20));
    let held = here.permits(10).acquire().await.unwrap();
    assert_eq!(there.available().await.unwrap(), 0, "the first has said how many there are");
    let waiting = tokio::spawn(there.permits(2).acquire());
    tokio::time::sleep(SECOND).await;
    assert!(there.resize_if_unset(12).await.unwrap());
    let woken = tokio::time::timeout(SECOND, waiting).await.expect("it is woken").unwrap();
    woken.unwrap().release().await.unwrap();
    assert!(!here.resize_if_unset(5).await.unwrap());
    assert!(!here.resize_if_unset(12).await.unwrap());
    held.release().await.unwrap();
    assert_eq!(here.available().await.unwrap(), 12);
    here.resize(3).await.unwrap();
    assert!(!there.resize_if_unset(12).await.unwrap());
    assert_eq!(there.available().await.unwrap(), 3);

    for (refused, option) in [
        (one.semaphore("t", 1).resize_if_unset(0).await, "resize"),
        (one.plain_semaphore("t", 1).resize_if_unset(2).await, "resize"),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error, LockError::InvalidOption { option: refused, .. } if refused == option),
            "{error}"
        );
    }
}

type Body<T> =
    Box<dyn for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> + Send>;

fn spawned<F, T>(lock: &Lock, body: F) -> JoinHandle<Result<T, LockError>>
where
    F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    F: Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(lock.run_boxed(body))
}

#[tokio::test(start_paused = true)]
async fn generic_and_boxed_bodies_can_be_spawned() {
    let (store, one, other) = two_clients();
    let lock = one.lock("a");
    let nested = spawned(&lock, {
        let lock = lock.clone();
        move |guard| {
            Box::pin(async move {
                let inner = lock.acquire().await?;
                Ok::<_, LockError>(inner.token() == guard.token() && inner.hold_count() == 2)
            })
        }
    });
    assert!(nested.await.unwrap().unwrap().unwrap(), "its owner is that of the scope");

    let body: Body<u32> = Box::new(|guard| {
        Box::pin(async move {
            tokio::time::sleep(SECOND).await;
            guard.hold_count()
        })
    });
    assert_eq!(spawned(&lock, body).await.unwrap().unwrap(), 1);

    let cut_off = spawned(&lock, |_| Box::pin(std::future::pending::<()>()));
    tokio::time::sleep(SECOND).await;
    assert!(other.lock("a").force_release().await.unwrap());
    let error = cut_off.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");

    let dropped = spawned(&lock, |_| Box::pin(std::future::pending::<()>()));
    tokio::time::sleep(SECOND).await;
    dropped.abort();
    drop(other.lock("a").acquire().await.unwrap());
    assert_all_free(&store).await;
}

fn spawned_with_permit<F, T>(semaphore: &Semaphore, body: F) -> JoinHandle<Result<T, LockError>>
where
    F: for<'a> FnOnce(&'a LockGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    F: Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(semaphore.run_boxed(body))
}

fn spawned_with_all<F, T>(locks: &MultiLock, body: F) -> JoinHandle<Result<T, LockError>>
where
    F: for<'a> FnOnce(&'a MultiGuard) -> Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    F: Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(locks.run_boxed(body))
}

#[tokio::test(start_paused = true)]
async fn generic_bodies_can_be_spawned_with_permits_and_with_several_locks() {
    let (store, one, other) = two_clients();
    let semaphore = one.semaphore("s", 2);
    let taken = spawned_with_permit(&semaphore, {
        let semaphore = semaphore.clone();
        move |_| Box::pin(async move { semaphore.available().await })
    });
    assert_eq!(taken.await.unwrap().unwrap().unwrap(), 1);

    let locks = one.multi_lock(["a", "b"]);
    let held = spawned_with_all(&locks, move |guard| {
        Box::pin(async move {
            let taken = other.lock("b").try_acquire().await?;
            Ok::<_, LockError>(guard.is_held() && taken.is_none())
        })
    });
    assert!(held.await.unwrap().unwrap().unwrap());
    assert_all_free(&store).await;
}
