//! Replies that do not belong to their request.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, RenewRequest},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Proxy, RedisServer};
use tokio::task::yield_now;

use crate::{
    batches::{begin, end, exclusive, outcome},
    steps::{LEASE, enters, hold, name, refused_for, releases, request, state},
    support::{connect, until},
};

#[tokio::test]
async fn a_stray_reply_grants_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let other = connect(&server).await;
    let modes = [Mode::Fair, Mode::Write, Mode::permits(1, 1)];
    for (round, mode) in modes.into_iter().enumerate() {
        let (free, held) = (format!("free:{round}"), format!("held:{round}"));
        // The script is loaded, so the call itself goes wrong.
        enters(&other, &request(&held, &hold("other:1"), mode)).await;
        let accepted = proxy.accepted();
        proxy.insert_reply(b"+STRAY\r\n");
        // The reply to the first request arrives when the second one waits for its own.
        let [first, second] = [&free, &held].map(|lock| {
            let (backend, request) = (backend.clone(), request(lock, &hold("a:1"), mode));
            tokio::spawn(async move { backend.acquire(&request).await })
        });
        for task in [first, second] {
            let error = task.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Protocol, "{error}");
            assert!(error.is_outcome_unknown(), "{error}");
        }
        assert!(refused_for(&backend, &request(&held, &hold("a:2"), mode)).await.is_some());
        assert_eq!(proxy.accepted(), accepted + 1, "on a new connection");
        until("the undoing", || async { !state(&other, &free).await.is_held() }).await;
    }
}

#[tokio::test]
async fn a_stray_reply_grants_nothing_to_those_in_a_batch() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let other = connect(&server).await;
    for number in 0..8 {
        let held = request(&format!("held:{number}"), &hold("other:1"), Mode::Exclusive);
        enters(&other, &held).await;
    }
    // The scripts are loaded.
    for _ in 0..2 {
        let tasks: Vec<_> = (0..4).map(|number| spawn(&backend, "warm", number)).collect();
        for task in tasks {
            let (request, outcome) = task.await.unwrap();
            outcome.unwrap();
            releases(&backend, &request).await;
        }
    }
    proxy.insert_reply(b"+STRAY\r\n");
    let tasks: Vec<_> = (0..8)
        .flat_map(|number| [spawn(&backend, "free", number), spawn(&backend, "held", number)])
        .collect();
    for task in tasks {
        let (request, outcome) = task.await.unwrap();
        match outcome {
            Ok(AcquireOutcome::Acquired { .. }) => {
                assert!(!request.name.as_str().starts_with("held"), "{request:?}");
            }
            Ok(outcome) => assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}"),
            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
        }
    }
}

type Acquiring =
    tokio::task::JoinHandle<(AcquireRequest, Result<AcquireOutcome, lockcore::BackendError>)>;

fn spawn(backend: &RedisBackend, lock: &str, number: usize) -> Acquiring {
    let request =
        request(&format!("{lock}:{number}"), &hold(&format!("a:{number}")), Mode::Exclusive);
    let backend = backend.clone();
    tokio::spawn(async move {
        let outcome = backend.acquire(&request).await;
        (request, outcome)
    })
}

/// Each reply goes to the next request, and the server has sent all of them at once.
#[tokio::test]
async fn a_stray_reply_grants_nothing_to_those_in_small_batches() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let other = connect(&server).await;
    enters(&other, &exclusive("held", 9)).await;
    for round in 0..4 {
        let (first, ended) = (exclusive("first", 1), exclusive("ended", 1));
        // The reply contains only the token if the name has had one.
        let free = exclusive(&format!("free:{}", round / 2), 1);
        let last = exclusive(&format!("last:{round}"), 1);
        enters(&backend, &first).await;
        enters(&backend, &ended).await;
        // A reply that fits the release, which is sent alone.
        proxy.insert_reply(b":1\r\n");
        server.freeze();
        let releasing = [&first, &ended].map(|request| end(&backend, request));
        let batch = [&free, &exclusive("held", 1), &last].map(|request| begin(&backend, request));
        // In a separate batch, because the lock is in the first one.
        let again = begin(&backend, &exclusive(last.name.as_str(), 2));
        for _ in 0..20 {
            yield_now().await;
        }
        server.thaw();
        let [free_task, held, last_task] = batch;
        for task in [held, again] {
            match outcome(task).await {
                Ok(outcome) => {
                    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
                }
                Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
            }
        }
        for task in [free_task, last_task] {
            outcome(task).await.unwrap_err();
        }
        for task in releasing {
            drop(outcome(task).await);
        }
        for request in [&free, &last] {
            let lock = request.name.as_str();
            until("the undoing", || async { !state(&other, lock).await.is_held() }).await;
        }
        for request in [&first, &ended] {
            releases(&backend, request).await;
        }
    }
}

#[tokio::test]
async fn a_stray_reply_renews_nothing_and_the_next_connection_does() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let mine = request("mine", &hold("a:1"), Mode::Exclusive);
    enters(&backend, &mine).await;
    let renewal = [RenewRequest::new(name("mine"), mine.hold.clone(), LEASE)];
    backend.renew(&renewal).await.unwrap();
    let accepted = proxy.accepted();
    // The reply to a renewal of two holds.
    proxy.insert_reply(b"*2\r\n:1\r\n:1\r\n");
    let outcomes = backend.renew(&renewal).await.unwrap();
    assert!(format!("{outcomes:?}").contains("Protocol"), "{outcomes:?}");
    let outcomes = backend.renew(&renewal).await.unwrap();
    assert_eq!(format!("{outcomes:?}"), "[Renewed]");
    assert_eq!(proxy.accepted(), accepted + 1);
}
