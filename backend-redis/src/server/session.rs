//! [`Session`]: a connection from the server's point of view.

use lockcore::BackendError;
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};

use super::check::Identity;
use crate::error;

/// A connection as its server knows it.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// A number that is unique among the connections of the running server.
    pub(super) id: u64,
    pub(super) server: Identity,
}

/// The number of a connection at the server. `None` if the user may not know it.
pub(super) async fn id(
    connection: &mut MultiplexedConnection,
) -> Result<Option<u64>, BackendError> {
    ask(redis::cmd("CLIENT").arg("ID"), connection).await
}

/// Ends a session, if it still exists and the user has the right to end it. It is over when this
/// returns.
pub(super) async fn end(
    id: u64,
    connection: &mut MultiplexedConnection,
) -> Result<(), BackendError> {
    let ended: Option<u64> =
        ask(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id), connection).await?;
    if ended != Some(0) {
        tracing::debug!(id, ?ended, "an earlier connection was still open at the server");
    }
    Ok(())
}

/// `None` if the server refuses the command.
async fn ask<T: FromRedisValue>(
    command: &Cmd,
    connection: &mut MultiplexedConnection,
) -> Result<Option<T>, BackendError> {
    match command.query_async(connection).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match error::of_request(error, "CLIENT").not_applied() {
            error if error.is_retryable() => Err(error),
            error => {
                tracing::debug!(%error, "connections cannot be told apart at the server");
                Ok(None)
            }
        },
    }
}
