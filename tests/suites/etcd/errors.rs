//! What is said when something is wrong: where, why, and what to do. Never a password.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, PermissionType};
use lockcore::{BackendError, BackendErrorKind, Mode, backend::Backend};
use lockcore_etcd::{EtcdBackend, EtcdBackendBuilder};
use lockcore_testkit::EtcdCluster;

use crate::support::{connect, enters, is_held, name, request, soon};

const PASSWORD: &str = "hunter2-the-secret";

/// Everything that an error shows.
fn shown(error: &BackendError) -> String {
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        shown.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    shown
}

/// The attempt to connect fails, has no effect, and shows no password.
async fn fails(builder: EtcdBackendBuilder) -> BackendError {
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let error = soon("an answer", builder.connect()).await.unwrap_err();
    assert!(!shown(&error).contains(PASSWORD), "{}", shown(&error));
    assert!(!error.is_outcome_unknown(), "{error}");
    error
}

/// A cluster that wants to know its users: `root`, and `shop` without any right.
async fn with_users() -> (EtcdCluster, Client) {
    with_users_on(EtcdCluster::start(1)).await
}

async fn with_users_on(cluster: EtcdCluster) -> (EtcdCluster, Client) {
    let mut client = cluster.client().await;
    for user in ["root", "shop"] {
        client.user_add(user, PASSWORD, None).await.unwrap();
    }
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("locks").await.unwrap();
    client.user_grant_role("shop", "locks").await.unwrap();
    client.auth_enable().await.unwrap();
    let options = ConnectOptions::new().with_user("root", PASSWORD);
    let root = Client::connect(cluster.addresses(), Some(options)).await.unwrap();
    (cluster, root)
}

#[tokio::test]
async fn wrong_credentials_are_said_to_be_such() {
    let (cluster, _root) = with_users().await;
    let wrong = EtcdBackend::builder(cluster.addresses()).user("shop", "hunter2-the-secret-2");
    for builder in [wrong, EtcdBackend::builder(cluster.addresses())] {
        let error = fails(builder).await;
        assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
        let text = error.to_string();
        assert!(text.contains(&cluster.addresses()[0]) && text.contains("password"), "{text}");
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_can_be_granted() {
    let (cluster, mut root) = with_users().await;
    let builder = || {
        let builder = EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD);
        builder.prefix("shop/locks")
    };
    let error = fails(builder()).await;
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("below the prefix"), "{error}");

    let all = Permission::new(PermissionType::Readwrite, "shop/locks/").with_prefix();
    root.role_grant_permission("locks", all).await.unwrap();
    let backend = builder().connect().await.unwrap();
    assert!(!format!("{backend:?}").contains(PASSWORD), "{backend:?}");
    let held = request("order", "a").mode(Mode::Fair);
    enters(&backend, &held).await;
    let wait = lockcore::backend::SubscribeRequest::new(name("order"), held.hold.clone());
    let mut wakeups = backend.subscribe(&wait).await.unwrap();
    backend.release(&held.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
}

/// A signed token says for which state of the users it was given.
#[tokio::test]
async fn a_token_that_is_out_of_date_is_replaced() {
    let key = concat!(env!("CARGO_TARGET_TMPDIR"), "/etcd-token.key");
    std::fs::write(key, "a key that signs tokens").unwrap();
    let token = format!("jwt,priv-key={key},sign-method=HS256,ttl=10m");
    let cluster = EtcdCluster::start_with(1, &["--auth-token", &token]);
    let (cluster, mut root) = with_users_on(cluster).await;
    let all = Permission::new(PermissionType::Readwrite, "lockcore/").with_prefix();
    root.role_grant_permission("locks", all).await.unwrap();
    let builder = EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD);
    let backend = builder.connect().await.unwrap();
    let held = request("order", "a");
    enters(&backend, &held).await;
    root.refresh_token().await.unwrap();
    root.user_add("another", PASSWORD, None).await.unwrap();
    enters(&backend, &request("other", "b")).await;
    root.refresh_token().await.unwrap();
    root.user_delete("another").await.unwrap();
    let released = backend.release(&held.release()).await.unwrap();
    assert_eq!(released, lockcore::backend::ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    let mut cluster = EtcdCluster::start(1);
    cluster.kill(0);
    let error = fails(EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD)).await;
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.to_string().contains(&cluster.addresses()[0]), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_waited_for_no_longer_than_allowed() {
    let mut cluster = EtcdCluster::start(1);
    cluster.freeze(0);
    let builder = EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD);
    let error = fails(builder.response_timeout(Duration::from_millis(200))).await;
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

#[tokio::test]
async fn a_full_database_is_said_to_be_full() {
    let cluster = EtcdCluster::start_with(1, &["--quota-backend-bytes", "1048576"]);
    let backend = connect(&cluster).await;
    let held = request("order", "a");
    enters(&backend, &held).await;
    let mut client = cluster.client().await;
    while client.put("fill", "x".repeat(100_000), None).await.is_ok() {}
    let error = backend.acquire(&request("other", "b")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("quota-backend-bytes"), "{error}");
    // What is held can still be given back.
    backend.release(&held.release()).await.unwrap();
    assert!(!is_held(&backend, "order").await);
}
