//! The names `x` and `{x}`, which share keys by Redisson's rules.

use lockcore::{
    BackendErrorKind, FencingToken, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    steps::{LEASE, assert_wrong_type, enters, exists, hold, refused_for, releases, request},
    support::{connect, soon},
};

const NAMES: [&str; 2] = ["x", "{x}"];

fn begin(
    backend: &RedisBackend,
    request: &AcquireRequest,
) -> tokio::task::JoinHandle<FencingToken> {
    let (backend, request) = (backend.clone(), request.clone());
    tokio::spawn(async move {
        match backend.acquire(&request).await.unwrap() {
            AcquireOutcome::Acquired { token } => token,
            outcome => panic!("refused: {outcome:?}"),
        }
    })
}

/// Sent at the same time, so that both are in one batch as far as that is allowed.
#[tokio::test]
async fn their_tokens_never_move_back() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // The scripts are loaded.
    for name in NAMES {
        let request = request(name, &hold("a:0"), Mode::Exclusive);
        enters(&backend, &request).await;
        releases(&backend, &request).await;
    }
    let mut last = 0;
    for round in 0..40 {
        let mut requests =
            NAMES.map(|name| request(name, &hold(&format!("a:{round}")), Mode::Exclusive));
        // The first request gets several tokens.
        requests[round % 2].tokens = 1000;
        let busy = begin(&backend, &request("busy", &hold("a:0"), Mode::Exclusive));
        let granting = [round % 2, 1 - round % 2].map(|which| begin(&backend, &requests[which]));
        let mut tokens = Vec::new();
        for task in granting {
            tokens.push(u64::from(soon("the grant", task).await.unwrap()));
        }
        soon("the other lock", busy).await.unwrap();
        assert!(tokens[0] > last, "round {round}: {tokens:?} after {last}");
        assert!(tokens[1] > tokens[0] + 999, "round {round}: {tokens:?}");
        last = server.query::<u64>(&["GET", "redisson_lock_token:{x}"]).await;
        assert!(last >= tokens[1], "round {round}: {tokens:?}, stored {last}");
        for request in &requests {
            assert_eq!(releases(&backend, request).await, ReleaseOutcome::Released);
        }
        releases(&backend, &request("busy", &hold("a:0"), Mode::Exclusive)).await;
    }
}

#[tokio::test]
async fn while_one_fair_lock_has_waiters_the_other_is_refused() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for (mine, other) in [("x", "{x}"), ("{x}", "x")] {
        let fair = |lock: &str, id: &str| request(lock, &hold(id), Mode::Fair).queue(Some(LEASE));
        enters(&backend, &fair(mine, "holder:1")).await;
        // Without waiters, the two are independent.
        enters(&backend, &fair(other, "other:1")).await;
        releases(&backend, &fair(other, "other:1")).await;
        assert!(refused_for(&backend, &fair(mine, "waiter:1")).await.is_some());

        assert_wrong_type(&backend, &fair(other, "other:2")).await;
        let error = backend.acquire(&fair(other, "other:2")).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::WrongType);
        assert!(
            std::error::Error::source(&error).unwrap().to_string().contains(mine),
            "names the lock: {error:?}"
        );
        let queue: Vec<String> =
            server.query(&["LRANGE", "redisson_lock_queue:{x}", "0", "-1"]).await;
        assert_eq!(queue, ["waiter:1"]);

        releases(&backend, &fair(mine, "holder:1")).await;
        enters(&backend, &fair(mine, "waiter:1")).await;
        enters(&backend, &fair(other, "other:3")).await;
        releases(&backend, &fair(mine, "waiter:1")).await;
        releases(&backend, &fair(other, "other:3")).await;
        assert!(!exists(&server, "lockcore_queue_lock:{x}").await);
    }
}

/// A waiter that gives up its place leaves the queue to the other lock.
#[tokio::test]
async fn a_queue_without_waiters_belongs_to_nobody() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let fair = |lock: &str, id: &str| request(lock, &hold(id), Mode::Fair).queue(Some(LEASE));
    for name in NAMES {
        enters(&backend, &fair(name, "holder:1")).await;
    }
    for name in NAMES {
        assert!(refused_for(&backend, &fair(name, "waiter:1")).await.is_some());
        assert_eq!(releases(&backend, &fair(name, "waiter:1")).await, ReleaseOutcome::NotHeld);
    }
}
