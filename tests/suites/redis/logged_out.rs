//! Open connections that are not logged in any more: new ones take their place.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use lockcore::{BackendErrorKind, Locks, backend::Backend};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    batches::exclusive,
    command_proxy::{CommandProxy, Fate},
    steps::enters,
    support::{listened_to, locks, soon, until},
};

const REFUSAL: &str = "NOAUTH Authentication required.";

/// The connections of a client, by number.
#[derive(Default)]
struct Seen {
    open: HashSet<u64>,
    /// Those with subscriptions to the ends of locks.
    listening: HashSet<u64>,
    logged_out: HashSet<u64>,
    /// The connections that were told so.
    refused: HashSet<u64>,
}

/// A server behind a proxy that forgets which connections are logged in.
struct Forgetful {
    server: RedisServer,
    proxy: CommandProxy,
    seen: Arc<Mutex<Seen>>,
}

impl Forgetful {
    async fn start() -> Self {
        let server = RedisServer::start();
        let seen = Arc::<Mutex<Seen>>::default();
        let noted = seen.clone();
        let proxy = CommandProxy::start_numbered(&server, move |connection, words| {
            let mut seen = noted.lock().unwrap();
            if seen.logged_out.contains(&connection) {
                seen.refused.insert(connection);
                return Fate::Refuse(REFUSAL);
            }
            seen.open.insert(connection);
            if words[0] == "SUBSCRIBE" && words[1].starts_with("redisson_lock__channel:") {
                seen.listening.insert(connection);
            }
            Fate::Pass
        })
        .await;
        Self { server, proxy, seen }
    }

    async fn connect(&self) -> RedisBackend {
        RedisBackend::connect(self.proxy.url()).await.unwrap()
    }

    /// Logs all open connections out.
    fn log_out(&self) {
        let seen = &mut *self.seen.lock().unwrap();
        seen.logged_out.extend(&seen.open);
    }

    /// Logs the connections out that listen.
    fn log_out_listeners(&self) {
        let seen = &mut *self.seen.lock().unwrap();
        seen.logged_out.extend(&seen.listening);
    }

    fn refused(&self) -> usize {
        self.seen.lock().unwrap().refused.len()
    }

    fn listening(&self) -> usize {
        self.seen.lock().unwrap().listening.len()
    }
}

#[tokio::test]
async fn a_request_goes_through_after_the_connection_was_logged_out() {
    let forgetful = Forgetful::start().await;
    let backend = forgetful.connect().await;
    enters(&backend, &exclusive("first", 1)).await;
    forgetful.log_out();
    let error = backend.acquire(&exclusive("second", 1)).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains("not logged in any more"), "{error}");
    enters(&backend, &exclusive("second", 1)).await;
}

#[tokio::test]
async fn acquisitions_and_waiters_go_on_after_all_connections_were_logged_out() {
    let forgetful = Forgetful::start().await;
    let (holder, client) = (locks(&forgetful.server).await, Locks::new(forgetful.connect().await));
    let held = holder.lock("held").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("held").acquire());
    listened_to(&forgetful.server, "held").await;
    let own = client.lock("own").acquire().await.unwrap();
    forgetful.log_out();
    let other = soon("another lock", client.lock("other").acquire()).await.unwrap();
    assert!(forgetful.refused() > 0);
    held.release().await.unwrap();
    soon("the waiter", waiter).await.unwrap().unwrap().release().await.unwrap();
    for guard in [own, other] {
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn wake_ups_go_on_after_their_connection_was_logged_out() {
    let forgetful = Forgetful::start().await;
    let (holder, client) = (locks(&forgetful.server).await, Locks::new(forgetful.connect().await));
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for name in ["first", "second"] {
        held.push(holder.lock(name).acquire().await.unwrap());
        waiters.push(tokio::spawn(client.lock(name).acquire()));
        if name == "first" {
            listened_to(&forgetful.server, name).await;
            forgetful.log_out_listeners();
        }
    }
    listened_to(&forgetful.server, "second").await;
    assert_eq!((forgetful.refused(), forgetful.listening()), (1, 2));
    for (guard, waiter) in held.into_iter().zip(waiters) {
        guard.release().await.unwrap();
        soon("the waiter", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_for_wake_ups_that_was_logged_out_is_replaced() {
    let forgetful = Forgetful::start().await;
    let (holder, client) = (locks(&forgetful.server).await, Locks::new(forgetful.connect().await));
    let held = holder.lock("held").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("held").acquire());
    listened_to(&forgetful.server, "held").await;
    forgetful.log_out_listeners();
    // After the next ping.
    until("another subscription", || async { forgetful.listening() == 2 }).await;
    held.release().await.unwrap();
    soon("the waiter", waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// Unlike a connection that was logged in, this one would not be by opening another.
#[tokio::test]
async fn credentials_that_are_missing_are_not_taken_for_a_lost_login() {
    let server = RedisServer::start();
    let proxy = CommandProxy::start(&server, |words| match words[0].as_str() {
        "HELLO" | "CLIENT" => Fate::Pass,
        _ => Fate::Refuse(REFUSAL),
    })
    .await;
    let error = soon("an answer", RedisBackend::connect(proxy.url())).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
    assert!(!error.is_retryable() && !error.is_outcome_unknown(), "{error}");
}
