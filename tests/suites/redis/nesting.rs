//! Nesting costs nothing on the server.

use std::time::Duration;

use lockcore::{LockError, Owner};
use lockcore_testkit::RedisServer;

use crate::support::{assert_nothing_left, counted, load_scripts, locks};

#[tokio::test]
async fn nested_acquire_and_release_cost_no_command() {
    let server = RedisServer::start();
    let locks = counted(&server).await;
    load_scripts(&locks).await;
    let owner = Owner::new();
    let lock = locks.lock("nested").owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    let before = server.client_commands().await;
    for _ in 0..100 {
        let middle = lock.acquire().await.unwrap();
        let inner = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!((outer.hold_count(), inner.token()), (3, outer.token()));
        middle.release().await.unwrap();
        inner.release().await.unwrap();
    }
    assert_eq!(server.client_commands().await, before);
    outer.release().await.unwrap();
    assert_eq!(
        server.client_commands().await,
        before + 1,
        "the last release is the only one that is sent"
    );
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn depth_three_is_released_in_any_order() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let lock = locks.lock("orders").owned_by(&Owner::new());
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(Some(lock.acquire().await.unwrap()));
        }
        for (released, index) in order.into_iter().enumerate() {
            assert!(
                server.query::<bool>(&["EXISTS", "orders"]).await,
                "{order:?}: held until the last"
            );
            let guard = guards[index].take().unwrap();
            assert_eq!(guard.hold_count() as usize, 3 - released);
            guard.release().await.unwrap();
        }
        assert!(
            !server.query::<bool>(&["EXISTS", "orders"]).await,
            "{order:?}: free after the last"
        );
    }
}

#[tokio::test]
async fn a_nested_lease_that_must_grow_is_stored_with_its_count_and_taken_back() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let owner = Owner::new();
    let outer = locks
        .lock("growing")
        .owned_by(&owner)
        .lease(Duration::from_secs(5))
        .acquire()
        .await
        .unwrap();
    let field = outer.wire_owner().to_owned();
    let inner = locks
        .lock("growing")
        .owned_by(&owner)
        .lease(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap();
    assert_eq!(server.query::<u32>(&["HGET", "growing", &field]).await, 2);
    assert!(server.query::<i64>(&["PTTL", "growing"]).await > 50_000);
    assert!(
        outer.remaining() > Duration::from_secs(50),
        "the lease is that of the hold, whichever guard asked for it"
    );

    inner.release().await.unwrap();
    crate::support::until("the count to be stored", || async {
        server.query::<u32>(&["HGET", "growing", &field]).await == 1
    })
    .await;
    assert!(
        server.query::<i64>(&["PTTL", "growing"]).await > 50_000,
        "a partial release leaves the lease alone"
    );
    outer.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_named_owner_re_enters_from_another_handle_and_takes_over_from_a_dead_process() {
    let server = RedisServer::start();
    let (first, second) = (locks(&server).await, locks(&server).await);
    let job = Owner::named("job-17");
    let crashed = first.lock("job").owned_by(&job).acquire().await.unwrap();
    let nested = first.lock("job").owned_by(&Owner::named("job-17")).acquire().await.unwrap();
    assert_eq!(
        nested.hold_count(),
        2,
        "another handle of the same client, the same name: the same owner"
    );
    nested.release().await.unwrap();

    // The process crashed and was restarted under the same name: another client.
    let restarted = second.lock("job").owned_by(&job).acquire().await.unwrap();
    assert!(restarted.token() > crashed.token());
    let error = crashed.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(
        first.lock("job").try_acquire().await.unwrap().is_none(),
        "the late release has freed nothing"
    );
    restarted.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn strangers_are_excluded_and_run_nests() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let lock = locks.lock("strangers");
    let spawned_is_stranger = lock
        .run(async |outer| {
            let inner = locks
                .lock("strangers")
                .run(async |guard| (guard.hold_count(), guard.token()))
                .await
                .unwrap();
            assert_eq!(inner, (2, outer.token()));
            let stranger = locks.lock("strangers");
            tokio::spawn(async move { stranger.try_acquire().await.unwrap().is_none() })
                .await
                .unwrap()
        })
        .await
        .unwrap();
    assert!(spawned_is_stranger);

    let hold = |lock: lockcore::Lock| async move {
        let guard = lock.acquire().await.unwrap();
        let alone = guard.hold_count() == 1;
        guard.release().await.unwrap();
        alone
    };
    let (one, other) = tokio::join!(hold(lock.clone()), hold(lock.clone()));
    assert!(one && other, "two branches of one join! exclude each other");
}

#[tokio::test]
async fn an_extension_is_one_command_and_lengthens_the_lease_on_the_server() {
    let server = RedisServer::start();
    let locks = counted(&server).await;
    let lock = locks.lock("extended").lease(Duration::from_secs(10));
    // From now on the server has the scripts.
    let first = lock.acquire().await.unwrap();
    first.extend(Duration::from_secs(10)).await.unwrap();
    first.release().await.unwrap();

    let guard = lock.acquire().await.unwrap();
    let before = server.client_commands().await;
    guard.extend(Duration::from_secs(100)).await.unwrap();
    assert_eq!(server.client_commands().await, before + 1);
    for extended in [Duration::from_secs(100), Duration::from_secs(1)] {
        guard.extend(extended).await.unwrap();
        let left: i64 = server.query(&["PTTL", "extended"]).await;
        assert!((90_000..=100_000).contains(&left), "{left} ms after {extended:?}");
    }
    let count: u32 = server.query(&["HGET", "extended", guard.wire_owner()]).await;
    assert_eq!(count, 1);
    guard.release().await.unwrap();
    assert_nothing_left(&server).await;
}
