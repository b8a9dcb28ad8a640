//! One server, and the two connections to it: one for commands, one for messages.
//!
//! - [`address`] tells where the server is. It is asked for every connection that is opened.
//! - [`opener`] opens a connection and [`check`]s the server behind it. Each of the two connections
//!   has its [`pace`].
//! - [`commands`] has the [`connection`] for commands, on which [`batch`] sends several at once.
//! - [`clock`] knows the server's clock and the last tokens ([`recent`]), for the next tokens.
//! - [`messages`] has the connection for messages. It belongs to a connection for commands, and is
//!   replaced with it.
//!
//! A connection is given up when it breaks, stops answering, sends a reply that fits no request, or
//! says that this is not the place for locks
//! ([`error::says_not_here`](crate::error::says_not_here)). The next connection goes where the
//! address leads by then, possibly to another server. The [`pulse`] of a connection tells its
//! address earlier that the server may be down.

pub(crate) mod address;
mod batch;
mod boxes;
mod check;
mod clock;
mod commands;
mod connection;
mod messages;
pub(crate) mod opener;
mod pace;
mod pulse;
mod recent;
mod replicas;
mod session;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Cmd, ConnectionInfo, PushInfo, Value, aio::MultiplexedConnection};
use tokio::sync::watch;

pub(crate) use self::{
    check::Identity,
    connection::CommandConnection,
    messages::{Audience, RedisSubscription},
    opener::Purpose,
    replicas::MovableKey,
};
use self::{
    commands::Commands,
    messages::{ChannelKind, MessageListener},
    opener::{ConnectOptions, Opened, Opener, Progress},
};
use crate::{error, script::ScriptCall};

/// A server that keeps locks.
#[derive(Debug)]
pub(crate) struct Server {
    commands: Arc<Commands>,
    /// For acquisitions that replicas have to acknowledge, because `WAIT` blocks its connection.
    acknowledged: Arc<Commands>,
    listener: Arc<MessageListener>,
    /// For sharded channels, of a node of a cluster.
    sharded: Arc<MessageListener>,
}

impl Server {
    pub(crate) fn new(opener: Opener) -> Self {
        let opener = Arc::new(opener);
        let [commands, acknowledged] = [Purpose::Commands, Purpose::Acknowledged]
            .map(|purpose| Arc::new(Commands::new(opener.clone(), purpose)));
        let [listener, sharded] = [ChannelKind::Plain, ChannelKind::Sharded]
            .map(|kind| Arc::new(MessageListener::new(commands.clone(), kind)));
        Self { commands, acknowledged, listener, sharded }
    }

    /// Connects, and returns `true` if the server is a node of a cluster.
    pub(crate) async fn is_cluster_node(&self) -> Result<bool, BackendError> {
        let connection = self.connection().await;
        // A replica of a cluster is refused, but it is a place to begin with.
        match self.commands.opener().is_cluster_node.get() {
            Some(true) => Ok(true),
            _ => connection.map(|_| false),
        }
    }

    /// Connects to the primary that a Sentinel names. One that is behind, or misled, may name a
    /// server that is gone or is no primary; then the next one is asked. `count` counts the
    /// Sentinels that are known by now.
    pub(crate) async fn connect_to_primary(
        &self,
        count: impl Fn() -> usize,
    ) -> Result<(), BackendError> {
        let opener = self.commands.opener();
        let (mut tried, mut failures, mut turns) = (Vec::new(), Vec::new(), 0);
        while turns < count() {
            turns += 1;
            let place = match opener.locate().await {
                Ok(place) => place,
                Err(error) => {
                    failures.push(error);
                    break;
                }
            };
            if tried.contains(&place.address()) {
                opener.address.reject(&place);
                continue;
            }
            match self.connection().await {
                Ok(_) => return Ok(()),
                Err(error) => failures.push(error),
            }
            tried.push(place.address());
        }
        // A permanent error comes before those that a retry may cure.
        failures.sort_by_key(BackendError::is_retryable);
        match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => self.connection().await.map(drop),
        }
    }

    /// How long ago connections led to another server than now, if that can be told.
    pub(crate) fn intact_for(&self) -> Option<Duration> {
        self.commands.opener().intact_for()
    }

    /// Returns the connection for commands, if it is open.
    pub(crate) fn current(&self) -> Option<Arc<CommandConnection>> {
        self.commands.current()
    }

    /// Notifies of each connection for commands that is opened or given up.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.commands.changes()
    }

    /// Returns the connection for commands, or opens a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<CommandConnection>, BackendError> {
        self.commands.connection().await
    }

    /// Returns the connection for commands, or the one for acquisitions that replicas have to
    /// acknowledge.
    pub(crate) async fn connection_for(
        &self,
        purpose: Purpose,
    ) -> Result<Arc<CommandConnection>, BackendError> {
        match purpose {
            // Boxed, because this future is large and rarely needed.
            Purpose::Acknowledged => Box::pin(self.acknowledged_connection()).await,
            Purpose::Commands | Purpose::Messages => self.connection().await,
        }
    }

    /// Both connections have to lead to the same server: one that was succeeded may still answer,
    /// and have replicas.
    async fn acknowledged_connection(&self) -> Result<Arc<CommandConnection>, BackendError> {
        for _ in 0..2 {
            let commands = self.commands.connection().await?;
            let acknowledged = self.acknowledged.connection().await?;
            if !acknowledged.identity.contradicts(&commands.identity) {
                return Ok(acknowledged);
            }
            commands.give_up();
            acknowledged.give_up();
        }
        let message = "the connections to Redis lead to different servers";
        Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied())
    }

    /// Sends `call` once, and decodes the reply.
    pub(crate) async fn call<T>(
        &self,
        call: &ScriptCall,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let connection = self.connection().await?;
        let reply = connection.call(call).await?;
        connection.decode(reply, decode)
    }

    /// Sends a command that does not depend on the role of the server, through a temporary
    /// connection if necessary.
    pub(crate) async fn ask(&self, command: Cmd, doing: &str) -> Result<Value, BackendError> {
        let reply = match self.current() {
            Some(connection) => connection.query(command).await,
            None => {
                let progress = Progress::default();
                let opening = self.commands.opener().open(Purpose::Messages, &progress, |_| ());
                let Opened { mut connection, .. } = opening.await?;
                connection.send_packed_command(&command).await.and_then(Value::extract_error)
            }
        };
        reply.map_err(|error| error::of_request(error, doing).not_applied())
    }

    /// Opens a connection that nobody else uses, to a server that may be unfit for locks. Returns
    /// its address as well. `on_push` is called for each message.
    pub(crate) async fn open_aside(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, String), BackendError> {
        let (opener, progress) = (self.commands.opener(), Progress::default());
        let opening = opener.open(Purpose::Messages, &progress, on_push);
        let Opened { connection, place, .. } = opening.await?;
        Ok((connection, place.address()))
    }

    /// The place that connections would lead to now, and how they are opened.
    pub(crate) async fn place_and_options(
        &self,
    ) -> Result<(ConnectionInfo, ConnectOptions), BackendError> {
        let opener = self.commands.opener();
        Ok((opener.locate().await?.info, opener.options().clone()))
    }

    /// Returns `true` if the keys of a call have to be in the same slot.
    pub(crate) fn splits_batches(&self) -> bool {
        self.commands.opener().splits_batches.load(Ordering::Relaxed)
    }

    /// Sends requests whose keys may be in different slots in calls of their own from now on.
    pub(crate) fn split_batches(&self) {
        self.commands.opener().splits_batches.store(true, Ordering::Relaxed);
    }

    /// Subscribes to `channel`, on a connection that is closed when the subscription is dropped.
    pub(crate) async fn subscribe_aside(
        &self,
        channel: String,
    ) -> Result<RedisSubscription, BackendError> {
        let listener = MessageListener::new(self.commands.clone(), ChannelKind::Plain);
        Arc::new(listener).subscribe(channel, Audience::Everybody).await
    }

    /// Subscribes to `channel`. The subscription is in effect when this returns.
    pub(crate) async fn subscribe(
        &self,
        channel: String,
        audience: Audience,
    ) -> Result<RedisSubscription, BackendError> {
        self.listener.subscribe(channel, audience).await
    }

    /// Subscribes to the sharded channel. The subscription is in effect when this returns.
    pub(crate) async fn subscribe_sharded(
        &self,
        channel: String,
        audience: Audience,
    ) -> Result<RedisSubscription, BackendError> {
        self.sharded.subscribe(channel, audience).await
    }
}
