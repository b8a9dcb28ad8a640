//! The conditions of a [`PostgresBackend`].

use std::time::Duration;

use lockcore::{
    BackendError,
    backend::{ConditionId, Conditions, Departure, Wakeups, async_trait},
};
use tokio_postgres::types::Type;

use crate::{
    PostgresBackend,
    answer::{count, field},
    calls::microseconds,
    connection::Parameter,
    error,
};

impl PostgresBackend {
    /// The channel of the waiters of a condition.
    fn channel_of_condition(&self, condition: &ConditionId) -> String {
        self.channel(&["condition", condition.lock.as_str(), condition.name.as_str()])
    }
}

#[async_trait]
impl Conditions for PostgresBackend {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        const DOING: &str = "joining a condition";
        let keep = microseconds(keep);
        let parameters: [Parameter<'_>; 4] = [
            (&condition.lock.as_str(), Type::TEXT),
            (&condition.name.as_str(), Type::TEXT),
            (&waiter, Type::TEXT),
            (&keep, Type::INT8),
        ];
        let sql = &self.calls().join;
        match self.connection(&condition.lock).call_dated(DOING, sql, &parameters).await? {
            (0, _) => Ok(()),
            _ => Err(error::unexpected(DOING)),
        }
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        const DOING: &str = "waiting for a condition";
        let keep = microseconds(keep);
        let parameters: [Parameter<'_>; 4] = [
            (&condition.lock.as_str(), Type::TEXT),
            (&condition.name.as_str(), Type::TEXT),
            (&waiter, Type::TEXT),
            (&keep, Type::INT8),
        ];
        let connection = self.connection(&condition.lock);
        let row = connection.call_one(DOING, &self.calls().stay, &parameters).await?;
        field(&row, 0, DOING)
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        const DOING: &str = "leaving a condition";
        let passes_on = departure == Departure::Cancelled;
        let parameters: [Parameter<'_>; 5] = [
            (&condition.lock.as_str(), Type::TEXT),
            (&condition.name.as_str(), Type::TEXT),
            (&waiter, Type::TEXT),
            (&passes_on, Type::BOOL),
            (&self.channel_of_condition(condition), Type::TEXT),
        ];
        let connection = self.connection(&condition.lock);
        let row = connection.call_one(DOING, &self.calls().leave, &parameters).await?;
        field(&row, 0, DOING)
    }

    async fn notify(&self, condition: &ConditionId, most: u32) -> Result<u32, BackendError> {
        const DOING: &str = "notifying a condition";
        let most = i64::from(most);
        let parameters: [Parameter<'_>; 4] = [
            (&condition.lock.as_str(), Type::TEXT),
            (&condition.name.as_str(), Type::TEXT),
            (&most, Type::INT8),
            (&self.channel_of_condition(condition), Type::TEXT),
        ];
        let connection = self.connection(&condition.lock);
        let row = connection.call_one(DOING, &self.calls().notify, &parameters).await?;
        field(&row, 0, DOING).map(count)
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(self.channel_of_condition(condition), Some(waiter.to_owned())).await
    }
}
