//! A server whose memory is full grants nothing, whatever has ended or expired before.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireRequest, Backend, ConditionId, ReleaseOutcome, ResizeRequest},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    steps::{LEASE, enters, fill, hold, keys, name, pass, refused_for, releases, renews, request},
    support::connect,
};

/// Shows that acquiring fails for lack of memory, and changes nothing.
async fn assert_refused(server: &RedisServer, backend: &RedisBackend, request: &AcquireRequest) {
    let before = dump(server).await;
    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{request:?}: {error}");
    assert!(!error.is_outcome_unknown(), "{error}");
    assert_eq!(dump(server).await, before, "{request:?}");
}

/// All keys but tokens, with their values.
async fn dump(server: &RedisServer) -> Vec<(String, Vec<u8>)> {
    let mut dump = Vec::new();
    for key in keys(server).await {
        let value: Option<Vec<u8>> = server.query(&["DUMP", &key]).await;
        dump.extend(value.map(|value| (key, value)));
    }
    dump
}

fn brief(mut request: AcquireRequest) -> AcquireRequest {
    request.lease = Duration::from_millis(60);
    request.queue(Some(Duration::from_millis(60)))
}

#[tokio::test]
async fn a_fair_lock_is_not_granted() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let fair = |id: &str| request("fair", &hold(id), Mode::Fair);
    // A free lock, and one whose hold has ended and whose queue has the places of a live and of an
    // expired waiter.
    fill(&server).await;
    assert_refused(&server, &backend, &fair("a:1").queue(Some(LEASE))).await;
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    enters(&backend, &fair("a:1")).await;
    assert!(refused_for(&backend, &brief(fair("expired:1"))).await.is_some());
    assert!(refused_for(&backend, &fair("live:1").queue(Some(LEASE))).await.is_some());
    // As at the end of the lease.
    assert_eq!(server.query::<i64>(&["DEL", "fair"]).await, 1);
    pass(80).await;
    fill(&server).await;
    for id in ["expired:1", "live:1", "new:1"] {
        let request = fair(id);
        if id == "live:1" {
            assert_refused(&server, &backend, &request).await;
        } else {
            // A request without a place needs no memory.
            assert!(refused_for(&backend, &request).await.is_some());
        }
    }
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    enters(&backend, &fair("live:1")).await;
    assert_eq!(releases(&backend, &fair("live:1")).await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_read_write_lock_is_not_granted() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for mode in [Mode::Read, Mode::Write] {
        let new = |id: &str, mode| request("rw", &hold(id), mode);
        // The lock has one hold that has ended and one that continues, and a writer waits.
        enters(&backend, &new("goes-on:1", Mode::Read)).await;
        enters(&backend, &brief(new("ended:1", Mode::Read))).await;
        let writer = new("writer:1", Mode::Write).queue(Some(LEASE));
        assert!(refused_for(&backend, &writer).await.is_some());
        releases(&backend, &new("goes-on:1", Mode::Read)).await;
        pass(80).await;
        fill(&server).await;
        let request = if mode == Mode::Write { writer } else { new("new:1", mode) };
        if mode == Mode::Write {
            assert_refused(&server, &backend, &request).await;
        } else {
            assert!(refused_for(&backend, &request).await.is_some(), "a writer is announced");
        }
        let _: String = server.query(&["FLUSHALL"]).await;
        let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    }
    // A writer has died, and left its field beside that of a reader inside its hold.
    let writer = brief(request("rw", &hold("dead:1"), Mode::Write));
    enters(&backend, &writer).await;
    let inside = request("rw", &hold("dead:2"), Mode::Read).within(Some(writer.hold.clone()));
    enters(&backend, &inside).await;
    pass(80).await;
    fill(&server).await;
    assert_refused(&server, &backend, &request("rw", &hold("new:1"), Mode::Read)).await;
    assert!(renews(&backend, &inside, LEASE).await);
}

#[tokio::test]
async fn permits_that_have_ended_are_not_granted() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for mode in [Mode::permits(1, 1), Mode::plain_permits(1, 1)] {
        let ended = brief(request("pool", &hold("a:1"), mode));
        enters(&backend, &ended).await;
        pass(80).await;
        fill(&server).await;
        assert_refused(&server, &backend, &request("pool", &hold("b:1"), mode)).await;
        let error = backend.resize(&ResizeRequest::new(name("new"), 3)).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
        let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
        enters(&backend, &request("pool", &hold("b:1"), mode)).await;
        let _: String = server.query(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_place_in_the_queue_of_a_condition_is_not_granted() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (conditions, full) =
        (backend.conditions().unwrap(), ConditionId::new(name("box"), name("full")));
    conditions.join(&full, "expired", Duration::from_millis(40)).await.unwrap();
    conditions.join(&full, "live", LEASE).await.unwrap();
    pass(60).await;
    fill(&server).await;
    for waiter in ["expired", "new"] {
        let before = dump(&server).await;
        let error = conditions.join(&full, waiter, LEASE).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
        assert_eq!(dump(&server).await, before);
    }
    assert!(conditions.stay(&full, "live", LEASE).await.unwrap());
}
