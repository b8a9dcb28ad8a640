//! A scope applies to the task that polls it, not to other tasks that are polled inside it.

use std::time::Duration;

use lockcore::{Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::poll_times;
use tokio::{
    sync::oneshot,
    task::{LocalSet, spawn_local, yield_now},
};

use super::{SECOND, within};

#[tokio::test]
async fn tasks_of_a_local_set_inside_a_scope_have_owners_of_their_own() {
    let (owner, local) = (Owner::new(), LocalSet::new());
    let tasks = local.run_until(async {
        assert_eq!(Owner::current(), Some(owner.clone()), "this is in the scope itself");
        let spawned = spawn_local(async { Owner::current() }).await.unwrap();
        assert_eq!(spawned, None, "a spawned task has inherited the owner of the scope");
        let other = Owner::new();
        let scoped = spawn_local(other.scope(async { Owner::current() })).await.unwrap();
        assert_eq!(scoped, Some(other), "a spawned task can open a scope of its own");
        assert_eq!(Owner::current(), Some(owner.clone()));
    });
    owner.scope(tasks).await;
}

#[tokio::test]
async fn tasks_of_a_local_set_inside_run_exclude_each_other() {
    let locks = Locks::new(MemoryBackend::new());
    let (outer, inner) = (locks.lock("outer"), locks.lock("inner"));
    let body = async |_: &_| {
        let tasks = async {
            let first = spawn_local(inner.try_acquire()).await.unwrap().unwrap();
            let second = spawn_local(inner.try_acquire()).await.unwrap().unwrap();
            assert!(first.is_some() && second.is_none(), "both tasks are inside");
            let outer = spawn_local(outer.try_acquire()).await.unwrap().unwrap();
            assert!(outer.is_none(), "a spawned task has entered the lock of `run`");
        };
        LocalSet::new().run_until(tasks).await;
    };
    outer.run(body).await.unwrap();
}

#[tokio::test]
async fn an_unrelated_task_of_a_local_set_does_not_enter_the_lock_of_a_run() {
    let lock = Locks::new(MemoryBackend::new()).lock("a");
    let (local, (go, gone)) = (LocalSet::new(), oneshot::channel());
    let unrelated = local.spawn_local({
        let lock = lock.clone();
        async move {
            gone.await.unwrap();
            lock.try_acquire().await.unwrap().is_some()
        }
    });
    let body = async |_: &_| {
        go.send(()).unwrap();
        local.run_until(unrelated).await.unwrap()
    };
    assert!(!lock.run(body).await.unwrap(), "a task that was there before is inside as well");
}

/// A runtime that is driven inside a scope polls its tasks there.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tasks_of_a_runtime_that_is_driven_inside_a_scope_have_owners_of_their_own() {
    let owner = Owner::new();
    let inside = owner.scope(async {
        tokio::task::block_in_place(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { tokio::spawn(async { Owner::current() }).await.unwrap() })
        })
    });
    assert_eq!(inside.await, None, "the task has inherited the owner of the scope");
}

/// A scope belongs to the task that polls it, not to the task that created or first polled it.
#[tokio::test(start_paused = true)]
async fn a_scope_that_moves_to_another_task_keeps_its_owner() {
    let owner = Owner::new();
    let mut scoped = Box::pin(owner.scope(async {
        yield_now().await;
        let before = Owner::current();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (before, Owner::current())
    }));
    assert!(poll_times(1, scoped.as_mut()).await.is_none(), "it has begun here");
    let (before, after) = within(SECOND, "the scope", tokio::spawn(scoped)).await.unwrap();
    assert_eq!((before.as_ref(), after.as_ref()), (Some(&owner), Some(&owner)));
}
