//! Count-down latches as they are stored, beside Redisson's.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{Backend, Latches, ResizeRequest},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    steps::{Messages, assert_wrong_type, enters, exists, fill, hold, keys, name, pttl, request},
    support::{connect, soon},
};

const CHANNEL: &str = "redisson_countdownlatch__channel__{gate}";
const REQUESTS: &str = "lockcore_latch:{gate}";

fn latches(backend: &RedisBackend) -> &dyn Latches {
    backend.latches().unwrap()
}

/// Counts down as Redisson's `countDown` does.
async fn java_counts_down(server: &RedisServer) {
    let script = "local v = redis.call('decr', KEYS[1]) if v <= 0 then redis.call('del', KEYS[1]) end \
        if v == 0 then redis.call('publish', KEYS[2], 0) end";
    let _: () = server.query(&["EVAL", script, "2", "gate", CHANNEL]).await;
}

#[tokio::test]
async fn a_latch_is_a_number_that_redisson_counts_down_too() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (latches, gate) = (latches(&backend), name("gate"));
    let mut messages = Messages::of(&server, CHANNEL).await;
    assert!(latches.set_count(&gate, 3, "1").await.unwrap());
    assert_eq!(messages.next().await, "1");
    assert!(latches.set_count(&gate, 3, "1").await.unwrap(), "answered as the first time");
    assert!(!latches.set_count(&gate, 9, "2").await.unwrap());
    assert_eq!((server.query::<i64>(&["GET", "gate"]).await, pttl(&server, "gate").await), (3, -1));
    for _ in 0..2 {
        assert_eq!(latches.count_down(&gate, "1").await.unwrap(), 2, "counts once");
    }
    let mut wakeups = latches.subscribe(&gate).await.unwrap();
    java_counts_down(&server).await;
    assert_eq!(latches.count(&gate).await.unwrap(), 1);
    java_counts_down(&server).await;
    soon("the message", wakeups.woken()).await;
    assert_eq!(messages.next().await, "0");
    assert_eq!(latches.count(&gate).await.unwrap(), 0);

    assert!(!latches.set_count(&gate, 9, "2").await.unwrap(), "answered as the first time");
    assert!(latches.set_count(&gate, 1, "3").await.unwrap());
    assert_eq!(latches.count_down(&gate, "1").await.unwrap(), 1, "has counted already");
    assert_eq!(latches.count_down(&gate, "4").await.unwrap(), 0);
    assert_eq!((messages.next().await, messages.next().await), ("1".to_owned(), "0".to_owned()));
    assert_eq!(latches.count_down(&gate, "5").await.unwrap(), 0, "stays open");
    assert!(!exists(&server, "gate").await);
    assert!((55_000..=60_000).contains(&pttl(&server, REQUESTS).await), "a minute");
}

#[tokio::test]
async fn an_opened_latch_wakes_and_leaves_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for lock in ["gate", "{gate}:tagged"] {
        let (latches, gate) = (latches(&backend), name(lock));
        assert_eq!(latches.open(&gate).await.unwrap(), 0);
        assert!(latches.set_count(&gate, 7, "1").await.unwrap());
        let mut wakeups = latches.subscribe(&gate).await.unwrap();
        let mut messages =
            Messages::of(&server, &format!("redisson_countdownlatch__channel__{{{lock}}}")).await;
        assert_eq!(latches.open(&gate).await.unwrap(), 7);
        soon("the opening", wakeups.woken()).await;
        assert_eq!(messages.next().await, "0");
        assert_eq!(latches.open(&gate).await.unwrap(), 0);
    }
    assert_eq!(keys(&server).await, [REQUESTS, "lockcore_latch_tagged:{gate}:tagged"]);
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}

#[tokio::test]
async fn redissons_latches_are_used_as_they_are() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (latches, gate) = (latches(&backend), name("gate"));
    for (stored, count) in [("5000000000", u32::MAX), ("1", 1), ("0", 0), ("-3", 0)] {
        let _: String = server.query(&["SET", "gate", stored]).await;
        assert_eq!(latches.count(&gate).await.unwrap(), count);
    }
    assert_eq!(latches.count_down(&gate, "1").await.unwrap(), 0);
    assert!(latches.set_count(&gate, 2, "1").await.unwrap(), "what is not above zero is open");
    let _: String = server.query(&["SET", "gate", "precious"]).await;
    for error in [
        latches.count(&gate).await,
        latches.open(&gate).await,
        latches.count_down(&gate, "9").await,
    ] {
        assert_eq!(error.unwrap_err().kind(), BackendErrorKind::WrongType);
    }
    assert_eq!(server.query::<String>(&["GET", "gate"]).await, "precious");
}

#[tokio::test]
async fn a_latch_is_in_nobodys_use_but_as_one() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (latches, gate) = (latches(&backend), name("gate"));
    assert!(latches.set_count(&gate, 2, "1").await.unwrap());
    let modes = [
        Mode::Exclusive,
        Mode::Fair,
        Mode::Read,
        Mode::Write,
        Mode::permits(1, 2),
        Mode::plain_permits(1, 2),
    ];
    for mode in modes {
        assert_wrong_type(&backend, &request("gate", &hold("a:1"), mode)).await;
    }
    assert_eq!(
        backend.resize(&ResizeRequest::new(gate.clone(), 2)).await.unwrap_err().kind(),
        BackendErrorKind::WrongType
    );
    assert_eq!(backend.force_release(&gate).await.unwrap_err().kind(), BackendErrorKind::WrongType);
    assert_eq!(backend.inspect(&gate).await.unwrap_err().kind(), BackendErrorKind::WrongType);
    assert_eq!(latches.open(&gate).await.unwrap(), 2);
    for mode in modes {
        let holding = request("gate", &hold("a:1"), mode);
        enters(&backend, &holding).await;
        enters(&backend, &holding).await;
        assert_eq!(
            latches.set_count(&gate, 2, "2").await.unwrap_err().kind(),
            BackendErrorKind::WrongType
        );
        assert!(backend.force_release(&gate).await.unwrap());
        let _: i64 = server.query(&["DEL", "gate"]).await;
    }
    // Redisson has opened one of our latches, and left our record of it: a semaphore may use the
    // name.
    assert!(latches.set_count(&gate, 1, "3").await.unwrap());
    java_counts_down(&server).await;
    for id in ["a:1", "b:1"] {
        enters(&backend, &request("gate", &hold(id), Mode::permits(1, 2))).await;
    }
}

#[tokio::test]
async fn full_memory_keeps_no_latch_shut() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (latches, gate) = (latches(&backend), name("gate"));
    assert!(latches.set_count(&gate, 2, "1").await.unwrap());
    fill(&server).await;
    let error = latches.set_count(&name("new"), 2, "1").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory);
    assert_eq!(latches.count_down(&gate, "1").await.unwrap(), 1);
    assert_eq!(latches.count_down(&gate, "2").await.unwrap(), 0);
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}
