//! Releases whose reply or message is lost, and messages that nobody needs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::backend::{Backend, ReleaseOutcome};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Proxy, RedisServer};

use crate::{
    batches::{batch, begin, end, exclusive, is_granted, outcome},
    command_proxy::{CommandProxy, Fate},
    steps::{Messages, enters, exists, releases},
    support::{connect, until},
};

#[tokio::test]
async fn a_release_that_is_repeated_in_a_batch_sends_the_message_that_was_lost() {
    let server = RedisServer::start();
    let cuts = Arc::new(AtomicBool::new(false));
    let proxy = CommandProxy::start(&server, {
        let cuts = cuts.clone();
        move |parts| match parts[0].as_str() {
            "PUBLISH" if cuts.swap(false, Ordering::SeqCst) => Fate::Cut,
            _ => Fate::Pass,
        }
    })
    .await;
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let others: Vec<_> =
        (0..8).map(|number| exclusive(&format!("other:{number}"), number)).collect();
    batch(&backend, &others).await;
    let held = exclusive("held", 77);
    enters(&backend, &held).await;
    let mut messages = Messages::of(&server, "redisson_lock__channel:{held}").await;

    cuts.store(true, Ordering::SeqCst);
    let error = backend.release(&held.release()).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    until("the release", || async { !exists(&server, "held").await }).await;
    // The connection is new, so the requests are sent at the same time.
    enters(&backend, &others[0]).await;
    releases(&backend, &others[0]).await;
    let acquiring: Vec<_> = others.iter().map(|request| begin(&backend, request)).collect();
    let again = end(&backend, &held);
    assert_eq!(outcome(again).await.unwrap(), ReleaseOutcome::NotHeld);
    for task in acquiring {
        assert!(is_granted(task).await);
    }
    assert_eq!(messages.next().await, "0");
}

#[tokio::test]
async fn the_undoing_of_an_acquisition_that_was_refused_wakes_nobody() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let [held, refused] = [exclusive("held", 1), exclusive("held", 2)];
    enters(&connect(&server).await, &held).await;
    enters(&backend, &exclusive("first", 1)).await;
    let requests = || async { server.calls_of("evalsha").await + server.calls_of("hdel").await };
    let before = requests().await;
    let messages = server.calls_of("publish").await;
    proxy.delay_next_request(Duration::from_millis(50));
    let acquiring = tokio::time::timeout(Duration::from_millis(20), backend.acquire(&refused));
    assert!(acquiring.await.is_err(), "given up before the reply");
    until("the acquisition and its undoing", || async { requests().await == before + 2 }).await;
    // The next request is answered after everything that was sent with the undo.
    enters(&backend, &exclusive("next", 1)).await;
    assert_eq!(server.calls_of("publish").await, messages + 1, "the refusal, and no release");
}

#[tokio::test]
async fn the_proxy_can_lose_the_answer_to_a_release() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    let held = exclusive("held", 1);
    enters(&backend, &held).await;
    proxy.lose_answer(1);
    let error = backend.release(&held.release()).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    assert!(!exists(&server, "held").await);
}
