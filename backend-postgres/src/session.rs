//! [`Session`]: a session at the server, which outlives a connection that breaks unnoticed.

use tokio_postgres::{Client, Error, types::Type};

use crate::{connection::Parameter, schema::Schema};

/// A session at the server.
#[derive(Debug)]
pub(crate) struct Session {
    process: i32,
    /// When it began, in microseconds, because process ids are reused.
    began: i64,
    /// A name that no other session has.
    application: String,
}

impl Session {
    /// The session of a connection, and a text that tells its server from every other one.
    pub(crate) async fn of(client: &Client, schema: &Schema) -> Result<(Self, String), Error> {
        let sql = schema.sql("SELECT * FROM lockcore.session()");
        let row = client.query_typed_one(&sql, &[]).await?;
        let session =
            Self { process: row.try_get(0)?, began: row.try_get(1)?, application: row.try_get(2)? };
        Ok((session, row.try_get(3)?))
    }

    /// Ends it, over another connection. The server may not have heard that its client is gone.
    /// Returns `false` if it still carries out a request.
    pub(crate) async fn end(&self, client: &Client, schema: &Schema) -> Result<bool, Error> {
        let sql = schema.sql("SELECT lockcore.end_session($1, $2, $3)");
        let parameters: [Parameter<'_>; 3] = [
            (&self.process, Type::INT4),
            (&self.began, Type::INT8),
            (&self.application, Type::TEXT),
        ];
        client.query_typed_one(&sql, &parameters).await?.try_get(0)
    }
}
