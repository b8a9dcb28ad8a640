//! The latches of a [`PostgresBackend`].

use lockcore::{
    BackendError, LockName,
    backend::{Latches, Wakeups, async_trait},
};
use tokio_postgres::types::Type;

use crate::{
    PostgresBackend,
    answer::{answer, count},
    connection::Parameter,
    error,
};

/// The number in an answer, unless the name is in use as something else.
fn number((answer, number): (i32, i64), doing: &str) -> Result<i64, BackendError> {
    match answer {
        0 => Ok(number),
        4 => Err(error::wrong_kind(number)),
        _ => Err(error::unexpected(doing)),
    }
}

impl PostgresBackend {
    async fn change_latch(
        &self,
        doing: &str,
        name: &LockName,
        set_to: Option<u32>,
        id: &str,
    ) -> Result<i64, BackendError> {
        let set_to = set_to.map(i64::from);
        let parameters: [Parameter<'_>; 4] = [
            (&name.as_str(), Type::TEXT),
            (&set_to, Type::INT8),
            (&id, Type::TEXT),
            (&self.channel_of(name), Type::TEXT),
        ];
        let sql = &self.calls().change_latch;
        number(self.connection(name).call_dated(doing, sql, &parameters).await?, doing)
    }

    async fn read_latch(
        &self,
        doing: &str,
        name: &LockName,
        opens: bool,
    ) -> Result<u32, BackendError> {
        let parameters: [Parameter<'_>; 3] = [
            (&name.as_str(), Type::TEXT),
            (&opens, Type::BOOL),
            (&self.channel_of(name), Type::TEXT),
        ];
        let sql = &self.calls().read_latch;
        let row = self.connection(name).call_one(doing, sql, &parameters).await?;
        number(answer(&row, doing)?, doing).map(count)
    }
}

#[async_trait]
impl Latches for PostgresBackend {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let set = self.change_latch("setting a latch", name, Some(count), id).await?;
        Ok(set == 1)
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        self.change_latch("counting down a latch", name, None, id).await.map(count)
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        self.read_latch("reading a latch", name, false).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        self.read_latch("opening a latch", name, true).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        self.listen(self.channel_of(name), None).await
    }
}
