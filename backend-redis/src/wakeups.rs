//! The connection for wake-ups: one subscription for each channel that has listeners.
//!
//! [`WakeupListener`] is the handle. Its task alone uses the connection. After an interruption, the
//! task subscribes again and wakes all listeners, since a message may have been missed.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Wakeups, async_trait},
};
use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::{
    Notify,
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot, watch,
};

use crate::{connect::Connector, error};

/// The interval of pings on an idle connection that has subscriptions.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The range of the pause between attempts to reconnect.
const RECONNECT_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// Subscribes to channels.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    connector: Arc<Connector>,
    channels: Arc<ChannelMap>,
    /// The requests to the task, if one runs: a task ends with its runtime. Critical sections are
    /// short and do not await.
    requests: Mutex<Option<UnboundedSender<ListenerRequest>>>,
}

/// A request to the task. Requests for one channel are handled in the order in which its listeners
/// come and go.
#[derive(Debug)]
enum ListenerRequest {
    Subscribe { channel: String, done: oneshot::Sender<Result<(), BackendError>> },
    Unsubscribe { channel: String },
}

/// The channels that have listeners.
#[derive(Debug, Default)]
struct ChannelMap {
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    channels: Mutex<HashMap<String, ChannelListeners>>,
}

#[derive(Debug)]
struct ChannelListeners {
    count: usize,
    wake: watch::Sender<()>,
}

impl ChannelMap {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ChannelListeners>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listeners of the channel of a message. The content is ignored: a message proves
    /// nothing, it is only a reason to try again.
    fn on_message(&self, push: &PushInfo) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(channel) = std::str::from_utf8(channel)
            && let Some(listeners) = self.lock().get(channel)
        {
            listeners.wake.send_replace(());
        }
    }

    fn wake_all(&self) {
        for listeners in self.lock().values() {
            listeners.wake.send_replace(());
        }
    }
}

impl WakeupListener {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, channels: Arc::default(), requests: Mutex::default() }
    }

    /// Subscribes to `channel`. The subscription is in effect when this returns.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        channel: String,
    ) -> Result<RedisSubscription, BackendError> {
        let (done, confirmed) = oneshot::channel();
        let subscription = self.request_subscription(channel, done);
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
        done: oneshot::Sender<Result<(), BackendError>>,
    ) -> RedisSubscription {
        let requests = self.requests_to_task();
        let mut channels = self.channels.lock();
        let listeners = channels
            .entry(channel.clone())
            .or_insert_with(|| ChannelListeners { count: 0, wake: watch::Sender::new(()) });
        listeners.count += 1;
        let woken = listeners.wake.subscribe();
        // If the task is gone, `done` is dropped, which the caller sees.
        let _ = requests.send(ListenerRequest::Subscribe { channel: channel.clone(), done });
        drop(channels);
        RedisSubscription { listener: self.clone(), requests, channel, woken }
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
                let task = ListenerTask {
                    connector: self.connector.clone(),
                    channels: self.channels.clone(),
                    subscribed: HashSet::new(),
                    connection: None,
                    broken: Arc::default(),
                    pause: *RECONNECT_PAUSE.start(),
                };
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
    listener: Arc<WakeupListener>,
    /// The requests to the task that made the subscription.
    requests: UnboundedSender<ListenerRequest>,
    channel: String,
    woken: watch::Receiver<()>,
}

#[async_trait]
impl Wakeups for RedisSubscription {
    async fn woken(&mut self) {
        tokio::select! {
            changed = self.woken.changed() => {
                if changed.is_err() {
                    // Unreachable: the sender is dropped with the last listener, and this is one.
                    std::future::pending::<()>().await;
                }
            }
            // The task ended with its runtime, and its subscriptions with it. A new task takes over
            // on this runtime. A message may have been missed, so this counts as a wake-up.
            () = self.requests.closed() => *self = self.resubscribe().await,
        }
    }
}

impl RedisSubscription {
    /// Subscribes again through a live task. Retries until it succeeds.
    async fn resubscribe(&self) -> Self {
        loop {
            match self.listener.subscribe(self.channel.clone()).await {
                Ok(subscription) => return subscription,
                Err(error) => {
                    tracing::debug!(%error, "failed to subscribe to wake-ups again");
                    tokio::time::sleep(*RECONNECT_PAUSE.end()).await;
                }
            }
        }
    }
}

impl Drop for RedisSubscription {
    fn drop(&mut self) {
        let mut channels = self.listener.channels.lock();
        let Some(listeners) = channels.get_mut(&self.channel) else { return };
        listeners.count -= 1;
        if listeners.count == 0 {
            channels.remove(&self.channel);
            // Goes to the current task. If there is none, there are no subscriptions.
            if let Some(requests) = self.listener.requests().as_ref() {
                let channel = std::mem::take(&mut self.channel);
                let _ = requests.send(ListenerRequest::Unsubscribe { channel });
            }
        }
    }
}

/// The channels that the server refused to subscribe to, and its errors.
type RefusedChannels = HashMap<String, BackendError>;

/// The task that owns the connection.
struct ListenerTask {
    connector: Arc<Connector>,
    channels: Arc<ChannelMap>,
    /// The channels to be subscribed to, on this connection or on the next.
    subscribed: HashSet<String>,
    connection: Option<MultiplexedConnection>,
    /// Signals that the current connection broke.
    broken: Arc<Notify>,
    /// The pause before the next attempt to reconnect.
    pause: Duration,
}

impl ListenerTask {
    /// Handles requests until the last handle is dropped.
    async fn serve(mut self, mut requests: UnboundedReceiver<ListenerRequest>) {
        loop {
            let broken = self.broken.clone();
            tokio::select! {
                biased;
                () = broken.notified() => self.lose_connection(),
                request = requests.recv() => match request {
                    Some(request) => {
                        let mut batch = vec![request];
                        while let Ok(request) = requests.try_recv() {
                            batch.push(request);
                        }
                        self.handle(batch).await;
                    }
                    None => return,
                },
                () = tokio::time::sleep(self.pause), if self.is_interrupted() => {
                    self.restore().await;
                }
                () = tokio::time::sleep(PING_EVERY), if self.has_subscriptions() => {
                    self.ping().await;
                }
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.connection.is_none() && !self.subscribed.is_empty()
    }

    fn has_subscriptions(&self) -> bool {
        self.connection.is_some() && !self.subscribed.is_empty()
    }

    fn lose_connection(&mut self) {
        if self.connection.take().is_some() {
            tracing::debug!("lost the connection for wake-ups");
        }
    }

    /// Handles a batch of requests, with one command for all new subscriptions and one for all that
    /// ended.
    async fn handle(&mut self, batch: Vec<ListenerRequest>) {
        let had_none = self.subscribed.is_empty();
        let mut waiting = Vec::new();
        // Whether the channels of these requests were subscribed before. Only these channels are
        // looked at, since there may be thousands of others.
        let mut before = HashMap::new();
        for request in batch {
            match request {
                ListenerRequest::Subscribe { channel, done } => {
                    let is_new = self.subscribed.insert(channel.clone());
                    before.entry(channel.clone()).or_insert(!is_new);
                    waiting.push((channel, done));
                }
                ListenerRequest::Unsubscribe { channel } => {
                    let was_subscribed = self.subscribed.remove(&channel);
                    before.entry(channel).or_insert(was_subscribed);
                }
            }
        }
        let (mut ended, mut new) = (Vec::new(), Vec::new());
        for (channel, was_subscribed) in before {
            match (was_subscribed, self.subscribed.contains(&channel)) {
                (true, false) => ended.push(channel),
                (false, true) => new.push(channel),
                _ => {}
            }
        }
        if !ended.is_empty()
            && let Some(connection) = &mut self.connection
            && connection.unsubscribe(&ended).await.is_err()
        {
            // The next connection starts without them.
            self.lose_connection();
        }
        if waiting.is_empty() {
            return;
        }
        let result = self.subscribe(&new, had_none).await;
        let refused: Vec<&String> = match &result {
            // The callers get the error and may ask again, so none of the channels is kept.
            Err(_) => new.iter().collect(),
            Ok(refused) => refused.keys().collect(),
        };
        for channel in refused {
            self.subscribed.remove(channel);
        }
        for (channel, done) in waiting {
            let result = match &result {
                Ok(refused) => refused.get(&channel).cloned().map_or(Ok(()), Err),
                Err(error) => Err(error.clone()),
            };
            // A caller that no longer waits has unsubscribed.
            let _ = done.send(result);
        }
    }

    /// Subscribes to the `new` channels, and opens a connection if there is none. `had_none` is
    /// `true` if there were no subscriptions before; otherwise a missing connection means that it
    /// broke, and it is restored for all channels. Returns the channels that the server refused.
    async fn subscribe(
        &mut self,
        new: &[String],
        had_none: bool,
    ) -> Result<RefusedChannels, BackendError> {
        if self.connection.is_none() {
            if !had_none {
                return self.reconnect().await;
            }
            self.open().await?;
        }
        if new.is_empty() {
            return Ok(RefusedChannels::new());
        }
        self.add(new).await
    }

    async fn open(&mut self) -> Result<(), BackendError> {
        let (channels, broken) = (self.channels.clone(), Arc::new(Notify::new()));
        self.broken = broken.clone();
        let on_push = move |push: PushInfo| match push.kind {
            PushKind::Message => channels.on_message(&push),
            PushKind::Disconnection => broken.notify_one(),
            _ => {}
        };
        self.connection = Some(self.connector.open(on_push).await?);
        Ok(())
    }

    /// Opens a new connection, subscribes to all channels, and wakes all listeners.
    async fn reconnect(&mut self) -> Result<RefusedChannels, BackendError> {
        self.open().await?;
        let all: Vec<String> = self.subscribed.iter().cloned().collect();
        let refused = self.add(&all).await?;
        self.pause = *RECONNECT_PAUSE.start();
        self.channels.wake_all();
        Ok(refused)
    }

    /// Subscribes to `channels`, with one command if the server accepts all of them. If the
    /// connection fails, it is dropped.
    async fn add(&mut self, channels: &[String]) -> Result<RefusedChannels, BackendError> {
        let mut refused = RefusedChannels::new();
        let Err(error) = self.subscribe_to(channels).await? else { return Ok(refused) };
        if let [channel] = channels {
            refused.insert(channel.clone(), error);
            return Ok(refused);
        }
        // The server refuses the whole command if the user has no right to one channel.
        for channel in channels {
            if let Err(error) = self.subscribe_to(std::slice::from_ref(channel)).await? {
                refused.insert(channel.clone(), error);
            }
        }
        Ok(refused)
    }

    /// Sends one command. The inner result is the reply of the server.
    async fn subscribe_to(
        &mut self,
        channels: &[String],
    ) -> Result<Result<(), BackendError>, BackendError> {
        let Some(connection) = &mut self.connection else { return Ok(Ok(())) };
        match connection
            .subscribe(channels)
            .await
            .map_err(|error| error::of_request(error, "subscribe").not_applied())
        {
            Err(error) if error.is_retryable() => {
                self.lose_connection();
                Err(error)
            }
            reply => Ok(reply),
        }
    }

    /// Tries to reconnect. If that fails, doubles the pause before the next attempt.
    async fn restore(&mut self) {
        match self.reconnect().await {
            Ok(refused) => {
                tracing::debug!(refused = refused.len(), "restored the connection for wake-ups")
            }
            Err(error) => {
                tracing::debug!(%error, "failed to restore the connection for wake-ups");
                self.pause = (self.pause * 2).min(*RECONNECT_PAUSE.end());
            }
        }
    }

    /// Detects a connection that is dead but was not closed.
    async fn ping(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if redis::cmd("PING")
            .query_async::<()>(connection)
            .await
            .is_err_and(|error| error.is_io_error())
        {
            self.lose_connection();
        }
    }
}

#[cfg(test)]
mod fuzz {
    use arbtest::arbtest;

    use super::*;
    use crate::fuzz::value;

    /// Creates channels with one listener each.
    fn channels(names: [&str; 2]) -> (ChannelMap, [watch::Receiver<()>; 2]) {
        let channels = ChannelMap::default();
        let receivers = names.map(|name| {
            let wake = watch::Sender::new(());
            let receiver = wake.subscribe();
            channels.lock().insert(name.to_owned(), ChannelListeners { count: 1, wake });
            receiver
        });
        (channels, receivers)
    }

    #[test]
    fn a_message_wakes_the_listeners_of_its_channel_whatever_its_content() {
        let (channels, mut receivers) = channels(["owner:1", "permits"]);
        arbtest(|u| {
            let data =
                (0..u.int_in_range(0..=3)?).map(|_| value(u, 2)).collect::<Result<Vec<_>, _>>()?;
            channels.on_message(&PushInfo { kind: PushKind::Message, data: data.clone() });
            for (name, receiver) in ["owner:1", "permits"].into_iter().zip(&mut receivers) {
                let is_for_channel = data.first() == Some(&Value::BulkString(name.into()));
                assert_eq!(receiver.has_changed().unwrap(), is_for_channel, "{data:?}");
                receiver.mark_unchanged();
            }
            assert_eq!(channels.lock().len(), 2, "a message adds no channel");
            Ok(())
        });
    }
}
