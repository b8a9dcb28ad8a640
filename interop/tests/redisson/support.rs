//! What the suites share.

use std::{future::Future, sync::OnceLock, time::Duration};

use lockcore::{Locks, ReentrantLock};
use lockcore_interop::{Java, Kind, Redisson};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

/// Longer than anything here takes on a busy machine: a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The lease of the clients of both sides: short, since some tests wait for its end.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// A redis-server, and a client of each side on it.
pub(crate) struct Both {
    pub(crate) redisson: Redisson,
    pub(crate) locks: Locks,
    pub(crate) server: RedisServer,
}

impl Both {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start();
        let redisson = redisson(&server).await;
        Self { redisson, locks: locks(&server).await, server }
    }

    /// Closes the clients, while there still is a server.
    pub(crate) async fn close(self) {
        self.locks.close().await.unwrap();
        self.redisson.close().await.unwrap();
    }
}

/// The Java process that all tests share but those that end one. It ends with this process, when its input does.
pub(crate) fn java() -> Java {
    static JAVA: OnceLock<Java> = OnceLock::new();
    JAVA.get_or_init(|| Java::start().unwrap_or_else(|error| panic!("{error}"))).clone()
}

pub(crate) async fn redisson(server: &RedisServer) -> Redisson {
    java().connect(&server.url(), LEASE).await.unwrap()
}

pub(crate) async fn locks(server: &RedisServer) -> Locks {
    let backend = RedisBackend::connect(server.url()).await.unwrap();
    Locks::builder(backend).lease(LEASE).build().unwrap()
}

/// Waits for what must happen soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// Resolves when `count` clients listen for the lock's release. The server has no event for that, so it is asked until it is so.
pub(crate) async fn listened_to(server: &RedisServer, name: &str, count: u32) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    soon("the subscriptions", async {
        while server.query::<(String, u32)>(&["PUBSUB", "NUMSUB", &channel]).await.1 < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Resolves when `count` wait in the queue of a fair lock.
pub(crate) async fn queued(server: &RedisServer, name: &str, count: u32) {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    soon("the queue", async {
        while server.query::<u32>(&["LLEN", &queue]).await < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Resolves when `count` wait in the queue of a fair lock, and as many listen: each on a channel of its own.
pub(crate) async fn queued_and_listening(server: &RedisServer, name: &str, count: u32) {
    queued(server, name, count).await;
    let channels = format!("redisson_lock__channel:{{{name}}}:*");
    soon("the subscriptions", async {
        while server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", &channels]).await.len() < count as usize {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Our lock of a kind.
pub(crate) fn of_kind(locks: &Locks, kind: Kind, name: &str) -> ReentrantLock {
    match kind {
        Kind::Fair => locks.fair_lock(name),
        _ => locks.lock(name),
    }
}

/// The holders of a lock, as lockcore sees them: owner and count.
pub(crate) async fn holders(lock: &ReentrantLock) -> Vec<(String, u32)> {
    let state = lock.state().await.unwrap();
    state.holders().iter().map(|holder| (holder.owner().to_owned(), holder.hold_count())).collect()
}

/// The median and the longest of some spans.
pub(crate) fn median_and_longest(mut spans: Vec<Duration>) -> (Duration, Duration) {
    spans.sort();
    (spans[spans.len() / 2], spans[spans.len() - 1])
}

/// Milliseconds, as the table has them.
pub(crate) fn ms(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}
