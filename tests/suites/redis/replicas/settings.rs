//! Which setting applies: that of the backend, or that of a lock.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::RedisBackend;

use super::{ENOUGH, Group, MS, too_few};
use crate::support::connect;

#[tokio::test]
async fn the_setting_of_a_lock_replaces_that_of_the_backend() {
    let group = Group::start(1).await;
    let (strict, loose) = (group.locks(2, ENOUGH).await, connect(&group.primary).await);
    let loose = Locks::new(loose);
    assert!(too_few(&strict.lock("a").try_acquire().await.unwrap_err()).contains("1 of the 2"));
    let one = strict.lock("a").replicas(1, ENOUGH).acquire().await.unwrap();
    assert_eq!(one.replicas(), Some(1));
    drop(one);
    let two = loose.lock("b").replicas(2, ENOUGH).try_acquire().await;
    assert!(too_few(&two.unwrap_err()).contains("1 of the 2"));
    let one = loose.lock("b").replicas(1, ENOUGH).acquire().await.unwrap();
    assert_eq!(one.replicas(), Some(1));
}

#[tokio::test]
async fn timeouts_out_of_range_are_refused_before_any_request() {
    let group = Group::start(0).await;
    let locks = Locks::new(connect(&group.primary).await);
    for timeout in [Duration::ZERO, MS - MS / 1000, ENOUGH + MS] {
        let error = locks.lock("a").replicas(1, timeout).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidOption { option: "replicas", .. }), "{error}");
        assert!(error.to_string().contains("1 ms to 1 s"), "{error}");
        let backend = RedisBackend::builder().replicas(1, timeout).connect().await;
        let error = backend.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("1 ms to 1 s"), "{error}");
    }
}

/// The hold of the first may not be acknowledged, so the second requests its own.
#[tokio::test]
async fn a_lock_with_a_setting_of_its_own_does_not_take_over_a_hold() {
    let group = Group::start(1).await;
    let locks = Locks::new(connect(&group.primary).await);
    let first = locks.lock("a").acquire().await.unwrap();
    assert_eq!(first.replicas(), None);
    let second = locks.lock("a").replicas(1, ENOUGH);
    let waiting = tokio::spawn(async move { second.acquire().await.unwrap() });
    let behind = tokio::spawn(locks.lock("a").acquire());
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert_eq!(second.replicas(), Some(1));
    second.release().await.unwrap();
    behind.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hold_that_is_handed_over_was_acknowledged() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    let first = locks.lock("a").acquire().await.unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let lock = locks.lock("a");
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let replicas = guard.replicas();
                guard.release().await.unwrap();
                replicas
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let waits = group.waits().await;
    first.release().await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Some(1));
    }
    let waits = group.waits().await - waits;
    assert!(waits < 20, "some holds were handed over: {waits} calls of WAIT");
}
