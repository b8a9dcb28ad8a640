//! [`Fence`]: tokens that are checked in the transaction that writes the data.

use std::time::Duration;

use lockcore::{BackendError, FencingToken, LockName};
use tokio_postgres::{GenericClient, types::Type};

use crate::{connection::Parameter, schema::Schema};

/// The `SQLSTATE` of the error with which PostgreSQL rejects an old token.
pub const STALE_TOKEN: &str = "LC001";

/// Rejects writers whose lock has since been held by another owner.
///
/// A lease cannot stop a writer that was paused for longer than its lease: it resumes and assumes
/// that it still holds the lock. The database can, if the locks are in it. The writer calls
/// [`check`](Self::check) with its token in the transaction that writes. If another owner has held
/// the lock since, the transaction fails and nothing of it is written. Otherwise, the lock is
/// granted to nobody before the transaction has ended, except to readers beside readers: whoever
/// else asks for it meanwhile is refused, as if it were held.
///
/// So a writer whose host fails in the middle of a transaction keeps the lock. The server ends the
/// session of a checked transaction that is idle for [30 s](Self::idle_limit). That a host is gone
/// while a statement runs, or an answer is sent, it notices with `tcp_keepalives_idle` and
/// `tcp_user_timeout`.
///
/// - Check before anything else. Data that was read before the check may be out of date.
/// - The transaction needs the isolation level `READ COMMITTED`. In another one, the check fails.
/// - Before the first check of a name, its holders are not recorded. Make the first check while the
///   hold lasts; it fails if the hold has ended, even if nobody else has acquired the lock. That of
///   a reader succeeds all the same while an earlier reader stays: no writer has come in between.
/// - Start no more of these transactions once the lock is [lost](lockcore::LockGuard::lost): while
///   they overlap, nobody else is granted it.
/// - A reader supersedes the writers before it, and the readers before it once it checks its own
///   token: let only one of several readers write. A reader beside a writer supersedes nobody: check
///   with the token of the writer.
/// - Tasks of one client may [hand the lock over](lockcore::LocksBuilder::hand_over) to each other,
///   which the database does not see. An earlier one of these tasks is rejected as soon as a later
///   one has called `check`.
/// - Semaphores, and a quorum with the database as a member, cannot be checked. Give a semaphore a
///   name that no lock has had: otherwise a permit that has ended can pass.
/// - The name is that of the [guard](lockcore::LockGuard::name), which contains the namespace, and
///   the token is one of the same lock: a later token of another lock turns the holder away.
/// - A check in a savepoint ends when that is rolled back.
///
/// If two transactions call `check` at the same time, the second one waits for the first to end. A
/// transaction that checks several names checks them in the order of their names, so that no two of
/// them wait for each other. Keep these transactions short.
///
/// Each name that was ever checked keeps one row in the table `fence` of the schema, and so does
/// one whose named writer was replaced by a later one while a reader was beside it.
/// [`forget`](Self::forget) it with the data that it belongs to: the next check is then a first
/// one.
///
/// # Examples
/// ```
/// use lockcore::{Locks, LockName};
/// use lockcore_postgres::{Fence, PostgresBackend, is_stale_token};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = lockcore_testkit::PostgresServer::start();
/// # let url = server.url();
/// let locks = Locks::new(PostgresBackend::connect(&url).await?);
/// let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
/// tokio::spawn(connection);
/// client.batch_execute("CREATE TABLE account (id int, balance int)").await?;
///
/// let (fence, name) = (Fence::new("lockcore")?, LockName::new("account:7")?);
/// let guard = locks.lock(name.as_str()).acquire().await?;
/// let transaction = client.transaction().await?;
/// fence.check(&transaction, &name, guard.token()).await?;
/// transaction.execute("INSERT INTO account VALUES (7, 100)", &[]).await?;
/// transaction.commit().await?;
/// let old = guard.token();
/// guard.release().await?;
///
/// // Somebody else has the lock. Whoever writes with the old token is turned away.
/// let _guard = locks.lock(name.as_str()).acquire().await?;
/// let transaction = client.transaction().await?;
/// let error = fence.check(&transaction, &name, old).await.unwrap_err();
/// assert!(is_stale_token(&error));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Fence {
    schema: Schema,
    sql: String,
    /// In milliseconds. `None` for the default.
    idle_limit: Option<i32>,
}

impl Fence {
    /// The fence of the locks in the schema `name`, which is `lockcore` unless another one was
    /// [set](crate::PostgresBackendBuilder::schema).
    ///
    /// # Errors
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration) if `name` cannot be the name of
    /// a schema.
    pub fn new(name: &str) -> Result<Self, BackendError> {
        let schema = Schema::new(name)?;
        let sql = schema.sql("SELECT lockcore.fence($1, $2)");
        Ok(Self { schema, sql, idle_limit: None })
    }

    /// Sets how long a transaction may be idle after a check or a [`forget`](Self::forget): the
    /// server ends its session then, and rolls it back. Default: 30 s. It counts in milliseconds,
    /// and zero leaves the time to the setting `idle_in_transaction_session_timeout`, which
    /// otherwise counts if it is shorter.
    ///
    /// The time begins anew with each statement, and ends with the transaction.
    #[must_use]
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        let limit = i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        self.sql = self.schema.sql(&format!("SELECT lockcore.fence($1, $2, {limit})"));
        self.idle_limit = Some(limit);
        self
    }

    /// The statement, for other clients than `tokio_postgres`: it takes the name of the lock as
    /// `text` and the token as `bigint`. Its error has the `SQLSTATE` [`STALE_TOKEN`].
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Checks in a transaction, before it reads and writes, that nobody has held the lock since the
    /// holder of `token`, and ensures this until the transaction ends. Readers beside a reader do
    /// not count.
    ///
    /// Call it in the transaction itself: on its own, it proves nothing about later writes.
    ///
    /// # Errors
    /// An error for which [`is_stale_token`] is true, if another owner has held the lock, or if
    /// this is the first check of the name and the hold has ended, and no reader stays that was
    /// there before; and any other error of the database.
    pub async fn check<C: GenericClient>(
        &self,
        transaction: &C,
        name: &LockName,
        token: FencingToken,
    ) -> Result<(), tokio_postgres::Error> {
        let token = u64::from(token).cast_signed();
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&token, Type::INT8)];
        transaction.query_typed(&self.sql, &parameters).await.map(drop)
    }

    /// Deletes what is known about the holders of a lock, in the transaction that deletes the data
    /// behind it. It waits for the transactions that have checked a token of the lock, and the lock
    /// is granted to nobody before this one has ended, except to readers beside readers. As after
    /// a check, the transaction may be idle for [30 s](Self::idle_limit). It needs the isolation
    /// level `READ COMMITTED`.
    ///
    /// Returns `false` if it is still known, because there is a reader with an earlier token: a
    /// first check beside it would let in whoever had the lock in between. A reader whose lease has
    /// ended without a release counts until a client has swept it away, usually within some
    /// seconds. Call this again later.
    ///
    /// # Errors
    /// Any error of the database.
    pub async fn forget<C: GenericClient>(
        &self,
        transaction: &C,
        name: &LockName,
    ) -> Result<bool, tokio_postgres::Error> {
        let sql = self.schema.sql(&match self.idle_limit {
            Some(limit) => format!("SELECT lockcore.forget_fence($1, {limit})"),
            None => "SELECT lockcore.forget_fence($1)".to_owned(),
        });
        let rows = transaction.query_typed(&sql, &[(&name.as_str(), Type::TEXT)]).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0))
    }
}

/// Returns `true` if PostgreSQL has rejected an old token.
#[must_use]
pub fn is_stale_token(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == STALE_TOKEN)
}
