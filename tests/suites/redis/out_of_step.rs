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
    let held = request("held", &hold("other:1"), Mode::Exclusive);
    enters(&other, &held).await;
    for (round, mode) in [Mode::Exclusive, Mode::Fair, Mode::Write].into_iter().enumerate() {
        let free = request(&format!("free:{round}"), &hold(&format!("a:{round}")), mode);
        // The script is known, so that it is the call that goes wrong.
        enters(&backend, &free).await;
        releases(&backend, &free).await;
        proxy.insert_reply(b"+STRAY\r\n");
        let error = backend.acquire(&free).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Protocol, "{error}");
        assert!(error.is_outcome_unknown(), "{error}");
        let refused = request("held", &hold(&format!("b:{round}")), Mode::Exclusive);
        assert!(refused_for(&backend, &refused).await.is_some(), "held by somebody else");
        until("the undoing", || async { !state(&other, &format!("free:{round}")).await.is_held() })
            .await;
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
