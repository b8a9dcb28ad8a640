//! Clusters with authentication: rights, and tokens that expire.

use etcd_client::{Client, ConnectOptions, Permission, PermissionType};
use lockcore::{
    BackendErrorKind, Mode,
    backend::{Backend, ReleaseOutcome, SubscribeRequest},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;

use crate::support::{Gate, PASSWORD, enters, fails, name, request, soon, until};

/// A cluster with authentication: `root`, and `shop` without any rights.
pub(crate) async fn with_users() -> (EtcdCluster, Client) {
    with_users_on(&[]).await
}

async fn with_users_on(options: &[&str]) -> (EtcdCluster, Client) {
    // The lowest cost that etcd accepts, because passwords are not under test.
    let cluster = EtcdCluster::start_with(1, &[&["--bcrypt-cost", "4"], options].concat());
    let mut client = cluster.client().await;
    for user in ["root", "shop"] {
        client.user_add(user, PASSWORD, None).await.unwrap();
    }
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("locks").await.unwrap();
    client.user_grant_role("shop", "locks").await.unwrap();
    client.auth_enable().await.unwrap();
    let root = client_of(&cluster, "root").await;
    (cluster, root)
}

/// A client that never requests a new token by itself.
async fn client_of(cluster: &EtcdCluster, user: &str) -> Client {
    let options = ConnectOptions::new().with_user(user, PASSWORD);
    Client::connect(cluster.addresses(), Some(options)).await.unwrap()
}

/// A cluster with signed tokens that are valid for `lasting`, where `shop` may use the locks.
async fn with_signed_tokens(lasting: &str) -> (EtcdCluster, Client) {
    let key = format!("{}/etcd-token-{lasting}.key", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&key, "a key that signs tokens").unwrap();
    let token = format!("jwt,priv-key={key},sign-method=HS256,ttl={lasting}");
    let (cluster, mut root) = with_users_on(&["--auth-token", &token]).await;
    let all = Permission::new(PermissionType::Readwrite, "lockcore/").with_prefix();
    // On a busy machine, even a new token may expire before it is used.
    soon("the right to be granted", async {
        while root.role_grant_permission("locks", all.clone()).await.is_err() {
            root.refresh_token().await.unwrap();
        }
    })
    .await;
    (cluster, root)
}

fn shop(cluster: &EtcdCluster) -> lockcore_etcd::EtcdBackendBuilder {
    EtcdBackend::builder(cluster.addresses()).user("shop", PASSWORD)
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
    let builder = || shop(&cluster).prefix("shop/locks");
    let error = fails(builder()).await;
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("below the prefix"), "{error}");

    let all = Permission::new(PermissionType::Readwrite, "shop/locks/").with_prefix();
    root.role_grant_permission("locks", all).await.unwrap();
    let backend = builder().connect().await.unwrap();
    assert!(!format!("{backend:?}").contains(PASSWORD), "{backend:?}");
    let held = request("order", "a").mode(Mode::Fair);
    enters(&backend, &held).await;
    let wait = SubscribeRequest::new(name("order"), held.hold.clone());
    let mut wakeups = backend.subscribe(&wait).await.unwrap();
    backend.release(&held.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
}

/// The next subscription reports a right that is revoked while a client listens.
#[tokio::test]
async fn a_right_that_was_taken_away_is_named_to_those_who_wait() {
    let (cluster, mut root) = with_users().await;
    let all = || Permission::new(PermissionType::Readwrite, "lockcore/").with_prefix();
    root.role_grant_permission("locks", all()).await.unwrap();
    let backend = shop(&cluster).connect().await.unwrap();
    let wait = |lock| SubscribeRequest::new(name(lock), request(lock, "a").hold);
    let _wakeups = backend.subscribe(&wait("order")).await.unwrap();
    let range = etcd_client::RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("locks", "lockcore/", Some(range)).await.unwrap();
    let error = soon("an answer", backend.subscribe(&wait("other"))).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(!error.is_outcome_unknown());
}

/// A signed token names the revision of the users that it was issued for.
#[tokio::test]
async fn a_token_that_is_out_of_date_is_replaced() {
    let (cluster, mut root) = with_signed_tokens("10m").await;
    let backend = shop(&cluster).connect().await.unwrap();
    let held = request("order", "a");
    enters(&backend, &held).await;
    root.refresh_token().await.unwrap();
    root.user_add("another", PASSWORD, None).await.unwrap();
    enters(&backend, &request("other", "b")).await;
    root.refresh_token().await.unwrap();
    root.user_delete("another").await.unwrap();
    let released = backend.release(&held.release()).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
}

/// The first question to a member goes out with the token that was given when it was connected to.
#[tokio::test]
async fn a_member_that_refused_the_first_question_is_asked_with_another_token() {
    let (cluster, mut root) = with_signed_tokens("10m").await;
    let address = cluster.addresses()[0].clone();
    let gate = Gate::start(&address).await;
    let builder = EtcdBackend::builder([gate.address(), address]).user("shop", PASSWORD);
    let backend = builder.connect().await.unwrap();
    root.refresh_token().await.unwrap();
    let range = etcd_client::RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("locks", "lockcore/", Some(range)).await.unwrap();
    drop(gate);
    let order = name("order");
    until("the refusal at the other address", async || {
        let refused = backend.inspect(&order).await;
        refused.is_err_and(|error| error.kind() == BackendErrorKind::Permission)
    })
    .await;
    root.refresh_token().await.unwrap();
    let all = Permission::new(PermissionType::Readwrite, "lockcore/").with_prefix();
    root.role_grant_permission("locks", all).await.unwrap();
    backend.inspect(&order).await.unwrap();
}

/// The stream of wake-ups was opened with a token that is invalid for another watch.
#[tokio::test]
async fn a_token_that_has_expired_is_replaced_for_requests_and_wakeups() {
    let (cluster, _root) = with_signed_tokens("5s").await;
    let backend = shop(&cluster).connect().await.unwrap();
    let (held, other) = (request("order", "a"), request("other", "b"));
    enters(&backend, &held).await;
    let wait = |lock| SubscribeRequest::new(name(lock), request(lock, "waiter").hold);
    let mut first = backend.subscribe(&wait("order")).await.unwrap();
    // Its token is younger than that of the stream.
    let witness = client_of(&cluster, "shop").await;
    until("the end of the token", async || {
        witness.kv_client().get("lockcore/", None).await.is_err()
    })
    .await;
    let mut second = backend.subscribe(&wait("other")).await.unwrap();
    enters(&backend, &other).await;
    backend.release(&held.release()).await.unwrap();
    backend.release(&other.release()).await.unwrap();
    soon("a wake-up for the first", first.woken()).await;
    soon("a wake-up for the second", second.woken()).await;
}
