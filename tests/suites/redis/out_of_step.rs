//! Replies that belong to no request.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireOutcome, Backend, RenewRequest},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Proxy, RedisServer};

use crate::{
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
        // The script is known, so that it is the call that goes wrong.
        enters(&other, &request(&held, &hold("other:1"), mode)).await;
        let accepted = proxy.accepted();
        proxy.insert_reply(b"+STRAY\r\n");
        // The reply to the first request comes when the second one waits for its own.
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
    // The scripts are known.
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

type Acquiring = tokio::task::JoinHandle<(
    lockcore::backend::AcquireRequest,
    Result<AcquireOutcome, lockcore::BackendError>,
)>;

fn spawn(backend: &RedisBackend, lock: &str, number: usize) -> Acquiring {
    let request =
        request(&format!("{lock}:{number}"), &hold(&format!("a:{number}")), Mode::Exclusive);
    let backend = backend.clone();
    tokio::spawn(async move {
        let outcome = backend.acquire(&request).await;
        (request, outcome)
    })
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
