//! Endpoints that do not belong together: members of another cluster, and servers that refuse.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Severity,
    backend::{AcquireOutcome, Backend, SubscribeRequest},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;
use tokio::time::timeout;

use crate::{
    shown::shown,
    support::{Gate, connect, enters, fails, is_held, keys, name, request},
    users::with_users,
};

/// One dropped request makes a client turn to the next endpoint.
async fn is_passed_over(backend: &EtcdBackend) {
    let order = name("order");
    let given_up = timeout(Duration::from_millis(300), backend.inspect(&order)).await;
    assert!(given_up.is_err(), "{given_up:?}");
}

#[tokio::test]
async fn endpoints_with_and_without_tls_are_refused() {
    for endpoints in [["https://a:2379", "b:2379"], ["http://a:2379", "https://b:2379"]] {
        let error = fails(EtcdBackend::builder(endpoints)).await;
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        let text = error.to_string();
        assert!(text.contains("`https://`") && text.contains("b:2379"), "{text}");
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_the_client_does_not_keep_it_from_the_others() {
    let mut cluster = EtcdCluster::start(1);
    let (other, _root) = with_users().await;
    let backend =
        EtcdBackend::connect([cluster.addresses(), other.addresses()].concat()).await.unwrap();
    cluster.freeze(0);
    is_passed_over(&backend).await;
    cluster.thaw(0);
    enters(&backend, &request("order", "a")).await;
    assert!(is_held(&connect(&cluster).await, "order").await);
}

/// The refusal says more than that the other endpoint does not answer.
#[tokio::test]
async fn if_none_answers_the_endpoint_that_refuses_is_named() {
    let mut cluster = EtcdCluster::start(1);
    let (other, _root) = with_users().await;
    let endpoints = [cluster.addresses(), other.addresses()].concat();
    let backend = EtcdBackend::connect(endpoints.clone()).await.unwrap();
    cluster.kill(0);
    for _ in &endpoints {
        let error = backend.inspect(&name("order")).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
        assert!(endpoints.iter().all(|endpoint| error.to_string().contains(endpoint)), "{error}");
    }
}

#[tokio::test]
async fn no_lock_is_taken_in_another_cluster() {
    let (mut cluster, other) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let endpoints = [cluster.addresses(), other.addresses()].concat();
    let backend = EtcdBackend::connect(endpoints.clone()).await.unwrap();
    enters(&backend, &request("order", "a")).await;
    cluster.kill(0);
    // The first request may discover that the connection is gone.
    let _ = backend.inspect(&name("order")).await;
    for _ in 0..3 {
        let error = backend.acquire(&request("order", "b")).await.unwrap_err();
        assert!(error.is_retryable(), "the first one may come back: {error}");
        assert!(!error.is_outcome_unknown(), "{error}");
        assert!(endpoints.iter().all(|endpoint| error.to_string().contains(endpoint)), "{error}");
    }
    assert!(keys(&other.client().await).await.is_empty(), "it was asked");
    cluster.restart(0);
    let outcome = backend.acquire(&request("order", "b")).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
}

/// It is of no use, but the first one may come back while the waiter waits.
#[tokio::test]
async fn an_endpoint_of_another_cluster_does_not_end_the_wait_for_a_wake_up() {
    let (mut cluster, other) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let endpoints = [cluster.addresses(), other.addresses()].concat();
    let backend = EtcdBackend::connect(endpoints).await.unwrap();
    enters(&backend, &request("order", "a")).await;
    cluster.kill(0);
    let waiter = request("order", "b");
    for _ in 0..3 {
        let error = backend
            .subscribe(&SubscribeRequest::new(waiter.name.clone(), waiter.hold.clone()))
            .await;
        let error = error.map(|_| ()).unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}

/// No other endpoint can come to be of use again.
#[tokio::test]
async fn an_endpoint_of_another_cluster_is_named_if_all_are_of_others() {
    let (first, second) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let addresses = [&first, &second].map(|cluster| cluster.addresses()[0].clone());
    let gate = Gate::start(&addresses[0]).await;
    let endpoints = [gate.address(), addresses[1].clone()];
    let backend = EtcdBackend::connect(endpoints.clone()).await.unwrap();
    enters(&backend, &request("order", "a")).await;
    gate.leads_to(&addresses[1]);
    // The first request may discover that the connection is gone.
    let _ = backend.inspect(&name("order")).await;
    for _ in &endpoints {
        let error = backend.acquire(&request("order", "b")).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(!error.is_outcome_unknown(), "{error}");
        assert!(error.to_string().contains("belongs to another cluster than"), "{error}");
        assert!(endpoints.iter().all(|endpoint| error.to_string().contains(endpoint)), "{error}");
        assert!(shown(&error).contains("backup"), "{error}");
    }
    let waiter = request("order", "b");
    let listen = SubscribeRequest::new(waiter.name, waiter.hold);
    let error = backend.subscribe(&listen).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("belongs to another cluster than"), "{error}");
}

/// The server behind an address is replaced while the client runs.
#[tokio::test]
async fn a_cluster_that_takes_the_place_of_another_one_is_noticed() {
    let (first, second) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let addresses = [&first, &second].map(|cluster| cluster.addresses()[0].clone());
    let gate = Gate::start(&addresses[0]).await;
    let backend = EtcdBackend::connect([gate.address()]).await.unwrap();
    enters(&backend, &request("order", "a")).await;
    gate.leads_to(&addresses[1]);
    // The first request may discover that the connection is gone.
    let _ = backend.inspect(&name("order")).await;
    let error = backend.acquire(&request("order", "b")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
    assert!(shown(&error).contains("start this process again"), "{error}");
    assert!(keys(&second.client().await).await.is_empty());
}

#[tokio::test]
async fn a_diagnosis_finds_two_clusters() {
    let (one, other) = (EtcdCluster::start(1), EtcdCluster::start(1));
    let endpoints = [one.addresses(), other.addresses()].concat();
    let found = EtcdBackend::builder(endpoints.clone()).diagnose().await.unwrap();
    let cluster = found.findings().iter().find(|finding| finding.id() == "cluster").unwrap();
    assert_eq!(cluster.severity(), Severity::Problem);
    assert!(endpoints.iter().all(|endpoint| cluster.seen().contains(endpoint)), "{cluster}");
    let found = EtcdBackend::builder(one.addresses()).diagnose().await.unwrap();
    assert!(found.findings().iter().all(|finding| finding.id() != "cluster"), "{found:?}");
}
