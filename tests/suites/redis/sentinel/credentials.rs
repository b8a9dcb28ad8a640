//! Passwords that change while locks are held.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::{Credentials, CredentialsProvider, RedisBackend};
use lockcore_testkit::RedisServer;

use crate::{
    everything::with_sources,
    log::Log,
    support::{listened_to, soon},
};

/// The current password.
#[derive(Clone)]
struct Vault(Arc<Mutex<Result<String, String>>>);

impl Vault {
    fn new(password: &str) -> Self {
        Self(Arc::new(Mutex::new(Ok(password.to_owned()))))
    }

    fn set(&self, password: Result<&str, &str>) {
        *self.0.lock().unwrap() = password.map(str::to_owned).map_err(str::to_owned);
    }

    fn provider(&self) -> impl CredentialsProvider + use<> {
        let vault = self.clone();
        move || {
            let password = vault.0.lock().unwrap().clone();
            async move { password.map(Credentials::password) }
        }
    }
}

#[tokio::test]
async fn a_changed_password_is_asked_for_and_no_lock_is_lost() {
    // Everything in this test runs on one thread.
    let (log, _logging) = Log::start();
    let server = RedisServer::start_with(&["--requirepass", "canary-one"]);
    let client = redis::Client::open(format!("redis://:canary-one@{}", server.address())).unwrap();
    let mut operator = client.get_multiplexed_async_connection().await.unwrap();
    let vault = Vault::new("canary-one");
    let builder = || RedisBackend::builder().url(server.url()).credentials(vault.provider());
    let mut seen = format!("{:?}", builder());
    let backend = builder().connect().await.unwrap();
    let locks = Locks::builder(backend.clone()).lease(Duration::from_secs(2)).build().unwrap();
    let held = locks.lock("held").acquire().await.unwrap();
    let other = Locks::new(builder().connect().await.unwrap());
    let waiting = tokio::spawn({
        let lock = other.lock("held");
        async move { lock.acquire().await }
    });
    // Through the operator: the kit would log in with a password that is no longer valid.
    let channel = "redisson_lock__channel:{held}";
    soon("a subscription", async {
        loop {
            let listed = redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut operator).await;
            let listed: Vec<String> = listed.unwrap();
            if listed.iter().any(|listed| listed == channel) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    for (now, then) in [("canary-one", "canary-two"), ("canary-two", "canary-three")] {
        let mut rotate = redis::pipe();
        rotate.cmd("CONFIG").arg("SET").arg("requirepass").arg(then).ignore();
        rotate.cmd("CLIENT").arg("KILL").arg("SKIPME").arg("yes").ignore();
        assert!(vault.0.lock().unwrap().as_deref() == Ok(now));
        vault.set(Ok(then));
        rotate.query_async::<()>(&mut operator).await.unwrap();
        let start = Instant::now();
        let guard = soon("a lock", locks.lock("new").acquire()).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        guard.release().await.unwrap();
        // Longer than the lease.
        let lost = tokio::time::timeout(Duration::from_millis(2500), held.lost()).await;
        assert!(lost.is_err(), "renewed");
    }
    held.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();

    vault.set(Err("the vault is sealed"));
    let error = builder().connect().await.unwrap_err();
    seen.push_str(&with_sources(&error));
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.source().is_some());
    assert!(seen.contains("the vault is sealed") && seen.contains(&server.address()), "{seen}");
    vault.set(Ok("canary-wrong"));
    let error = builder().connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
    seen.push_str(&with_sources(&error));
    seen.push_str(&format!("{backend:?} {locks:?} {:?}", Credentials::new("me", "canary")));
    assert!(!seen.contains("canary"), "{seen}");
    assert!(!log.text().contains("canary"), "{}", log.text());
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_not_waited_for_any_longer() {
    let server = RedisServer::start();
    let never = std::future::pending::<Result<Credentials, std::io::Error>>;
    let builder = RedisBackend::builder().url(server.url()).credentials(never);
    let connecting = builder.connect_timeout(Duration::from_millis(100)).connect();
    let error = soon("the error", connecting).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
}

#[tokio::test]
async fn a_provider_that_panics_has_failed() {
    async fn panics() -> Result<Credentials, std::io::Error> {
        panic!("the provider of a test")
    }
    let server = RedisServer::start();
    let connecting = RedisBackend::builder().url(server.url()).credentials(panics).connect();
    let error = soon("the error", connecting).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && with_sources(&error).contains("panicked"), "{error}");
}

#[tokio::test]
async fn nothing_is_asked_of_a_provider_while_connections_live() {
    let server = RedisServer::start();
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let provider = move || {
        *count.lock().unwrap() += 1;
        // The default user has no password, and accepts any.
        async { Ok::<_, std::io::Error>(Credentials::new("default", "any")) }
    };
    let builder = RedisBackend::builder().url(server.url()).credentials(provider);
    let locks = Locks::new(builder.connect().await.unwrap());
    let _held = locks.lock("held").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("held");
        async move { lock.acquire().await }
    });
    listened_to(&server, "held").await;
    for _ in 0..10 {
        locks.lock("any").acquire().await.unwrap().release().await.unwrap();
    }
    let connections = "one for commands, one for messages, and one that tried messages at first";
    assert_eq!(*asked.lock().unwrap(), 3, "{connections}");
    waiting.abort();
}
