//! [`ListenerTask`]: the task that owns the connection for messages.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{PushInfo, PushKind};
use tokio::{
    sync::{Notify, mpsc::UnboundedReceiver, oneshot, watch},
    time::Instant,
};

use super::{
    ChannelKind,
    channels::ChannelMap,
    subscribing::{Leaving, RefusedChannels, Subscriptions},
};
use crate::{
    error::ends_connection,
    server::{
        CommandConnection,
        commands::Commands,
        opener::{Opened, Progress, Purpose},
        pace::Pace,
    },
};

/// The interval of pings on an idle connection that has subscriptions.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The most connections in a row that may lead to another server than the commands do. A proxy may
/// permanently send each connection to another server, and then waiting is useless.
const MAX_STRAYS: u32 = 3;

/// A request to the task. Requests for one channel are handled in the order in which its listeners
/// come and go.
#[derive(Debug)]
pub(super) enum ListenerRequest {
    Subscribe { channel: String, done: oneshot::Sender<Result<(), BackendError>> },
    Unsubscribe { channel: String },
}

/// The task that owns the connection.
pub(super) struct ListenerTask {
    commands: Arc<Commands>,
    channels: Arc<ChannelMap>,
    kind: ChannelKind,
    /// The channels to be subscribed to, on this connection or on the next.
    subscribed: HashSet<String>,
    connection: Option<MessageConnection>,
    /// Signals that the current connection broke.
    broken: Arc<Notify>,
    pace: Pace,
    /// The number of connections in a row that led to another server than the commands.
    strays: u32,
}

struct MessageConnection {
    inner: Subscriptions,
    /// The connection for commands that this one belongs to.
    partner: Weak<CommandConnection>,
}

impl MessageConnection {
    fn has_partner(&self) -> bool {
        self.partner.upgrade().is_some_and(|partner| partner.is_usable())
    }

    /// Waits for the reply to a request. Returns `None` once the partner was given up, because
    /// there is no reply to wait for then.
    async fn reply<F: Future>(
        &self,
        mut changes: watch::Receiver<()>,
        request: F,
    ) -> Option<F::Output> {
        let lost = async { while self.has_partner() && changes.changed().await.is_ok() {} };
        tokio::select! {
            biased;
            reply = request => Some(reply),
            () = lost => None,
        }
    }
}

impl ListenerTask {
    pub(super) fn new(
        commands: Arc<Commands>,
        channels: Arc<ChannelMap>,
        kind: ChannelKind,
    ) -> Self {
        Self {
            commands,
            channels,
            kind,
            subscribed: HashSet::new(),
            connection: None,
            broken: Arc::default(),
            pace: Pace::default(),
            strays: 0,
        }
    }

    /// Handles requests until the last handle is dropped.
    pub(super) async fn serve(mut self, mut requests: UnboundedReceiver<ListenerRequest>) {
        let mut changes = self.commands.changes();
        // Requests do not delay the next ping: most need no answer of the server.
        let mut next_ping = Instant::now() + PING_EVERY;
        loop {
            if !self.has_subscriptions() {
                next_ping = Instant::now() + PING_EVERY;
            }
            let broken = self.broken.clone();
            let pause = self.pace.pause();
            tokio::select! {
                biased;
                () = broken.notified() => self.lose_connection(),
                Ok(()) = changes.changed() => self.follow_commands(),
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
                () = tokio::time::sleep(pause), if self.is_interrupted() => {
                    self.restore().await;
                }
                () = tokio::time::sleep_until(next_ping), if self.has_subscriptions() => {
                    self.ping().await;
                    next_ping = Instant::now() + PING_EVERY;
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
            self.commands.opener().address.lost();
            tracing::debug!("lost the connection for wake-ups");
        }
    }

    /// Drops the connection if its partner was given up: the next one may lead to another server.
    fn follow_commands(&mut self) {
        if self.connection.as_ref().is_some_and(|connection| !connection.has_partner()) {
            self.connection = None;
            tracing::debug!("dropped the connection for wake-ups with the one for commands");
        }
    }

    /// Handles a batch of requests, with one command for all new subscriptions and one for all that
    /// ended.
    async fn handle(&mut self, batch: Vec<ListenerRequest>) {
        let had_none = self.subscribed.is_empty();
        let mut waiting = Vec::new();
        // `true` for each channel of these requests that was subscribed before. Only these channels
        // are looked at, since there may be thousands of others.
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
            && let Some(connection) = &self.connection
        {
            let reply = connection.reply(self.commands.changes(), connection.inner.end(&ended));
            if !matches!(reply.await, Some(Ok(()))) {
                // The next connection starts without them.
                self.lose_connection();
            }
        }
        if waiting.is_empty() {
            return;
        }
        let result = self.subscribe(&new, had_none).await;
        if result.is_err() {
            // The callers get the error and may ask again, so none of the channels is kept.
            for channel in &new {
                self.subscribed.remove(channel);
            }
        }
        for (channel, done) in waiting {
            let result = match &result {
                Ok(refused) => refused.get(&channel).cloned().map_or(Ok(()), Err),
                Err(error) => Err(error.clone()),
            };
            if result.is_ok() {
                // Listeners that the channel was refused to have it back.
                self.channels.set_allowed(&channel, true);
            }
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

    /// Opens a connection to the server that commands go to.
    async fn open(&mut self) -> Result<(), BackendError> {
        let partner = self.commands.connection().await?;
        let (channels, broken) = (self.channels.clone(), Arc::new(Notify::new()));
        self.broken = broken.clone();
        let leaving = Arc::new(Leaving::default());
        let (expected, commands) = (leaving.clone(), Arc::downgrade(&partner));
        let on_push = move |push: PushInfo| match push.kind {
            PushKind::Message | PushKind::SMessage => channels.on_message(&push, &commands),
            PushKind::Disconnection => broken.notify_one(),
            // The slot of the channel has moved. The redis crate takes this for a reply to another
            // request, so no reply on this connection can be trusted any more.
            PushKind::SUnsubscribe if !expected.remove(&push) => broken.notify_one(),
            _ => {}
        };
        let progress = Progress::default();
        let opening = self.commands.opener().open(Purpose::Messages, &progress, on_push);
        let Opened { connection: inner, identity, .. } = self.pace.run(opening).await?;
        if identity.contradicts(&partner.identity) {
            self.strays += 1;
            if self.strays <= MAX_STRAYS {
                // The address leads to another server by now. Commands have to go there, too.
                partner.give_up();
                let message = "wake-ups and commands reached different servers";
                return Err(BackendError::new(BackendErrorKind::Unavailable, message));
            }
            tracing::warn!("wake-ups may be missed: they come from another server than replies");
        } else {
            self.strays = 0;
        }
        let inner = Subscriptions::new(inner, self.kind, leaving);
        self.connection = Some(MessageConnection { inner, partner: Arc::downgrade(&partner) });
        Ok(())
    }

    /// Opens a new connection, subscribes to all channels, and wakes all listeners.
    async fn reconnect(&mut self) -> Result<RefusedChannels, BackendError> {
        self.open().await?;
        let all: Vec<String> = self.subscribed.iter().cloned().collect();
        let refused = self.add(&all).await?;
        self.channels.wake_all();
        Ok(refused)
    }

    /// Subscribes to `channels`. If the connection fails, it is dropped. Refused channels are not
    /// kept, and their listeners are told.
    async fn add(&mut self, channels: &[String]) -> Result<RefusedChannels, BackendError> {
        let Some(connection) = &self.connection else { return Ok(RefusedChannels::new()) };
        let begin = connection.inner.begin(channels);
        let begun = connection.reply(self.commands.changes(), begin).await;
        let refused = match begun.unwrap_or_else(|| Err(without_partner())) {
            Ok(refused) => refused,
            Err(error) => {
                self.lose_connection();
                return Err(error);
            }
        };
        for channel in refused.keys() {
            self.subscribed.remove(channel);
            self.channels.set_allowed(channel, false);
        }
        Ok(refused)
    }

    /// Tries to reconnect.
    async fn restore(&mut self) {
        match self.reconnect().await {
            Ok(refused) => {
                tracing::debug!(refused = refused.len(), "restored the connection for wake-ups")
            }
            Err(error) => {
                tracing::debug!(%error, "failed to restore the connection for wake-ups");
            }
        }
    }

    /// Detects a connection that is of no use but was not closed.
    async fn ping(&mut self) {
        let Some(connection) = &self.connection else { return };
        let reply = connection.reply(self.commands.changes(), connection.inner.ping()).await;
        if reply.is_none_or(|reply| reply.is_err_and(|error| ends_connection(&error))) {
            self.lose_connection();
        }
    }
}

fn without_partner() -> BackendError {
    let message = "the connection for commands was given up, and the one for wake-ups with it";
    BackendError::new(BackendErrorKind::Connection, message).not_applied()
}
