//! The connection for messages: one subscription for each channel that has listeners.
//!
//! [`MessageListener`] is the handle. Its [`task`] alone uses the connection. The connection
//! belongs to the one for commands, and is replaced with it: the next one may lead to another
//! server. After each interruption, the task subscribes again and wakes all listeners, since a
//! message may have been missed.

mod channels;
mod subscribing;
mod task;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::{
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot, watch,
    },
    time::Instant,
};

pub(crate) use self::channels::Audience;
use self::{
    channels::{ChannelMap, ChannelState},
    task::{ListenerRequest, ListenerTask},
};
use super::commands::Commands;

/// The pause before a listener asks again for a channel that it lost.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The kind of channels that a listener subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelKind {
    /// The channels of `PUBLISH`.
    Plain,
    /// The channels of `SPUBLISH`, which belong to the slots of a cluster.
    Sharded,
}

/// Subscribes to channels of one kind.
#[derive(Debug)]
pub(super) struct MessageListener {
    commands: Arc<Commands>,
    kind: ChannelKind,
    channels: Arc<ChannelMap>,
    /// The requests to the task, if one runs: a task ends with its runtime. Critical sections are
    /// short and do not await.
    requests: Mutex<Option<UnboundedSender<ListenerRequest>>>,
}

impl MessageListener {
    pub(super) fn new(commands: Arc<Commands>, kind: ChannelKind) -> Self {
        Self { commands, kind, channels: Arc::default(), requests: Mutex::default() }
    }

    /// Subscribes to `channel`. The subscription is in effect when this returns.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channel: String,
        audience: Audience,
    ) -> Result<RedisSubscription, BackendError> {
        let (done, confirmed) = oneshot::channel();
        let subscription = self.request_subscription(channel, audience, done);
        match confirmed.await {
            Ok(Ok(())) => Ok(subscription),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(BackendError::new(
                BackendErrorKind::Connection,
                "the connection for wake-ups was closed",
            )),
        }
    }

    /// Counts the listener and sends the request under one lock, so that requests of listeners that
    /// come and go cannot overtake each other.
    fn request_subscription(
        self: &Arc<Self>,
        channel: String,
        audience: Audience,
        done: oneshot::Sender<Result<(), BackendError>>,
    ) -> RedisSubscription {
        let requests = self.requests_to_task();
        let mut channels = self.channels.lock();
        let messages = channels.add_listener(&channel, audience);
        // If the task is gone, `done` is dropped, which the caller sees.
        let _ = requests.send(ListenerRequest::Subscribe { channel: channel.clone(), done });
        drop(channels);
        let listener = self.clone();
        RedisSubscription { listener, requests, channel, audience, messages, retry_at: None }
    }

    fn requests(&self) -> MutexGuard<'_, Option<UnboundedSender<ListenerRequest>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sender of requests to the task. Starts the task if none runs.
    fn requests_to_task(&self) -> UnboundedSender<ListenerRequest> {
        let mut requests = self.requests();
        match requests.as_ref().filter(|requests| !requests.is_closed()) {
            Some(requests) => requests.clone(),
            None => {
                let (sender, receiver) = unbounded_channel();
                let (commands, channels) = (self.commands.clone(), self.channels.clone());
                let task = ListenerTask::new(commands, channels, self.kind);
                tokio::spawn(task.serve(receiver));
                *requests = Some(sender.clone());
                sender
            }
        }
    }
}

/// One listener of one channel.
#[derive(Debug)]
pub(crate) struct RedisSubscription {
    listener: Arc<MessageListener>,
    /// The requests to the task that made the subscription.
    requests: UnboundedSender<ListenerRequest>,
    channel: String,
    audience: Audience,
    /// Notified of each message that it is to hear.
    messages: watch::Receiver<ChannelState>,
    /// The time of the next attempt to subscribe, after the subscription was lost.
    retry_at: Option<Instant>,
}

#[async_trait]
impl Wakeups for RedisSubscription {
    async fn woken(&mut self) -> Wakeup {
        if self.retry_at.is_some() {
            // After an attempt, a listener checks whether it has missed a message.
            self.resubscribe().await;
            return Wakeup::Changed;
        }
        tokio::select! {
            changed = self.messages.changed() => {
                if changed.is_err() {
                    // Unreachable: the sender is dropped with the last listener, and this is one.
                    return std::future::pending().await;
                }
                let state = self.messages.borrow_and_update();
                if state.is_allowed {
                    return state.wakeup();
                }
                // The server has refused the channel, which it had allowed before. The listener
                // checks now, and subscribes again when the right may be back.
                self.retry_at = Some(Instant::now() + RETRY_PAUSE);
            }
            // The task ended with its runtime, and its subscriptions with it. A new task takes over
            // on this runtime. A message may have been missed, so this counts as a wake-up.
            () = self.requests.closed() => {
                self.retry_at = Some(Instant::now());
                self.resubscribe().await;
            }
        }
        Wakeup::Changed
    }
}

impl RedisSubscription {
    /// Returns `true` if the subscription was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Subscribes again. Retries until it succeeds, or until another listener has succeeded.
    async fn resubscribe(&mut self) {
        while let Some(retry_at) = self.retry_at {
            tokio::select! {
                () = tokio::time::sleep_until(retry_at) => {}
                Ok(()) = self.messages.changed() => {
                    if self.messages.borrow_and_update().is_allowed {
                        self.retry_at = None;
                    }
                    continue;
                }
            }
            // Set first: the future may be dropped before the reply.
            self.retry_at = Some(Instant::now() + RETRY_PAUSE);
            match self.listener.subscribe(self.channel.clone(), self.audience).await {
                Ok(subscription) => *self = subscription,
                Err(error) => {
                    tracing::debug!(%error, "failed to subscribe to wake-ups again");
                }
            }
        }
    }
}

impl Drop for RedisSubscription {
    fn drop(&mut self) {
        let mut channels = self.listener.channels.lock();
        // Sent under the lock, to the current task. If there is none, there are no subscriptions.
        if channels.remove_listener(&self.channel)
            && let Some(requests) = self.listener.requests().as_ref()
        {
            let channel = std::mem::take(&mut self.channel);
            let _ = requests.send(ListenerRequest::Unsubscribe { channel });
        }
    }
}
