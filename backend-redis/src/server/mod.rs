//! One server, and the two connections to it: one for commands, one for messages.
//!
//! - [`address`] says where the server is. It is asked for every connection that is opened.
//! - [`opener`] opens a connection and [`check`]s the server behind it. Each of the two connections
//!   has its [`pace`].
//! - [`commands`] has the [`connection`] for commands, on which [`batch`] sends several at once.
//! - [`messages`] has the connection for messages. It belongs to a connection for commands, and is
//!   replaced with it.
//!
//! A connection is given up when it breaks, stops answering, answers what was not asked, or says
//! that this is not the place for locks ([`error::says_not_here`](crate::error::says_not_here)).
//! The next connection goes where the address leads by then, maybe to another server.

pub(crate) mod address;
mod batch;
mod check;
mod commands;
mod connection;
mod messages;
pub(crate) mod opener;
mod pace;

use std::sync::Arc;

use lockcore::BackendError;
use redis::Value;

use self::{commands::Commands, messages::MessageListener, opener::Opener};
pub(crate) use self::{connection::CommandConnection, messages::RedisSubscription};
use crate::script::ScriptCall;

/// A server that keeps locks.
#[derive(Debug)]
pub(crate) struct Server {
    commands: Arc<Commands>,
    listener: Arc<MessageListener>,
}

impl Server {
    pub(crate) fn new(opener: Opener) -> Self {
        let commands = Arc::new(Commands::new(opener));
        Self { listener: Arc::new(MessageListener::new(commands.clone())), commands }
    }

    /// Returns the connection for commands, or opens a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<CommandConnection>, BackendError> {
        self.commands.connection().await
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

    /// Subscribes to `channel`. The subscription is in effect when this returns.
    pub(crate) async fn subscribe(
        &self,
        channel: String,
    ) -> Result<RedisSubscription, BackendError> {
        self.listener.subscribe(channel).await
    }
}
