//! [`Subscriptions`]: the commands of a connection for messages.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::join_all;
use lockcore::BackendError;
use redis::{PushInfo, RedisError, RedisResult, Value, aio::MultiplexedConnection};

use super::ChannelKind;
use crate::error;

/// The channels that the server refused to subscribe to, and its errors.
pub(super) type RefusedChannels = HashMap<String, BackendError>;

/// A connection with subscriptions to channels of one kind.
pub(super) struct Subscriptions {
    connection: MultiplexedConnection,
    kind: ChannelKind,
    leaving: Arc<Leaving>,
}

impl Subscriptions {
    pub(super) fn new(
        connection: MultiplexedConnection,
        kind: ChannelKind,
        leaving: Arc<Leaving>,
    ) -> Self {
        Self { connection, kind, leaving }
    }

    /// Subscribes to `channels`, and returns those that the server refused. After an error, the
    /// connection is of no use.
    pub(super) async fn begin(&self, channels: &[String]) -> Result<RefusedChannels, BackendError> {
        if self.kind == ChannelKind::Plain && channels.len() > 1 {
            match self.connection.clone().subscribe(channels).await {
                Ok(()) => return Ok(RefusedChannels::new()),
                // The server refuses the whole command if the user has no right to one channel.
                Err(error) => drop(self.converted(error)?),
            }
        }
        let replies = join_all(channels.iter().map(|channel| self.begin_one(channel))).await;
        let mut refused = RefusedChannels::new();
        for (channel, reply) in channels.iter().zip(replies) {
            if let Err(error) = reply {
                refused.insert(channel.clone(), self.converted(error)?);
            }
        }
        Ok(refused)
    }

    /// Subscribes to one channel. Sharded channels of different slots cannot share a command.
    async fn begin_one(&self, channel: &str) -> RedisResult<()> {
        let mut connection = self.connection.clone();
        match self.kind {
            ChannelKind::Plain => connection.subscribe(channel).await,
            ChannelKind::Sharded => {
                redis::cmd("SSUBSCRIBE").arg(channel).query_async::<Value>(&mut connection).await?;
                Ok(())
            }
        }
    }

    /// Ends the subscriptions to `channels`.
    pub(super) async fn end(&self, channels: &[String]) -> RedisResult<()> {
        if self.kind == ChannelKind::Plain {
            return self.connection.clone().unsubscribe(channels).await;
        }
        self.leaving.channels().extend(channels.iter().cloned());
        let replies = join_all(channels.iter().map(|channel| self.end_one(channel))).await;
        replies.into_iter().collect()
    }

    /// Ends the subscription to one sharded channel.
    async fn end_one(&self, channel: &str) -> RedisResult<()> {
        let mut connection = self.connection.clone();
        redis::cmd("SUNSUBSCRIBE").arg(channel).query_async::<Value>(&mut connection).await?;
        Ok(())
    }

    /// Converts the refusal of a channel.
    ///
    /// # Errors
    /// If it is not about the channel: the connection is of no use, or the server does not serve now.
    /// A node of a cluster may serve the slots of other sharded channels nevertheless.
    fn converted(&self, error: RedisError) -> Result<BackendError, BackendError> {
        let is_over = error::ends_connection(&error);
        let error = error::of_request(error, "subscribe").not_applied();
        let is_of_all = is_over || self.kind == ChannelKind::Plain && error.is_retryable();
        if is_of_all { Err(error) } else { Ok(error) }
    }

    pub(super) async fn ping(&self) -> RedisResult<()> {
        redis::cmd("PING").query_async(&mut self.connection.clone()).await
    }
}

/// The sharded channels whose subscriptions this client ends. When the server ends another, the
/// slot of that channel has moved.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Critical sections are short and do not await.
    channels: Mutex<HashSet<String>>,
}

impl Leaving {
    fn channels(&self) -> MutexGuard<'_, HashSet<String>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if this client has asked for the end of this subscription.
    pub(super) fn remove(&self, push: &PushInfo) -> bool {
        let Some(Value::BulkString(channel)) = push.data.first() else { return false };
        std::str::from_utf8(channel).is_ok_and(|channel| self.channels().remove(channel))
    }
}
