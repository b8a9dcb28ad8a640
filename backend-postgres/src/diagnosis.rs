//! The diagnosis of the server of a backend.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join3;
use lockcore::{BackendError, BackendErrorKind, Diagnosis, Finding, Severity};
use tokio::sync::mpsc;
use tokio_postgres::{Notification, Row, types::FromSql};
use uuid::Uuid;

use crate::{
    PostgresBackend, error,
    schema::{BEGIN, OLDEST, Schema},
    target::{Opened, Target},
};

/// The server to examine.
#[derive(Clone, Debug)]
pub(crate) struct Patient {
    pub(crate) requests: Target,
    pub(crate) wakeups: Target,
    pub(crate) schema: Schema,
    pub(crate) response_timeout: Duration,
}

/// The largest allowed difference in seconds. Synchronized clocks differ by milliseconds.
const MOST_APART: f64 = 1.0;
const PINGS: usize = 20;
/// The time after which no more pings are sent.
const LONGEST_PINGS: Duration = Duration::from_secs(5);
/// Thresholds of the round trip, for the median and for the slowest: for a problem, and for advice.
const SLOW: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
const SLUGGISH: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How long a message to itself may take.
const ARRIVAL: Duration = Duration::from_secs(1);

const SETTINGS: &str = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
    current_setting('default_transaction_read_only'), current_setting('fsync'), \
    current_setting('full_page_writes'), current_setting('server_version'), \
    current_setting('default_transaction_isolation')";

/// Without the right to see the sessions of others, `pg_stat_activity` does not show their kind,
/// but `pg_stat_database` still shows their number.
const CONNECTIONS: &str = "SELECT CASE \
    WHEN pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') \
    THEN (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') \
    ELSE (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database) END, \
    current_setting('max_connections')::bigint \
    - current_setting('superuser_reserved_connections')::bigint \
    - coalesce(current_setting('reserved_connections', true), '0')::bigint";

/// Long transactions, which prevent the clean-up of deleted rows in the same database.
const LONG_TRANSACTIONS: &str = "SELECT count(*), \
    coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))::bigint, 0), \
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') \
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
    AND backend_type = 'client backend' AND xact_start < clock_timestamp() - interval '10 min'";

/// Sessions that have checked a token, and have then left their transaction open. One that has just
/// paused is not meant.
const FENCES: &str = "SELECT count(*), \
    coalesce(max(extract(epoch FROM clock_timestamp() - state_change))::bigint, 0), \
    coalesce(string_agg(pid::text, ', ' ORDER BY pid), '') FROM pg_stat_activity \
    WHERE datname = current_database() AND state LIKE 'idle in transaction%' \
    AND state_change < clock_timestamp() - interval '5 s' AND pid IN (SELECT pid FROM pg_locks \
        WHERE locktype = 'advisory' AND classid = 1819239277 AND granted)";

/// Transactions with a fence that were prepared for a second phase. They belong to no session.
const PREPARED: &str = "SELECT count(*), \
    coalesce(string_agg(quote_literal(gid), ', ' ORDER BY gid), '') FROM pg_prepared_xacts \
    WHERE database = current_database() AND prepared < clock_timestamp() - interval '5 s' \
    AND '-1/' || transaction::text IN (SELECT virtualtransaction FROM pg_locks \
        WHERE locktype = 'advisory' AND classid = 1819239277 AND granted)";

const UNLOGGED: &str = "SELECT count(*), coalesce(string_agg(relname, ', ' ORDER BY relname), '') \
    FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) \
    AND relpersistence = 'u' AND relkind = 'r'";

/// The tables that this role may not write, and the sequences that it may not use.
const NO_RIGHTS: &str = "SELECT count(*), coalesce(string_agg(relname, ', ' ORDER BY relname), '') \
    FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) \
    AND CASE relkind \
        WHEN 'r' THEN NOT (has_table_privilege(oid, 'SELECT') \
            AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE') \
            AND has_table_privilege(oid, 'DELETE')) \
        WHEN 'S' THEN relname = 'token' AND NOT (has_sequence_privilege(oid, 'USAGE') \
            AND has_sequence_privilege(oid, 'SELECT') AND has_sequence_privilege(oid, 'UPDATE')) \
        ELSE false END";

const SCHEMA: &str = "SELECT count(*), \
    coalesce(bool_and(has_schema_privilege(oid, 'USAGE')), false), \
    has_database_privilege(current_database(), 'CREATE') \
    FROM pg_namespace WHERE nspname = $1";

impl PostgresBackend {
    /// Checks whether the server is fit for locks: version, role, durability, clock, latency,
    /// connections, long and fenced transactions, rights, messages, and locks without an end.
    ///
    /// It uses connections of its own and writes nothing. Each request has the limit of
    /// [`response_timeout`](crate::PostgresBackendBuilder::response_timeout).
    ///
    /// [`PostgresBackendBuilder::diagnose`](crate::PostgresBackendBuilder::diagnose) does the same
    /// with a server that `connect` would refuse.
    ///
    /// # Errors
    /// The error of the attempt to connect, and [`Timeout`](BackendErrorKind::Timeout) if the
    /// server stops answering.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore_postgres::PostgresBackend;
    ///
    /// # async fn check() -> Result<(), lockcore::BackendError> {
    /// let backend = PostgresBackend::connect("postgresql://shop@db.internal/shop").await?;
    /// for finding in backend.diagnose().await?.findings() {
    ///     eprintln!("{finding}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(&self) -> Result<Diagnosis, BackendError> {
        diagnose(self.patient()).await
    }
}

/// Opens a connection to the server that takes writes, or to a replica if there is none.
async fn open(
    target: &Target,
    inbox: Option<mpsc::UnboundedSender<Notification>>,
) -> Result<Opened, BackendError> {
    let name = target.session_name();
    match target.open(&name, inbox.clone()).await {
        Err(error) if error.kind() == BackendErrorKind::ReadOnly => {
            target.of_any_role().open(&name, inbox).await
        }
        opened => opened,
    }
}

/// Examines the server of `patient`.
pub(crate) async fn diagnose(patient: &Patient) -> Result<Diagnosis, BackendError> {
    let target = &patient.requests;
    let Opened { client, driver, .. } = open(target, None).await?;
    let mut session = Session {
        client,
        _driver: driver,
        address: target.address().to_owned(),
        limit: patient.response_timeout,
        diagnosis: Diagnosis::new(),
    };
    let is_replica = session.settings().await?;
    session.clock().await?;
    session.latency().await?;
    session.connections().await?;
    session.transactions().await?;
    session.fences().await?;
    if !is_replica {
        session.schema(&patient.schema).await?;
        session.messages(&patient.wakeups).await?;
    }
    Ok(session.diagnosis)
}

/// The connection that the server is examined on.
struct Session {
    client: tokio_postgres::Client,
    _driver: crate::target::Driver,
    address: String,
    limit: Duration,
    diagnosis: Diagnosis,
}

impl Session {
    /// Asks for one row, in one round trip. The inner error is a refusal.
    ///
    /// Nothing is looked for in other schemas: an operator there would run with the rights of this
    /// role, which may be those of a superuser.
    async fn ask(
        &self,
        sql: &str,
        schema: Option<&str>,
    ) -> Result<Result<Row, BackendError>, BackendError> {
        const DOING: &str = "looking at the server";
        let name = schema.unwrap_or_default();
        let parameters: &[crate::connection::Parameter<'_>] = match schema {
            Some(_) => &[(&name, tokio_postgres::types::Type::TEXT)],
            None => &[],
        };
        let asked = join3(
            self.client.batch_execute(BEGIN),
            self.client.query_typed_one(sql, parameters),
            self.client.batch_execute("COMMIT"),
        );
        let Ok((_, row, _)) = tokio::time::timeout(self.limit, asked).await else {
            return Err(error::no_answer(DOING, &self.address, self.limit).not_applied());
        };
        match row.map_err(|error| error::of_request(error, DOING, &self.address)) {
            Ok(row) => Ok(Ok(row)),
            Err(error) if error.kind() == BackendErrorKind::Connection => Err(error.not_applied()),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Asks for one row. If the server refuses, this adds a finding of an unknown state, and returns
    /// `None`.
    async fn look(
        &mut self,
        (id, what): (&'static str, &str),
        sql: &str,
        schema: Option<&str>,
    ) -> Result<Option<Row>, BackendError> {
        Ok(match self.ask(sql, schema).await? {
            Ok(row) => Some(row),
            Err(error) => {
                let found = Finding::new(id, Severity::Unknown, error.to_string())
                    .because(format!("{what} could not be looked at"))
                    .to_do("grant the role pg_read_all_stats and pg_read_all_settings");
                self.diagnosis.add(found);
                None
            }
        })
    }

    fn problem(&mut self, id: &'static str, seen: String, reason: &str, advice: &str) {
        let found = Finding::new(id, Severity::Problem, seen).because(reason).to_do(advice);
        self.diagnosis.add(found);
    }

    fn advice(&mut self, id: &'static str, seen: String, reason: &str, advice: &str) {
        let found = Finding::new(id, Severity::Advice, seen).because(reason).to_do(advice);
        self.diagnosis.add(found);
    }

    /// Checks the settings. Returns `true` if the server takes no writes.
    async fn settings(&mut self) -> Result<bool, BackendError> {
        let address = self.address.clone();
        let Some(row) =
            self.look(("settings", "version, role and settings"), SETTINGS, None).await?
        else {
            return Ok(false);
        };
        let (version, is_replica) = (field::<i32>(&row, 0)?, field::<bool>(&row, 1)?);
        let text = |at| field::<String>(&row, at);
        let is_read_only = text(2)? == "on";
        if version < OLDEST {
            self.problem(
                "version",
                format!("{address} has version {}", text(5)?),
                "the backend needs PostgreSQL 13",
                "upgrade",
            );
        }
        if is_replica {
            self.problem(
                "replica",
                format!("{address} is a replica"),
                "it takes no writes, and so no locks",
                "connect to the primary, or name all servers in the URL: the backend uses the one \
                 that takes writes",
            );
        } else if is_read_only {
            self.problem(
                "read-only",
                format!("{address} has default_transaction_read_only on"),
                "no lock can be acquired",
                "set it to off for the role of the locks",
            );
        }
        let isolation = text(6)?;
        if isolation != "read committed" {
            self.problem(
                "isolation",
                format!("{address} has default_transaction_isolation {isolation}"),
                "no lock can be acquired",
                "set it to 'read committed' for the role of the locks",
            );
        }
        for (at, name) in [(3, "fsync"), (4, "full_page_writes")] {
            if text(at)? == "off" {
                self.problem(
                    "durability",
                    format!("{address} has {name} off"),
                    "a crash of the host can lose locks that are held, or the whole database",
                    "set fsync and full_page_writes to on",
                );
            }
        }
        Ok(is_replica || is_read_only)
    }

    async fn clock(&mut self) -> Result<(), BackendError> {
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..3 {
            let (asked, began) = (SystemTime::now(), Instant::now());
            let sql = "SELECT extract(epoch FROM clock_timestamp())::float8";
            let Ok(row) = self.ask(sql, None).await? else { return Ok(()) };
            let uncertain = began.elapsed() / 2;
            let read = (asked + uncertain).duration_since(UNIX_EPOCH).unwrap_or_default();
            let ahead = field::<f64>(&row, 0)? - read.as_secs_f64();
            if best.is_none_or(|(_, least)| uncertain.as_secs_f64() < least) {
                best = Some((ahead, uncertain.as_secs_f64()));
            }
        }
        if let Some((ahead, uncertain)) = best
            && ahead.abs() - uncertain > MOST_APART
        {
            let direction = if ahead > 0.0 { "ahead of" } else { "behind" };
            let seen = format!(
                "the clock of {} is {:.1} s (give or take {uncertain:.3} s) {direction} that of \
                 this host",
                self.address,
                ahead.abs()
            );
            self.problem(
                "clock",
                seen,
                "leases are measured by the server's clock: when it is set, they end earlier or \
                 later, and after a failover to a server whose clock is right, tokens may repeat",
                "synchronize the clocks of both hosts, with chrony for example",
            );
        }
        Ok(())
    }

    async fn latency(&mut self) -> Result<(), BackendError> {
        let (mut times, began) = (Vec::with_capacity(PINGS), Instant::now());
        while times.len() < PINGS && began.elapsed() < LONGEST_PINGS {
            let asked = Instant::now();
            let _ = self.ask("SELECT 1", None).await?;
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        let (Some(middle), Some(slowest)) = (times.get(times.len() / 2), times.last()) else {
            return Ok(());
        };
        let is_at_least = |[usual, most]: [Duration; 2]| *middle >= usual || *slowest >= most;
        let severity = match () {
            () if is_at_least(SLOW) => Severity::Problem,
            () if is_at_least(SLUGGISH) => Severity::Advice,
            () => return Ok(()),
        };
        let seen = format!(
            "{} answers after a median of {:.1} ms, and at most {:.1} ms",
            self.address,
            middle.as_secs_f64() * 1e3,
            slowest.as_secs_f64() * 1e3
        );
        let found = Finding::new("latency", severity, seen)
            .because(
                "each acquisition and each release takes a round trip, and a renewal that comes \
                 too late loses the lock",
            )
            .to_do("look for a busy host or disk, and a network between that is far or full");
        self.diagnosis.add(found);
        Ok(())
    }

    async fn connections(&mut self) -> Result<(), BackendError> {
        let Some(row) =
            self.look(("connections", "the number of connections"), CONNECTIONS, None).await?
        else {
            return Ok(());
        };
        let (now, most) = (field::<i64>(&row, 0)?, field::<i64>(&row, 1)?);
        if now * 10 >= most * 9 {
            self.problem(
                "connections",
                format!(
                    "{} has {now} of at most {most} connections that are not reserved",
                    self.address
                ),
                "further ones are refused, also those that reconnect to renew their locks",
                "use a pooler for requests, give each backend fewer connections, or raise \
                 max_connections",
            );
        }
        Ok(())
    }

    async fn transactions(&mut self) -> Result<(), BackendError> {
        let Some(row) =
            self.look(("long-transactions", "long transactions"), LONG_TRANSACTIONS, None).await?
        else {
            return Ok(());
        };
        if !field::<bool>(&row, 2)? {
            let seen = format!("{} shows this role its own sessions only", self.address);
            let found = Finding::new("long-transactions", Severity::Unknown, seen)
                .because(
                    "long transactions of others, which make names slow that are locked often, \
                     and those that keep a lock with a fence could not be looked for",
                )
                .to_do("grant the role pg_read_all_stats, or look as one that has it");
            self.diagnosis.add(found);
        }
        let (count, longest) = (field::<i64>(&row, 0)?, field::<i64>(&row, 1)?);
        if count > 0 {
            self.advice(
                "long-transactions",
                format!(
                    "{} has {count} transactions in this database that run for more than 10 min, \
                     the longest for {} min",
                    self.address,
                    longest / 60
                ),
                "as long as one does, nothing that others delete is cleared away, and a name that \
                 is locked often becomes slow",
                "end them (pg_stat_activity), set idle_in_transaction_session_timeout, or give \
                 the locks a database of their own",
            );
        }
        Ok(())
    }

    async fn fences(&mut self) -> Result<(), BackendError> {
        let Some(row) = self.look(("fences", "fenced transactions"), FENCES, None).await? else {
            return Ok(());
        };
        let (count, longest) = (field::<i64>(&row, 0)?, field::<i64>(&row, 1)?);
        if count > 0 {
            self.problem(
                "fences",
                format!(
                    "{} has {count} sessions that are idle in a transaction with a fence, the \
                     longest for {longest} s: {}",
                    self.address,
                    field::<String>(&row, 2)?
                ),
                "the locks whose tokens they have checked are granted to nobody",
                "end the sessions (pg_terminate_backend), keep fenced transactions short, and keep \
                 their limit (Fence::idle_limit)",
            );
        }
        let Some(row) = self.look(("fences", "prepared transactions"), PREPARED, None).await?
        else {
            return Ok(());
        };
        let (count, names) = (field::<i64>(&row, 0)?, field::<String>(&row, 1)?);
        if count > 0 {
            self.problem(
                "fences",
                format!("{} has {count} prepared transactions with a fence: {names}", self.address),
                "the locks whose tokens they have checked are granted to nobody, also after a \
                 restart of the server",
                "COMMIT PREPARED or ROLLBACK PREPARED them, and prepare no fenced transactions",
            );
        }
        Ok(())
    }

    async fn schema(&mut self, schema: &Schema) -> Result<(), BackendError> {
        let (address, name) = (self.address.clone(), schema.name());
        let Some(row) = self.look(("schema", "the schema"), SCHEMA, Some(name)).await? else {
            return Ok(());
        };
        let (exists, may_use) = (field::<i64>(&row, 0)? > 0, field::<bool>(&row, 1)?);
        const GRANT: &str = "grant USAGE on the schema, all rights to its tables, and USAGE, \
                             SELECT and UPDATE on its sequences";
        if !exists {
            if !field::<bool>(&row, 2)? {
                self.problem(
                    "rights",
                    format!("{address} has no schema `{name}`, and the role may not create it"),
                    "no lock can be acquired",
                    "run what `PostgresBackend::schema_script` returns, or grant CREATE on the \
                     database",
                );
            }
            return Ok(());
        }
        if !may_use {
            let seen = format!("the role may not use the schema `{name}` at {address}");
            self.problem("rights", seen, "no lock can be acquired", GRANT);
            return Ok(());
        }
        for (id, sql) in [("rights", NO_RIGHTS), ("unlogged", UNLOGGED)] {
            let Ok(row) = self.ask(sql, Some(name)).await? else { continue };
            if field::<i64>(&row, 0)? == 0 {
                continue;
            }
            let tables = field::<String>(&row, 1)?;
            match id {
                "rights" => self.problem(
                    id,
                    format!("the role lacks rights in the schema `{name}` at {address}: {tables}"),
                    "some or all locks cannot be acquired",
                    GRANT,
                ),
                _ => self.problem(
                    id,
                    format!("unlogged tables in the schema `{name}` at {address}: {tables}"),
                    "a crash empties them, and no replica has them: all locks are lost",
                    "alter each table: SET LOGGED",
                ),
            }
        }
        self.endless(schema).await
    }

    async fn endless(&mut self, schema: &Schema) -> Result<(), BackendError> {
        let sql = schema.sql(
            "SELECT count(*), coalesce(string_agg(quote_literal(name), ', '), '') FROM (SELECT \
             name FROM lockcore.hold WHERE until > clock_timestamp() + interval '366 days' \
             ORDER BY name LIMIT 5) AS endless",
        );
        let row = match self.ask(&sql, None).await? {
            Ok(row) => row,
            Err(error) => {
                // Missing rights and a missing schema were found already.
                tracing::debug!(%error, "locks without an end could not be looked for");
                return Ok(());
            }
        };
        if field::<i64>(&row, 0)? > 0 {
            self.problem(
                "endless",
                format!("{} has locks without an end: {}", self.address, field::<String>(&row, 1)?),
                "if their holder has died, nobody ever gets in",
                "find out who holds each (lockctl show), and free it if its holder is gone \
                 (lockctl release --force)",
            );
        }
        Ok(())
    }

    /// Adds the finding that no wake-up can be heard.
    fn unheard(&mut self, seen: String) {
        self.problem(
            "messages",
            seen,
            "nobody is woken by a release: each waiter looks every 10 s, and when the lease of \
             the holder ends",
            "free connections, or check the address for wake-ups (listen_url)",
        );
    }

    /// Sends a message to itself, as a release does to wake a waiter.
    async fn messages(&mut self, wakeups: &Target) -> Result<(), BackendError> {
        const DOING: &str = "listening";
        let (sender, mut inbox) = mpsc::unbounded_channel();
        let opened = open(wakeups, Some(sender)).await;
        let Opened { client, driver, .. } = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.unheard(format!("there is no connection for wake-ups ({error})"));
                return Ok(());
            }
        };
        let channel = format!("lockcore_probe_{}", Uuid::new_v4().simple());
        let listen = format!("LISTEN {channel}");
        let listened = tokio::time::timeout(self.limit, client.batch_execute(&listen));
        match listened.await {
            Err(_) => return Err(error::no_answer(DOING, wakeups.address(), self.limit)),
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = error::of_request(error, DOING, wakeups.address());
                if error.kind() == BackendErrorKind::Connection {
                    return Err(error.not_applied());
                }
                self.unheard(error.to_string());
                return Ok(());
            }
        }
        let notify = format!("SELECT pg_notify('{channel}', '')::text");
        let sent = self.ask(&notify, None).await?;
        let heard = match sent {
            Ok(_) => tokio::time::timeout(ARRIVAL, inbox.recv()).await.is_ok_and(|it| it.is_some()),
            Err(_) => false,
        };
        // A connection that a pooler lends to others must not keep listening.
        let _ = tokio::time::timeout(self.limit, client.batch_execute("UNLISTEN *")).await;
        drop((client, driver));
        if !heard {
            self.problem(
                "messages",
                format!("a message that was sent to {} did not come back", wakeups.address()),
                "nobody is woken by a release; behind a pooler in transaction mode, LISTEN \
                 succeeds and nothing is ever heard",
                "give the server's own address for wake-ups (listen_url), or use a pooler in \
                 session mode",
            );
        }
        Ok(())
    }
}

fn field<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, BackendError> {
    row.try_get(at).map_err(|_| error::unexpected("looking at the server").not_applied())
}
