//! Acquisitions outside of a runtime, and clients whose background task is on a runtime that has
//! ended or is not driven.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
};

use lockcore::{LockError, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Faulty, Op};

use super::{LONG, MS, SECOND, begun, paused_runtime, within};

/// Polls `future` outside of any runtime. The memory backend answers at once.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    assert!(tokio::runtime::Handle::try_current().is_err(), "this is inside of a runtime");
    poll_once(future)
}

fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("there is nothing to wait for"),
    }
}

/// Returns `true` if `result` is an error about the missing runtime.
fn is_clear<T>(result: &Result<T, LockError>) -> bool {
    result.as_ref().is_err_and(|error| error.to_string().contains("runtime"))
}

// ---- outside

/// A guard that nobody renews would silently be lost at the end of its first lease.
#[test]
fn a_renewed_lock_cannot_be_acquired_where_nobody_could_renew_it() {
    let store = MemoryBackend::new();
    let locks = Locks::new(store.clone());
    let acquired = at_once(locks.lock("a").acquire());
    assert!(is_clear(&acquired), "it does not say that a runtime is missing: {acquired:?}");
    let tried = at_once(locks.lock("a").try_acquire());
    assert!(is_clear(&tried), "it does not say that a runtime is missing: {tried:?}");
    let permit = at_once(locks.semaphore("s", 1).acquire());
    assert!(is_clear(&permit), "it does not say that a runtime is missing: {permit:?}");
    assert_eq!(store.names_in_use(), 0, "something is left");
}

/// A multi-lock returns the same error, and does not panic.
#[test]
fn a_renewed_multi_lock_cannot_be_acquired_where_nobody_could_renew_it() {
    let store = MemoryBackend::new();
    let multi = Locks::new(store.clone()).multi_lock(["a", "b"]);
    let acquired = at_once(multi.acquire());
    assert!(is_clear(&acquired), "it does not say that a runtime is missing: {acquired:?}");
    let tried = at_once(multi.try_acquire());
    assert!(is_clear(&tried), "it does not say that a runtime is missing: {tried:?}");
    assert_eq!(store.names_in_use(), 0, "something is left");
}

/// A fixed lease is not renewed, so it needs no runtime.
#[test]
fn a_lock_with_a_fixed_lease_can_be_acquired_and_released_outside_of_a_runtime() {
    let store = MemoryBackend::new();
    let lock = Locks::new(store.clone()).lock("a").lease(SECOND);
    let guard = at_once(lock.acquire()).unwrap();
    assert!(guard.is_held());
    at_once(guard.release()).unwrap();
    assert_eq!(store.names_in_use(), 0, "something is left");
    drop(at_once(lock.acquire()).unwrap());
}

/// Timers need a runtime.
#[test]
fn a_wait_with_a_time_limit_fails_outside_of_a_runtime() {
    let locks = Locks::new(MemoryBackend::new());
    let latch = locks.latch("latch");
    at_once(latch.set_count(1)).unwrap();
    for error in [
        at_once(locks.lock("a").lease(SECOND).acquire_timeout(SECOND)).unwrap_err(),
        at_once(latch.wait_timeout(SECOND)).unwrap_err(),
    ] {
        assert!(matches!(error, LockError::NoRuntime { .. }), "{error}");
        assert!(error.lock().is_some());
    }
    // Without a wait, none is needed.
    let error = at_once(latch.wait_timeout(std::time::Duration::ZERO)).unwrap_err();
    assert!(matches!(error, LockError::LatchTimeout { .. }), "{error}");
}

/// A runtime handle outlives its runtime. Tasks that are spawned with it are dropped at once.
#[test]
fn a_renewed_lock_cannot_be_acquired_on_a_runtime_that_has_ended() {
    let store = MemoryBackend::new();
    let locks = Locks::new(store.clone());
    let handle = paused_runtime().handle().clone();
    let entered = handle.enter();
    let result = poll_once(locks.lock("a").acquire());
    assert!(is_clear(&result), "it does not say that a runtime is missing: {result:?}");
    assert_eq!(store.names_in_use(), 0, "something is left");
    drop(entered);
    drop(paused_runtime().block_on(locks.lock("a").acquire()).unwrap());
}

/// The background task runs on another thread, and renews and releases for this one.
#[test]
fn a_client_whose_background_runs_elsewhere_can_be_used_outside_of_a_runtime() {
    let backend = Faulty::new(MemoryBackend::new());
    let (faults, store) = (backend.faults(), backend.inside().clone());
    let locks = Locks::builder(backend).lease(300 * MS).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    });
    let guard = at_once(locks.lock("a").acquire()).unwrap();
    runtime.block_on(within(LONG, "a renewal", faults.reached(Op::Renew, 1)));
    drop(guard);
    let free = async {
        // The store has no event for the end of a hold without waiters.
        while store.names_in_use() > 0 {
            tokio::time::sleep(MS).await;
        }
    };
    runtime.block_on(within(LONG, "the release of a guard that was dropped outside", free));
}

#[test]
fn the_guard_of_a_multi_lock_can_be_released_outside_of_a_runtime() {
    let store = MemoryBackend::new();
    let locks = Locks::new(store.clone());
    let runtime = paused_runtime();
    let guard = runtime.block_on(locks.multi_lock(["a", "b"]).acquire()).unwrap();
    at_once(guard.release()).unwrap();
    assert_eq!(store.names_in_use(), 0, "something is left");
}

// ---- one runtime after another

/// The background task ended with its runtime during the wait.
#[test]
fn a_hold_is_renewed_although_the_runtime_with_the_background_ended_while_it_was_waited_for() {
    let store = MemoryBackend::new();
    let locks = Locks::builder(store.clone()).lease(3 * SECOND).build().unwrap();
    let (first, second) = (paused_runtime(), paused_runtime());
    first.block_on(async {
        locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    });
    let (held, waiter) = second.block_on(async {
        let held = Locks::new(store).lock("a").acquire().await.unwrap();
        (held, begun(locks.lock("a")).await)
    });
    drop(first);
    second.block_on(async {
        held.release().await.unwrap();
        let guard = within(SECOND, "the waiter", waiter).await.unwrap();
        let lost = tokio::time::timeout(20 * SECOND, guard.lost()).await;
        assert!(lost.is_err(), "nobody renews it: {lost:?}");
        guard.release().await.unwrap();
    });
}

/// An acquisition whose owner has entered through another one counts a guard, and fails afterwards
/// because nobody would renew it.
#[test]
fn a_nested_acquisition_that_fails_without_a_runtime_leaves_no_guard_behind() {
    let store = MemoryBackend::new();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store.clone()));
    let runtime = paused_runtime();
    let lock = locks.lock("a").owned_by(&Owner::new());
    let (guard, mut second) = runtime.block_on(async {
        let held = other.lock("a").acquire().await.unwrap();
        let (first, second) = (begun(lock.clone()).await, begun(lock.clone()).await);
        held.release().await.unwrap();
        (within(SECOND, "the first waiter", first).await.unwrap(), second)
    });
    drop(runtime);
    let failed = at_once(second.as_mut());
    assert!(is_clear(&failed), "it does not say that a runtime is missing: {failed:?}");
    assert_eq!(guard.hold_count(), 1, "the guard that nobody has is still counted");
    at_once(guard.release()).unwrap();
    assert_eq!(store.names_in_use(), 0, "the last guard did not release");
}

/// A drop needs no runtime.
#[test]
fn guards_can_be_dropped_after_their_runtime_has_ended() {
    let store = MemoryBackend::new();
    let locks = Locks::new(store);
    let runtime = paused_runtime();
    let (guard, multi) = runtime.block_on(async {
        (locks.lock("a").acquire().await, locks.multi_lock(["b", "c"]).acquire().await)
    });
    drop(runtime);
    let dropped = thread::spawn(move || drop((guard.unwrap(), multi.unwrap())));
    assert!(dropped.join().is_ok(), "the drop has panicked");
}
