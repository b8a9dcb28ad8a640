//! Sessions at the server, each of which outlives a connection that breaks unnoticed.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU8, Ordering},
};

use lockcore::BackendError;
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::{Client, Error, Notification, types::Type};

use crate::{
    connection::Parameter,
    schema::Schema,
    target::{Opened, Target},
};

/// The number of names to remember.
const MOST: usize = 8;

/// How many times lost sessions are looked for: when the next one begins, and some time later, in
/// case the server was still opening one of them.
const LOOKS: u8 = 2;

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

/// The sessions that one connection after another has begun. A client chooses their names before it
/// connects, so it also knows those of connections that broke before they were of any use.
#[derive(Debug)]
pub(crate) struct Begun {
    /// The last names, and at the end the one for the next session. Short critical sections without
    /// awaits.
    names: Mutex<Vec<String>>,
    /// How many times others than the current session are still to be looked for.
    looks: AtomicU8,
}

impl Begun {
    pub(crate) fn new(target: &Target) -> Self {
        Self { names: Mutex::new(vec![target.session_name()]), looks: AtomicU8::new(0) }
    }

    fn names(&self) -> MutexGuard<'_, Vec<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if others than the current session are still to be looked for.
    pub(crate) fn is_looking(&self) -> bool {
        self.looks.load(Ordering::Relaxed) > 0
    }

    /// Opens a connection for another session. Attempts that fail here share a name, by which all
    /// that they have left is found. One that succeeds uses up its name, even if the session turns
    /// out to be of no use.
    pub(crate) async fn open(
        &self,
        target: &Target,
        inbox: Option<UnboundedSender<Notification>>,
    ) -> Result<Opened, BackendError> {
        let name = self.names().last().cloned().unwrap_or_default();
        let opened = target.open(&name, inbox).await;
        let mut names = self.names();
        if opened.is_err() || names.len() > 1 {
            self.looks.store(LOOKS, Ordering::Relaxed);
        }
        if opened.is_ok() {
            names.push(target.session_name());
            let forgotten = names.len().saturating_sub(MOST);
            names.drain(..forgotten);
        }
        opened
    }

    /// Ends the other sessions, if the server lets it and if there may be any.
    pub(crate) async fn end_others(&self, client: &Client, schema: &Schema) {
        let take = |left: u8| left.checked_sub(1);
        if self.looks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return;
        }
        let names = self.names().clone();
        let sql = schema.sql("SELECT lockcore.end_sessions($1)");
        if let Err(error) = client.query_typed(&sql, &[(&names, Type::TEXT_ARRAY)]).await {
            tracing::debug!(%error, "sessions that were lost could not be ended");
        }
    }
}
