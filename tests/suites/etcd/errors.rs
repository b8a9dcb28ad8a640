//! Error messages: where, why, and what to do. Never a password.

use std::time::{Duration, Instant};

use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireOutcome, Backend, ReleaseOutcome, RenewOutcome, RenewRequest},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;

use crate::support::{PASSWORD, connect, enters, fails, is_held, name, request, soon};

/// For attempts that must fail.
const SHORT: Duration = Duration::from_millis(200);

/// For attempts that must succeed.
const LONGEST: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    let mut cluster = EtcdCluster::start(1);
    cluster.kill(0);
    let builder = EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD);
    // If an attempt took longer than that, the error would say so instead.
    let builder = builder.connect_timeout(10 * SHORT).response_timeout(10 * SHORT);
    let error = fails(builder).await;
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    let expected = format!("could not connect to etcd at {}: ", cluster.addresses()[0]);
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(error.is_retryable());
}

/// A cluster may be without a leader, or be starting, just when a client starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_being_started_is_waited_for() {
    let mut cluster = EtcdCluster::start(1);
    cluster.kill(0);
    let builder = EtcdBackend::builder(cluster.addresses()).connect_timeout(LONGEST);
    let connecting = tokio::spawn(builder.connect());
    cluster.restart(0);
    let backend = soon("a connection", connecting).await.unwrap().unwrap();
    enters(&backend, &request("order", "a")).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_waited_for_no_longer_than_allowed() {
    let mut cluster = EtcdCluster::start(1);
    cluster.freeze(0);
    let builder = EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD);
    let asked = Instant::now();
    let error = fails(builder.connect_timeout(SHORT).response_timeout(SHORT)).await;
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains(&cluster.addresses()[0]), "{error}");
}

#[tokio::test]
async fn one_good_address_is_enough() {
    let cluster = EtcdCluster::start(1);
    let mut gone = EtcdCluster::start(1);
    gone.kill(0);
    let addresses = [gone.addresses(), cluster.addresses()].concat();
    let backend = EtcdBackend::connect(addresses).await.unwrap();
    enters(&backend, &request("order", "a")).await;
}

#[tokio::test]
async fn an_endpoint_that_is_none_is_refused() {
    for (endpoint, said) in [
        (format!("http://shop:{PASSWORD}@etcd:2379"), "give user and password with `user`"),
        ("ftp://etcd:2379".to_owned(), "ftp://etcd:2379"),
        ("etcd:2379/keys".to_owned(), "host:port"),
        ("etcd:2379x".to_owned(), "host:port"),
        ("etcd:+2379".to_owned(), "host:port"),
        ("etcd:".to_owned(), "host:port"),
        ("etcd:65536".to_owned(), "host:port"),
        ("::1:2379".to_owned(), "host:port"),
        (String::new(), "host:port"),
    ] {
        let error = fails(EtcdBackend::builder([endpoint])).await;
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = fails(EtcdBackend::builder([""; 0])).await;
    assert!(error.to_string().contains("no endpoints"), "{error}");
}

#[tokio::test]
async fn settings_out_of_range_are_refused() {
    let builder = || EtcdBackend::builder(["127.0.0.1:2379"]);
    for builder in [
        builder().prefix(""),
        builder().prefix("x".repeat(257)),
        builder().prefix("a\0"),
        builder().response_timeout(Duration::ZERO),
        builder().connect_timeout(Duration::from_secs(61)),
    ] {
        let error = fails(builder).await;
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    }
}

#[tokio::test]
async fn prefixes_are_worlds_of_their_own() {
    let cluster = EtcdCluster::shared();
    let with = async |prefix: &str| {
        EtcdBackend::builder(cluster.addresses()).prefix(prefix).connect().await.unwrap()
    };
    let (one, two) = (with("worlds/one").await, with("worlds/two/").await);
    enters(&one, &request("order", "a")).await;
    enters(&two, &request("order", "b")).await;
    assert!(two.force_release(&name("order")).await.unwrap());
    assert!(is_held(&one, "order").await);
}

#[tokio::test]
async fn what_others_have_written_is_not_taken_for_a_hold() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    client.put("lockcore/order/lock/hold/x", "something else", None).await.unwrap();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    assert!(error.to_string().contains("lockcore/order/lock/hold/x"), "{error}");
    assert!(!error.is_outcome_unknown());
}

/// Written by somebody else, and never to end.
#[tokio::test]
async fn a_hold_without_a_lease_is_held_until_it_is_freed_by_force() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    client.put("lockcore/order/lock/hold/x", "exclusive 1 30 x", None).await.unwrap();
    for mode in [Mode::Exclusive, Mode::Fair] {
        let queue = (mode == Mode::Fair).then_some(LONGEST);
        let asked = request("order", "a").mode(mode).queue(queue);
        let outcome = backend.acquire(&asked).await.unwrap();
        assert_eq!(outcome, AcquireOutcome::Held { remaining: None });
        backend.release(&asked.release()).await.unwrap();
    }
    let state = backend.inspect(&name("order")).await.unwrap();
    assert!(state.is_held() && state.remaining().is_none(), "{state:?}");
    assert!(backend.force_release(&name("order")).await.unwrap());
    enters(&backend, &request("order", "a")).await;
}

/// It takes no new holds, but current ones can still be kept and released.
#[tokio::test]
async fn a_full_database_is_said_to_be_full() {
    let cluster = EtcdCluster::start_with(1, &["--quota-backend-bytes", "1048576"]);
    let before = connect(&cluster).await;
    let held = ["order", "parcel"].map(|lock| request(lock, "a"));
    for held in &held {
        enters(&before, held).await;
    }
    let mut client = cluster.client().await;
    while client.put("fill", "x".repeat(100_000), None).await.is_ok() {}
    let after = soon("a connection", EtcdBackend::connect(cluster.addresses())).await.unwrap();
    for (backend, held) in [before, after].iter().zip(&held) {
        let other = request("other", "b");
        let error = backend.acquire(&other).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
        // The request that fills the database is carried out, and answered in the same way.
        assert!(error.is_outcome_unknown(), "{error}");
        assert_eq!(backend.release(&other.undo()).await.unwrap(), ReleaseOutcome::NotHeld);
        for said in ["quota-backend-bytes", "defragment", "disarm"] {
            assert!(error.to_string().contains(said), "{error}");
        }
        let renewal = RenewRequest::new(held.name.clone(), held.hold.clone(), held.lease);
        let renewed = backend.renew(&[renewal]).await.unwrap();
        assert!(matches!(renewed[..], [RenewOutcome::Renewed]), "{renewed:?}");
        backend.release(&held.release()).await.unwrap();
        assert!(!is_held(backend, held.name.as_str()).await);
    }
}
