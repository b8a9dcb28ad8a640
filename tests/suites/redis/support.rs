//! Helpers shared by the suites.

use std::time::Duration;

use lockcore::{Locks, LocksBuilder};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::RedisServer;

pub(crate) use crate::waiting::{LONG, soon, until};

pub(crate) async fn connect(server: &RedisServer) -> RedisBackend {
    RedisBackend::connect(server.url()).await.unwrap()
}

/// A server on which every acquisition runs a script.
pub(crate) fn server_for_scripts() -> RedisServer {
    RedisServer::start_with(&["--rename-command", "RESTORE", ""])
}

/// A separate client, as if in another process.
pub(crate) async fn locks(server: &RedisServer) -> Locks {
    Locks::new(connect(server).await)
}

/// A client without a record, whose commands can be counted.
pub(crate) async fn counted(server: &RedisServer) -> Locks {
    builder(server).await.description(None).build().unwrap()
}

pub(crate) async fn builder(server: &RedisServer) -> LocksBuilder {
    Locks::builder(connect(server).await)
}

/// A backend that soon notices a silent server.
pub(crate) fn impatient(server: &RedisServer) -> RedisBackendBuilder {
    RedisBackend::builder()
        .url(server.url())
        .response_timeout(Duration::from_millis(300))
        .connect_timeout(Duration::from_millis(500))
}

/// Makes the server load the scripts, which the first call of each does, so that commands can be
/// counted.
pub(crate) async fn load_scripts(locks: &Locks) {
    let guard = locks.lock("first").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Completes when there is a subscriber to the lock's release.
pub(crate) async fn listened_to(server: &RedisServer, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    until("a subscription", || async { server.channels().await.contains(&channel) }).await;
}

/// Shows that no lock has left anything on the server, except tokens that expire by themselves.
pub(crate) async fn assert_nothing_left(server: &RedisServer) {
    until("the last release", || async {
        let keys: Vec<String> = server.query(&["KEYS", "*"]).await;
        // Tokens stay for a while, and so do the records of clients that were not closed.
        let lives_on = ["redisson_lock_token:", "lockcore_client:", "lockcore_clients:"];
        keys.iter().all(|key| lives_on.iter().any(|kind| key.starts_with(kind)))
    })
    .await;
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
    until("the last unsubscription", || async { server.channels().await.is_empty() }).await;
}

/// The number of connections that a server has accepted, according to its `INFO stats`.
pub(crate) fn connections_received(stats: &str) -> u32 {
    let line = stats.lines().find(|line| line.starts_with("total_connections_received"));
    line.unwrap().split(':').nth(1).unwrap().parse().unwrap()
}
