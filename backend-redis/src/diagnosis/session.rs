//! [`Session`]: the connection that a server is examined on.

use std::{fmt, sync::Arc};

use lockcore::{BackendError, BackendErrorKind};
use redis::{
    Cmd, FromRedisValue, Pipeline, PushInfo, RedisResult, Value, aio::MultiplexedConnection,
};

use crate::{error, server::Server};

/// A connection to a server that may be unfit for locks.
pub(super) struct Session {
    connection: MultiplexedConnection,
    address: String,
}

/// The answer of a server: a reply, or an error that it returned.
pub(super) type Answer<T> = Result<T, BackendError>;

impl Session {
    pub(super) async fn open(server: &Arc<Server>) -> Result<Self, BackendError> {
        Self::open_with(server, |_| ()).await
    }

    /// Opens a session, and calls `on_push` for each message.
    pub(super) async fn open_with(
        server: &Arc<Server>,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, BackendError> {
        let (connection, address) = server.open_aside(on_push).await?;
        Ok(Self { connection, address })
    }

    /// Host and port, or the path of the socket.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a command. `doing` names it in errors.
    ///
    /// # Errors
    /// An error if the server is unreachable or silent. A refusal is an answer.
    pub(super) async fn ask<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
        doing: &str,
    ) -> Result<Answer<T>, BackendError> {
        let reply = self.connection.send_packed_command(command).await;
        self.answer(reply, doing)
    }

    /// Sends commands together, and returns an answer for each.
    pub(super) async fn all<T: FromRedisValue>(
        &mut self,
        commands: &Pipeline,
        doing: &str,
    ) -> Result<Vec<Answer<T>>, BackendError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let replies = self.connection.send_packed_commands(commands, 0, commands.len()).await;
        match replies {
            Ok(replies) => replies.into_iter().map(|reply| self.answer(Ok(reply), doing)).collect(),
            // Some servers and proxies refuse all of them at once.
            Err(error) => {
                let refusal = self.answer::<T>(Err(error), doing)?.err();
                Ok(refusal.map(Err).into_iter().collect())
            }
        }
    }

    fn answer<T: FromRedisValue>(
        &self,
        reply: RedisResult<Value>,
        doing: &str,
    ) -> Result<Answer<T>, BackendError> {
        let reply = reply.and_then(Value::extract_error);
        match reply.map_err(|error| error::of_request(error, doing).not_applied()) {
            Ok(reply) => Ok(T::from_redis_value(reply).map_err(|_| error::unexpected(doing))),
            Err(error) if is_of_connection(&error) => {
                let message = match error.kind() {
                    BackendErrorKind::Timeout => "does not answer",
                    _ => "has ended the connection",
                };
                let message = format!("{} {message} ({doing})", self.address);
                Err(BackendError::new(error.kind(), message).not_applied().with_source(error))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Sends a command given as words.
    pub(super) async fn words<T: FromRedisValue>(
        &mut self,
        words: &[&str],
    ) -> Result<Answer<T>, BackendError> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        self.ask(&command, words.first().unwrap_or(&"")).await
    }
}

/// Omits the connection, which has credentials.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.address).finish()
    }
}

fn is_of_connection(error: &BackendError) -> bool {
    matches!(error.kind(), BackendErrorKind::Connection | BackendErrorKind::Timeout)
}
