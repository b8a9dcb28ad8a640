//! The connection for messages: one subscription a channel while somebody listens, and none after.
//!
//! A [`Listener`] is the handle, its task is the only one that touches the connection. A subscription that was
//! interrupted is made again, and then everybody is woken, since a message may have been missed.

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

/// How often an idle connection is asked whether it is still there, while somebody listens.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect again.
const RECONNECT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// Subscribes to channels.
#[derive(Debug)]
pub(crate) struct Listener {
    connector: Arc<Connector>,
    channels: Arc<Channels>,
    /// To the task, if one runs: it ends with its runtime. Short critical sections without awaits.
    orders: Mutex<Option<UnboundedSender<Order>>>,
}

/// What the task is asked to do. Orders for one channel are carried out in the order in which its listeners came
/// and went.
#[derive(Debug)]
enum Order {
    Subscribe { channel: String, done: oneshot::Sender<Result<(), BackendError>> },
    Unsubscribe { channel: String },
}

/// Who listens to which channel.
#[derive(Debug, Default)]
struct Channels {
    /// Short critical sections without awaits, hence not tokio's mutex.
    listeners: Mutex<HashMap<String, Listeners>>,
}

#[derive(Debug)]
struct Listeners {
    count: usize,
    news: watch::Sender<()>,
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Listeners>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message came. Whatever it says: it carries no authority, it is a reason to look.
    fn on_message(&self, push: &PushInfo) {
        if let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(channel) = std::str::from_utf8(channel)
            && let Some(listeners) = self.lock().get(channel)
        {
            listeners.news.send_replace(());
        }
    }

    fn wake_all(&self) {
        for listeners in self.lock().values() {
            listeners.news.send_replace(());
        }
    }
}

impl Listener {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, channels: Arc::default(), orders: Mutex::default() }
    }

    /// Listens to `channel`. The subscription is in effect when this returns.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        channel: String,
    ) -> Result<Subscription, BackendError> {
        let (done, confirmed) = oneshot::channel();
        let subscription = self.order_subscription(channel, done);
        match confirmed.await {
            Ok(Ok(())) => Ok(subscription),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(BackendError::new(
                BackendErrorKind::Connection,
                "the connection for wake-ups was closed",
            )),
        }
    }

    /// Counts a listener in, and orders the subscription under the same lock, so that the orders of listeners that come and
    /// go cannot overtake each other.
    fn order_subscription(
        self: &Arc<Self>,
        channel: String,
        done: oneshot::Sender<Result<(), BackendError>>,
    ) -> Subscription {
        let orders = self.task();
        let mut listeners = self.channels.lock();
        let entry = listeners
            .entry(channel.clone())
            .or_insert_with(|| Listeners { count: 0, news: watch::Sender::new(()) });
        entry.count += 1;
        let news = entry.news.subscribe();
        // If the task is gone, `done` is dropped, which the caller sees.
        let _ = orders.send(Order::Subscribe { channel: channel.clone(), done });
        drop(listeners);
        Subscription { listener: self.clone(), orders, channel, news }
    }

    fn orders(&self) -> MutexGuard<'_, Option<UnboundedSender<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the task, which is started if none runs.
    fn task(&self) -> UnboundedSender<Order> {
        let mut orders = self.orders();
        match orders.as_ref().filter(|orders| !orders.is_closed()) {
            Some(orders) => orders.clone(),
            None => {
                let (sender, receiver) = unbounded_channel();
                let task = Task {
                    connector: self.connector.clone(),
                    channels: self.channels.clone(),
                    subscribed: HashSet::new(),
                    connection: None,
                    broken: Arc::default(),
                    pause: *RECONNECT.start(),
                };
                tokio::spawn(task.serve(receiver));
                *orders = Some(sender.clone());
                sender
            }
        }
    }
}

/// One listener of one channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    listener: Arc<Listener>,
    /// To the task that has made the subscription.
    orders: UnboundedSender<Order>,
    channel: String,
    news: watch::Receiver<()>,
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) {
        tokio::select! {
            changed = self.news.changed() => {
                if changed.is_err() {
                    // The sender goes with the last listener, and this is one.
                    std::future::pending::<()>().await;
                }
            }
            // The task went with its runtime, and the subscription with it. Another runtime goes on; what came in between was not
            // heard, so this is a reason to look.
            () = self.orders.closed() => *self = self.renewed().await,
        }
    }
}

impl Subscription {
    /// The same subscription, made by a task that lives.
    async fn renewed(&self) -> Self {
        loop {
            match self.listener.subscribe(self.channel.clone()).await {
                Ok(renewed) => return renewed,
                Err(error) => {
                    tracing::debug!(%error, "the subscription for wake-ups is not restored yet");
                    tokio::time::sleep(*RECONNECT.end()).await;
                }
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listeners = self.listener.channels.lock();
        let Some(entry) = listeners.get_mut(&self.channel) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            listeners.remove(&self.channel);
            // By the task that lives now. If none does, there are no subscriptions.
            if let Some(orders) = self.listener.orders().as_ref() {
                let _ =
                    orders.send(Order::Unsubscribe { channel: std::mem::take(&mut self.channel) });
            }
        }
    }
}

/// Channels that the server does not let us listen to, and why.
type Refused = HashMap<String, BackendError>;

/// The only user of the connection.
struct Task {
    connector: Arc<Connector>,
    channels: Arc<Channels>,
    /// What the server is to send messages of.
    subscribed: HashSet<String>,
    connection: Option<MultiplexedConnection>,
    /// Signals that this very connection broke.
    broken: Arc<Notify>,
    /// Before the next attempt to connect again.
    pause: Duration,
}

impl Task {
    /// Serves until the last handle is gone.
    async fn serve(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            let broken = self.broken.clone();
            tokio::select! {
                biased;
                () = broken.notified() => self.lose_connection(),
                order = orders.recv() => match order {
                    Some(order) => {
                        let mut batch = vec![order];
                        while let Ok(order) = orders.try_recv() {
                            batch.push(order);
                        }
                        self.carry_out(batch).await;
                    }
                    None => return,
                },
                () = tokio::time::sleep(self.pause), if self.is_interrupted() => self.restore().await,
                () = tokio::time::sleep(PING_EVERY), if self.is_listening() => self.ping().await,
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.connection.is_none() && !self.subscribed.is_empty()
    }

    fn is_listening(&self) -> bool {
        self.connection.is_some() && !self.subscribed.is_empty()
    }

    fn lose_connection(&mut self) {
        if self.connection.take().is_some() {
            tracing::debug!("the connection for wake-ups broke");
        }
    }

    /// Carries out what was ordered meanwhile, with one command for all new subscriptions and one for all that ended.
    async fn carry_out(&mut self, batch: Vec<Order>) {
        let nobody_listened = self.subscribed.is_empty();
        let mut waiting = Vec::new();
        // Of those that orders are for: whether they were subscribed before. There may be thousands of others.
        let mut before = HashMap::new();
        for order in batch {
            match order {
                Order::Subscribe { channel, done } => {
                    let is_new = self.subscribed.insert(channel.clone());
                    before.entry(channel.clone()).or_insert(!is_new);
                    waiting.push((channel, done));
                }
                Order::Unsubscribe { channel } => {
                    let was_in = self.subscribed.remove(&channel);
                    before.entry(channel).or_insert(was_in);
                }
            }
        }
        let (mut ended, mut new) = (Vec::new(), Vec::new());
        for (channel, was_in) in before {
            match (was_in, self.subscribed.contains(&channel)) {
                (true, false) => ended.push(channel),
                (false, true) => new.push(channel),
                _ => {}
            }
        }
        if !ended.is_empty()
            && let Some(connection) = &mut self.connection
            && connection.unsubscribe(&ended).await.is_err()
        {
            // A new connection will not have them.
            self.lose_connection();
        }
        if waiting.is_empty() {
            return;
        }
        let result = self.subscribe(&new, nobody_listened).await;
        let refused: Vec<&String> = match &result {
            // Whoever is told of the failure asks again; the channel is not kept for one who gave up.
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
            // One who no longer waits has unsubscribed.
            let _ = done.send(result);
        }
    }

    /// Adds channels to the connection, which is opened if there is none. A connection that broke under others is
    /// restored for all of them. Returns the channels that the server refuses.
    async fn subscribe(
        &mut self,
        new: &[String],
        nobody_listened: bool,
    ) -> Result<Refused, BackendError> {
        if self.connection.is_none() {
            if !nobody_listened {
                return self.reconnect().await;
            }
            self.open().await?;
        }
        if new.is_empty() {
            return Ok(Refused::new());
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

    /// Opens a new connection with all channels, and wakes everybody.
    async fn reconnect(&mut self) -> Result<Refused, BackendError> {
        self.open().await?;
        let all: Vec<String> = self.subscribed.iter().cloned().collect();
        let refused = self.add(&all).await?;
        self.pause = *RECONNECT.start();
        self.channels.wake_all();
        Ok(refused)
    }

    /// Subscribes to `channels`, to all at once if the server accepts all. A connection that fails is given up.
    async fn add(&mut self, channels: &[String]) -> Result<Refused, BackendError> {
        let mut refused = Refused::new();
        let Err(error) = self.subscribe_to(channels).await? else { return Ok(refused) };
        if let [channel] = channels {
            refused.insert(channel.clone(), error);
            return Ok(refused);
        }
        // One that may not be listened to must not spoil the others.
        for channel in channels {
            if let Err(error) = self.subscribe_to(std::slice::from_ref(channel)).await? {
                refused.insert(channel.clone(), error);
            }
        }
        Ok(refused)
    }

    /// Sends one command. The inner result is what the server has answered.
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
            answer => Ok(answer),
        }
    }

    /// Tries to reconnect, and makes the pause before the next attempt longer if that fails.
    async fn restore(&mut self) {
        match self.reconnect().await {
            Ok(refused) => {
                tracing::debug!(refused = refused.len(), "the connection for wake-ups is restored")
            }
            Err(error) => {
                tracing::debug!(%error, "the connection for wake-ups is not restored yet");
                self.pause = (self.pause * 2).min(*RECONNECT.end());
            }
        }
    }

    /// Finds out about a connection that is dead without having been closed.
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

    /// Channels with one listener each.
    fn channels(names: [&str; 2]) -> (Channels, [watch::Receiver<()>; 2]) {
        let channels = Channels::default();
        let receivers = names.map(|name| {
            let news = watch::Sender::new(());
            let receiver = news.subscribe();
            channels.lock().insert(name.to_owned(), Listeners { count: 1, news });
            receiver
        });
        (channels, receivers)
    }

    #[test]
    fn a_message_wakes_those_of_its_channel_whatever_it_says() {
        let (channels, mut receivers) = channels(["owner:1", "permits"]);
        arbtest(|u| {
            let data =
                (0..u.int_in_range(0..=3)?).map(|_| value(u, 2)).collect::<Result<Vec<_>, _>>()?;
            channels.on_message(&PushInfo { kind: PushKind::Message, data: data.clone() });
            for (name, receiver) in ["owner:1", "permits"].into_iter().zip(&mut receivers) {
                let is_theirs = data.first() == Some(&Value::BulkString(name.into()));
                assert_eq!(receiver.has_changed().unwrap(), is_theirs, "{data:?}");
                receiver.mark_unchanged();
            }
            assert_eq!(channels.lock().len(), 2, "a message makes no listeners");
            Ok(())
        });
    }
}
