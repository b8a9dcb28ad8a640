//! Conditions as they are stored.

use std::time::Duration;

use lockcore::backend::{Backend, ConditionId, Conditions, Departure};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    steps::{Messages, fill, keys, name, pass, pttl},
    support::{assert_nothing_left, connect, soon},
};

const KEEP: Duration = Duration::from_secs(60);

fn conditions(backend: &RedisBackend) -> &dyn Conditions {
    backend.conditions().unwrap()
}

fn of(lock: &str, condition: &str) -> ConditionId {
    ConditionId::new(name(lock), name(condition))
}

#[tokio::test]
async fn those_who_wait_are_in_a_list_with_times_and_are_told_on_channels_of_their_own() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (conditions, full) = (conditions(&backend), of("box", "full"));
    for waiter in ["a", "b", "c", "a"] {
        conditions.join(&full, waiter, KEEP).await.unwrap();
    }
    let (queue, times) = ("lockcore_condition:{box}:full", "lockcore_condition_timeout:{box}:full");
    assert_eq!(server.query::<Vec<String>>(&["LRANGE", queue, "0", "-1"]).await, ["a", "b", "c"]);
    for key in [queue, times] {
        assert!((55_000..=60_000).contains(&pttl(&server, key).await), "{key}");
    }
    let mut message = Messages::of(&server, "lockcore_condition__channel:{box}:a").await;
    let mut wakeups = conditions.subscribe(&full, "b").await.unwrap();
    assert_eq!(conditions.notify(&full, 1).await.unwrap(), 1);
    assert_eq!(message.next().await, "1");
    assert!(!conditions.stay(&full, "a", KEEP).await.unwrap(), "it was notified");
    assert!(conditions.stay(&full, "b", KEEP).await.unwrap());
    // The notification of `a` is passed on to `b`, and then to nobody.
    assert!(!conditions.leave(&full, "a", Departure::Cancelled).await.unwrap());
    soon("the notification", wakeups.woken()).await;
    assert!(conditions.leave(&full, "c", Departure::Cancelled).await.unwrap());
    assert_eq!(conditions.notify(&full, u32::MAX).await.unwrap(), 0);
    drop(wakeups);
    drop(message);
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn places_that_lapsed_are_passed_over_and_leave_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (conditions, full) = (conditions(&backend), of("box", "full"));
    conditions.join(&full, "gone", Duration::from_millis(30)).await.unwrap();
    conditions.join(&full, "there", KEEP).await.unwrap();
    conditions.join(&full, "late", Duration::from_millis(30)).await.unwrap();
    pass(40).await;
    assert!(!conditions.stay(&full, "gone", KEEP).await.unwrap());
    conditions.join(&full, "late", KEEP).await.unwrap();
    assert_eq!(conditions.notify(&full, 1).await.unwrap(), 1);
    assert!(!conditions.stay(&full, "there", KEEP).await.unwrap());
    assert!(conditions.stay(&full, "late", KEEP).await.unwrap());
    assert_eq!(conditions.notify(&full, u32::MAX).await.unwrap(), 1);
    conditions.join(&full, "gone", Duration::from_millis(30)).await.unwrap();
    pass(40).await;
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn conditions_and_locks_that_look_alike_have_queues_of_their_own() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let conditions = conditions(&backend);
    let pairs = [
        of("a", "b"),
        of("{a}", "b"),
        of("a", "b:c"),
        of("a:b", "c"),
        of("{a}:b", "c"),
        of("{a}", "b:c"),
        of("a", "{b}"),
        of("{a}b", "c"),
    ];
    for (index, condition) in pairs.iter().enumerate() {
        conditions.join(condition, &format!("w{index}"), KEEP).await.unwrap();
    }
    assert_eq!(keys(&server).await.len(), 2 * pairs.len());
    for condition in &pairs {
        assert_eq!(conditions.notify(condition, u32::MAX).await.unwrap(), 1, "{condition:?}");
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn the_keys_of_a_condition_are_in_the_slot_of_its_lock() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let plain = RedisServer::start();
    let backend = connect(&plain).await;
    for lock in ["box", "{shop}:box", "a{shop}"] {
        conditions(&backend).join(&of(lock, "{full}"), "w", KEEP).await.unwrap();
        let slot: i64 = server.query(&["CLUSTER", "KEYSLOT", lock]).await;
        for key in keys(&plain).await {
            assert_eq!(server.query::<i64>(&["CLUSTER", "KEYSLOT", &key]).await, slot, "{key}");
        }
        let _: String = plain.query(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn full_memory_keeps_nobody_from_staying_and_being_told() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (conditions, full) = (conditions(&backend), of("box", "full"));
    for waiter in ["a", "b"] {
        conditions.join(&full, waiter, KEEP).await.unwrap();
    }
    fill(&server).await;
    assert!(conditions.join(&full, "c", KEEP).await.is_err());
    assert!(conditions.stay(&full, "a", KEEP).await.unwrap());
    assert!(conditions.leave(&full, "b", Departure::TimedOut).await.unwrap());
    assert_eq!(conditions.notify(&full, 2).await.unwrap(), 1);
    assert_nothing_left(&server).await;
}
