//! The sweeper: what has ended is deleted from time to time.

use std::{sync::Arc, time::Duration};

use lockcore::BackendError;
use tokio_postgres::types::Type;

use crate::{
    answer::field,
    calls::{Calls, microseconds},
    connection::{Connection, Parameter},
};

/// The number of rows of each table that one statement deletes.
const SWEPT_AT_ONCE: i64 = 1_000;

/// Deletes rows that have ended, from time to time.
pub(crate) async fn keep_swept(connection: Arc<Connection>, calls: Calls, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = sweep(&connection, &calls, interval).await {
            tracing::debug!(%error, "what has ended stays in the database for now");
        }
    }
}

/// Deletes rows that have ended, unless another client has just done so. Other requests come in
/// between.
async fn sweep(
    connection: &Connection,
    calls: &Calls,
    interval: Duration,
) -> Result<(), BackendError> {
    const DOING: &str = "sweeping";
    let mut pause = microseconds(interval);
    loop {
        let parameters: [Parameter<'_>; 2] = [(&pause, Type::INT8), (&SWEPT_AT_ONCE, Type::INT8)];
        let row = connection.call_one(DOING, &calls.sweep, &parameters).await?;
        match field::<i32>(&row, 0, DOING)? {
            0 => return Ok(()),
            1 => break,
            _ => pause = 0,
        }
    }
    // In a separate transaction, because it waits for the grants that are under way, and some of
    // them may wait for a row that is being deleted.
    connection.call(DOING, &calls.raise_tokens_to_clock, &[]).await?;
    Ok(())
}
