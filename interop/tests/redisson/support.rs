//! Helpers shared by the suites.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use lockcore::{Lock, LockGuard, Locks};
use lockcore_interop::{Java, Kind, Redisson};

use crate::deployment::Deployment;

/// The limit of a wait, more than any takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The lease of the clients of both sides: short, since some tests wait for its end.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// The maximum extra delay of a busy machine. A waiter that nobody wakes enters at least a second
/// later than that: 2 s of a lease are left when it is renewed.
pub(crate) const SLACK: Duration = Duration::from_secs(1);

/// Servers, and a client of each side on them.
pub(crate) struct Both {
    pub(crate) redisson: Redisson,
    pub(crate) locks: Locks,
    pub(crate) servers: Arc<Deployment>,
}

impl Both {
    /// Starts both on a single private server.
    pub(crate) async fn start() -> Self {
        Self::on(&Deployment::server()).await
    }

    pub(crate) async fn on(servers: &Arc<Deployment>) -> Self {
        let (redisson, locks) = (servers.redisson(LEASE).await, servers.locks(LEASE).await);
        Self { redisson, locks, servers: servers.clone() }
    }

    /// Closes the clients, while there still is a server.
    pub(crate) async fn close(self) {
        self.locks.close().await.unwrap();
        self.redisson.close().await.unwrap();
    }
}

/// The Java process that all tests share, except those that end one. It ends with this process,
/// when its input does.
pub(crate) fn java() -> Java {
    static JAVA: OnceLock<Java> = OnceLock::new();
    JAVA.get_or_init(|| Java::start().unwrap_or_else(|error| panic!("{error}"))).clone()
}

/// Waits for an event that must come soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// Completes when `is_so` holds. The server has no events for that, so it is polled.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Completes when `count` clients listen for releases. Waiters for a fair lock have separate
/// channels: there, `count` of them wait and listen.
pub(crate) async fn listened_to(servers: &Deployment, kind: Kind, name: &str, count: u32) {
    let channel = match kind {
        Kind::Fair => return queued_and_listening(servers, name, count).await,
        Kind::Read | Kind::Write => "redisson_rwlock",
        Kind::Permits(_) | Kind::Plain(_) => "redisson_sc",
        _ => "redisson_lock__channel",
    };
    subscribed(servers, &derived(channel, name), count).await;
}

/// Completes when `count` clients have subscribed to the channel.
pub(crate) async fn subscribed(servers: &Deployment, channel: &str, count: u32) {
    until("the subscriptions", async || servers.subscribers(channel).await >= count).await;
}

/// Completes when `count` waiters are in the queue of a fair lock.
pub(crate) async fn queued(servers: &Deployment, name: &str, count: u32) {
    let queue = derived("redisson_lock_queue", name);
    let server = servers.server_of(&queue).await;
    until("the queue", async || server.query::<u32>(&["LLEN", &queue]).await >= count).await;
}

async fn queued_and_listening(servers: &Deployment, name: &str, count: u32) {
    queued(servers, name, count).await;
    let channels = derived("redisson_lock__channel", name) + ":*";
    until("the subscriptions", async || servers.channels(&channels).await >= count as usize).await;
}

/// The name of a Redisson key that is derived from a name. A hash tag in the name is kept.
fn derived(what: &str, name: &str) -> String {
    if name.contains('{') { format!("{what}:{name}") } else { format!("{what}:{{{name}}}") }
}

/// The holders of a lock, as lockcore sees them: owner and count.
pub(crate) async fn holders(lock: &Lock) -> Vec<(String, u32)> {
    let state = lock.state().await.unwrap();
    state.holders().iter().map(|holder| (holder.owner().to_owned(), holder.hold_count())).collect()
}

/// The result of [`holders`] when this is the only one, with a hold count of one.
pub(crate) fn alone(guard: &LockGuard) -> [(String, u32); 1] {
    [(guard.wire_owner().to_owned(), 1)]
}

/// Milliseconds, in the format of the table.
pub(crate) fn ms(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}
