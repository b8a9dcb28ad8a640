//! Waiting for replicas: holds that are granted concurrently share one `WAIT`.
//!
//! `WAIT` counts the replicas that have everything that was written on its connection before, and
//! blocks this connection until there are enough, or until the time is up. It is sent when a hold
//! has been granted, on the same connection, so a refused acquisition waits for no replica. Holds
//! that are granted meanwhile share the next one. A connection that has been replaced leads to no
//! other server, so its `WAIT` fails or counts the writes on that connection.
//!
//! On a cluster, a hold may move to another node meanwhile, whose replicas are not counted. So the
//! key of the hold is looked up after `WAIT`: if it is there, it has been there all the time.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::{join, join_all};
use lockcore::{BackendError, BackendErrorKind, backend::Replicas};
use redis::Value;
use tokio::sync::oneshot;

use super::CommandConnection;
use crate::{error, wire::millis};

/// The key of a hold on a cluster, which may move to another node.
#[derive(Clone, Debug)]
pub(crate) struct MovableKey {
    pub(crate) key: String,
    /// The node was asked while its slot was on the way there.
    pub(crate) is_asking: bool,
}

/// The holds of a connection that replicas have yet to acknowledge.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// `true` while a task sends `WAIT` for the waiting acquisitions.
    has_sender: bool,
}

#[derive(Debug)]
struct Waiting {
    demand: Replicas,
    key: Option<MovableKey>,
    acknowledged: oneshot::Sender<Result<u32, BackendError>>,
}

impl Unacknowledged {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the caller has to start a sender.
    fn push(&self, waiting: Waiting) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(waiting);
        !mem::replace(&mut queue.has_sender, true)
    }

    /// Takes the first waiting acquisition, and all others with the same demand. If there is none,
    /// the sender is done.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        queue.waiting.retain(|waiting| !waiting.acknowledged.is_closed());
        let Some(demand) = queue.waiting.first().map(|first| first.demand) else {
            queue.has_sender = false;
            return Vec::new();
        };
        queue.waiting.extract_if(.., |waiting| waiting.demand == demand).collect()
    }
}

/// Sends `WAIT` as long as acquisitions wait. If it is dropped with its runtime, none of them waits
/// in vain.
struct WaitSender {
    connection: Arc<CommandConnection>,
    is_done: bool,
}

impl WaitSender {
    async fn send(mut self) {
        loop {
            // Tasks that are ready now can join first, or release what was not acknowledged.
            tokio::task::yield_now().await;
            let waiting = self.connection.unacknowledged.next();
            let Some(Waiting { demand, .. }) = waiting.first() else {
                self.is_done = true;
                return;
            };
            let counting = self.connection.wait(*demand);
            let looking_up = waiting.iter().map(|one| self.connection.find(one.key.as_ref()));
            // Polled in this order, so the keys are looked up behind `WAIT`.
            let (counted, found) = join(counting, join_all(looking_up)).await;
            for (one, found) in waiting.into_iter().zip(found) {
                let _ = one.acknowledged.send(found.and_then(|()| counted.clone()));
            }
        }
    }
}

impl Drop for WaitSender {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut queue = self.connection.unacknowledged.lock();
        let abandoned = mem::take(&mut queue.waiting);
        queue.has_sender = false;
        drop(queue);
        drop(abandoned);
    }
}

impl CommandConnection {
    /// Waits until replicas have acknowledged what was granted on this connection, and returns
    /// their number. It is less than demanded if the time was up. Fails if there is a `key` that
    /// has moved to another node meanwhile.
    pub(crate) async fn wait_for_replicas(
        self: &Arc<Self>,
        demand: Replicas,
        key: Option<MovableKey>,
    ) -> Result<u32, BackendError> {
        let (acknowledged, answer) = oneshot::channel();
        if self.unacknowledged.push(Waiting { demand, key, acknowledged }) {
            let sender = WaitSender { connection: self.clone(), is_done: false };
            self.runtime.spawn(sender.send());
        }
        answer.await.unwrap_or_else(|_| {
            let message = "WAIT on Redis failed: the runtime of the connection has shut down";
            Err(BackendError::new(BackendErrorKind::Connection, message))
        })
    }

    async fn wait(&self, demand: Replicas) -> Result<u32, BackendError> {
        let command = redis::cmd("WAIT").arg(demand.count).arg(millis(demand.timeout)).take();
        let reply = self.query(command).await;
        let reply = reply.map_err(|error| error::of_request(error, "WAIT"))?;
        self.decode(reply, |reply| match reply {
            Value::Int(replicas) => u32::try_from(replicas).map_err(|_| error::unexpected("WAIT")),
            _ => Err(error::unexpected("WAIT")),
        })
    }

    /// Fails if there is a `key` that is not at this node any more.
    async fn find(&self, key: Option<&MovableKey>) -> Result<(), BackendError> {
        let Some(MovableKey { key, is_asking }) = key else { return Ok(()) };
        let command = redis::cmd("EXISTS").arg(key).take();
        let reply = match is_asking {
            true => self.ask(command).await,
            false => self.query(command).await,
        };
        match reply {
            Ok(reply) => self.decode(reply, |reply| match reply {
                Value::Int(1) => Ok(()),
                Value::Int(0) => Err(has_moved()),
                _ => Err(error::unexpected("EXISTS")),
            }),
            Err(error) if error.redirect_node().is_some() => Err(has_moved()),
            Err(error) => Err(error::of_request(error, "EXISTS")),
        }
    }
}

fn has_moved() -> BackendError {
    let message = "the hold left the node before its replicas had acknowledged it, because its \
                   slot has moved, so it is released";
    BackendError::new(BackendErrorKind::Unavailable, message)
}
