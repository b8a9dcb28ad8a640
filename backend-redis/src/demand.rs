//! The demand for an exclusive lock: its holder hears that other clients want the lock.
//!
//! `acquire.lua` publishes each refusal. Waiters that were refused before the holder listened have
//! subscribed to the releases meanwhile, as waiters of Redisson do. So the holder also asks once
//! whether there are such subscriptions. A batch publishes nothing for waiters that
//! [expect](lockcore::backend::AcquireRequest::held_for) a refusal, which only this question finds.

use futures_util::future::join_all;
use lockcore::{
    BackendError, Mode,
    backend::{Wakeup, Wakeups, async_trait},
};
use redis::RedisResult;

use crate::{
    RedisBackend, backend::Deployment, cluster::Publishing, keys::LockKeys, reply,
    server::CommandConnection,
};

/// Subscribes to the demand for a lock. The subscription is in effect when this returns.
pub(crate) async fn subscribe(
    backend: &RedisBackend,
    keys: &LockKeys,
    mode: Mode,
) -> Result<Box<dyn Wakeups>, BackendError> {
    if mode != Mode::Exclusive {
        let what = format_args!("messages about the demand for locks in {mode} mode");
        return Err(BackendError::unsupported(what));
    }
    let refusals = backend.listen(keys.demand_channel()).await?;
    let is_awaited = is_awaited(backend, &keys.channel().to_string()).await;
    Ok(Box::new(DemandSubscription { refusals, is_awaited }))
}

#[derive(Debug)]
struct DemandSubscription {
    refusals: Box<dyn Wakeups>,
    /// Set if somebody was waiting when the subscription began, until the next wake-up.
    is_awaited: bool,
}

#[async_trait]
impl Wakeups for DemandSubscription {
    async fn woken(&mut self) -> Wakeup {
        match std::mem::take(&mut self.is_awaited) {
            true => Wakeup::Changed,
            false => self.refusals.woken().await,
        }
    }
}

/// Returns `true` if somebody is subscribed to the releases of a lock, as far as the server that
/// serves it can tell. If the server cannot be asked, the answer is `false`. If the connection is
/// lost, so is the one for messages, which wakes its listeners.
async fn is_awaited(backend: &RedisBackend, channel: &str) -> bool {
    let (connection, publishing) = match backend.deployment() {
        Deployment::Single(server) => (server.current(), Publishing::Plain),
        Deployment::Cluster(cluster) => (cluster.current_of(channel), cluster.publishing()),
    };
    let Some(connection) = connection else { return false };
    let counts = publishing.counts().iter().map(|count| async {
        ask(&connection, count, channel).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot tell whether anybody waits for a lock");
            false
        })
    });
    join_all(counts).await.contains(&true)
}

/// Asks whether there are subscriptions to a channel. `count` is the command that counts them.
async fn ask(
    connection: &CommandConnection,
    count: &str,
    channel: &str,
) -> Result<bool, BackendError> {
    let command = redis::cmd("PUBSUB").arg(count).arg(channel).take();
    let reply: RedisResult<_> = connection.query(command).await;
    let reply = reply.map_err(|error| crate::error::of_request(error, "PUBSUB"))?;
    connection.decode(reply, |reply| reply::has_subscriptions(&reply, channel))
}
