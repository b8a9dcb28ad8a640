//! What the suites share.

use std::{future::Future, sync::OnceLock, time::Duration};

use lockcore::{Lock, LockGuard, Locks};
use lockcore_interop::{Java, Kind, Redisson};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

/// Longer than anything here takes on a busy machine: a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The lease of the clients of both sides: short, since some tests wait for its end.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// What a busy machine may add.
pub(crate) const SLACK: Duration = Duration::from_millis(250);

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

/// Resolves when it is so. The server has no events for such things, so it is asked until then.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Resolves when `count` clients listen for releases. Waiters for a fair lock have channels of their own: there, `count` of them wait and listen.
pub(crate) async fn listened_to(server: &RedisServer, kind: Kind, name: &str, count: u32) {
    let channel = match kind {
        Kind::Fair => return queued_and_listening(server, name, count).await,
        Kind::Read | Kind::Write => format!("redisson_rwlock:{{{name}}}"),
        Kind::Permits(_) | Kind::Plain(_) => format!("redisson_sc:{{{name}}}"),
        _ => format!("redisson_lock__channel:{{{name}}}"),
    };
    subscribed(server, &channel, count).await;
}

/// Resolves when `count` clients have subscribed to the channel.
pub(crate) async fn subscribed(server: &RedisServer, channel: &str, count: u32) {
    until("the subscriptions", async || {
        server.query::<(String, u32)>(&["PUBSUB", "NUMSUB", channel]).await.1 >= count
    })
    .await;
}

/// Resolves when `count` wait in the queue of a fair lock.
pub(crate) async fn queued(server: &RedisServer, name: &str, count: u32) {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    until("the queue", async || server.query::<u32>(&["LLEN", &queue]).await >= count).await;
}

async fn queued_and_listening(server: &RedisServer, name: &str, count: u32) {
    queued(server, name, count).await;
    let channels = format!("redisson_lock__channel:{{{name}}}:*");
    until("the subscriptions", async || {
        server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", &channels]).await.len()
            >= count as usize
    })
    .await;
}

/// The holders of a lock, as lockcore sees them: owner and count.
pub(crate) async fn holders(lock: &Lock) -> Vec<(String, u32)> {
    let state = lock.state().await.unwrap();
    state.holders().iter().map(|holder| (holder.owner().to_owned(), holder.hold_count())).collect()
}

/// What [`holders`] says when this is the only one, and has entered once.
pub(crate) fn alone(guard: &LockGuard) -> [(String, u32); 1] {
    [(guard.wire_owner().to_owned(), 1)]
}

/// Milliseconds, as the table has them.
pub(crate) fn ms(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}
