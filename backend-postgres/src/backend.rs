//! [`PostgresBackend`].

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lockcore::{
    BackendError, FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        HoldId, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use tokio::{task::JoinHandle, time::Instant};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{
    builder::{ConnectSettings, PostgresBackendBuilder},
    calls::{Calls, microseconds},
    channel::{channel, place_of},
    connection::{Connection, Parameter, Path},
    diagnosis::Patient,
    error,
    listener::{ListenerProgress, WakeupListener},
    past::Past,
    schema::Schema,
};

/// The number of holds that one statement renews. Each name in it takes an entry in the server's
/// lock table, which has some 6,400 with the default settings.
const RENEWED_TOGETHER: usize = 128;

/// The most tokens of one grant, which are drawn 64 at a time.
const MOST_TOKENS: u32 = 1 << 16;

/// The number of rows of each table that one statement deletes.
const SWEPT_AT_ONCE: i64 = 1_000;

/// The longest id of a hold, in bytes: it has to fit into an index and into a notification.
const LONGEST_ID: usize = 1_024;

/// Locks in a PostgreSQL database.
///
/// Leases are measured by the server's clock. Clones share their connections.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_postgres::PostgresBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = lockcore_testkit::PostgresServer::start();
/// # let url = server.url();
/// // postgresql://user:password@host:port/database
/// let locks = Locks::new(PostgresBackend::connect(url).await?);
///
/// let guard = locks.lock("order:42").acquire().await?;
/// println!("fencing token {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresBackend {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Vec<Arc<Connection>>,
    /// The servers that the connections have led to.
    past: Arc<Past>,
    listener: WakeupListener,
    progress: ListenerProgress,
    calls: Calls,
    schema: Schema,
    sweeper: JoinHandle<()>,
    patient: Patient,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("schema", &self.inner.schema)
            .field("connections", &self.inner.connections)
            .field("listener", &self.inner.listener)
            .finish_non_exhaustive()
    }
}

impl PostgresBackend {
    /// Connects to the database at `url`, `postgresql://user:password@host:port/database`, and
    /// creates the schema `lockcore` there if it is missing.
    ///
    /// # Errors
    /// An error if the server cannot be reached, rejects the credentials or is a replica, or if the
    /// role lacks a right. The error names the address.
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder(url).connect().await
    }

    /// More settings for the database at `url`.
    pub fn builder(url: impl Into<String>) -> PostgresBackendBuilder {
        PostgresBackendBuilder::new(url.into())
    }

    /// The SQL that creates a schema of this name with all tables and functions, for databases in
    /// which the role of the locks must not create anything.
    ///
    /// # Errors
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration) if `name` cannot be the name of
    /// a schema.
    pub fn schema_script(name: &str) -> Result<String, BackendError> {
        Schema::new(name).map(|schema| schema.script())
    }

    /// The number of channels that this client listens to: one for each lock, latch and condition
    /// that is waited for.
    ///
    /// Tests use it to check that nothing is left behind.
    #[must_use]
    pub fn channels_in_use(&self) -> usize {
        self.inner.listener.channels()
    }

    pub(crate) async fn open(settings: ConnectSettings) -> Result<Self, BackendError> {
        let patient = settings.patient();
        let ConnectSettings { requests, wakeups, schema, response_timeout, .. } = settings;
        schema.prepare(&requests, settings.migrates).await?;
        let calls = Calls::new(&schema);
        let path = match settings.is_pooled {
            true => Path::Pooled,
            false => Path::Direct(calls.often()),
        };
        let past = Arc::<Past>::default();
        let connect = |_| {
            let (target, schema, past) = (requests.clone(), schema.clone(), past.clone());
            Arc::new(Connection::start(target, schema, response_timeout, path.clone(), past))
        };
        let connections: Vec<_> = (0..settings.connections).map(connect).collect();
        for connection in &connections {
            connection.connected().await?;
        }
        let Some(first) = connections.first().cloned() else {
            return Err(error::configuration("there are no connections"));
        };
        let pulse = channel(&[schema.name(), "pulse"]);
        let (listener, progress) =
            WakeupListener::start(wakeups, first.clone(), pulse, response_timeout);
        let sweeper = keep_swept(first, calls.clone(), settings.sweep_interval);
        let sweeper = tokio::spawn(sweeper);
        let inner =
            Inner { connections, past, listener, progress, calls, schema, sweeper, patient };
        let backend = Self { inner: Arc::new(inner) };
        backend.inner.progress.started().await?;
        Ok(backend)
    }

    pub(crate) fn patient(&self) -> &Patient {
        &self.inner.patient
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.inner.calls
    }

    /// The connection for all requests for this name.
    pub(crate) fn connection(&self, name: &LockName) -> &Connection {
        self.connection_at(name.as_str())
    }

    /// The connection for all requests with this text as their key.
    pub(crate) fn connection_at(&self, what: &str) -> &Connection {
        let connections = &self.inner.connections;
        &connections[place_of(what, connections.len())]
    }

    /// The channel of the waiters for a lock or a latch.
    pub(crate) fn channel_of(&self, name: &LockName) -> String {
        self.channel(&["name", name.as_str()])
    }

    /// The channel for what `parts` name, in this schema.
    pub(crate) fn channel(&self, parts: &[&str]) -> String {
        channel(&[&[self.inner.schema.name()], parts].concat())
    }

    pub(crate) async fn listen(
        &self,
        channel: String,
        only: Option<String>,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let Inner { listener, progress, .. } = &*self.inner;
        Ok(Box::new(listener.subscribe(progress, channel, only).await?))
    }

    /// Renews holds whose names share a connection. Both statements together take no longer than one
    /// answer may: the caller waits for all holds, and has to repeat what fails.
    async fn renew_some(
        &self,
        connection: &Connection,
        holds: &[&RenewRequest],
    ) -> Vec<RenewOutcome> {
        let limit = connection.limit();
        let (one_by_one, mut outcomes) = match holds {
            [_] => (vec![0], vec![RenewOutcome::NotHeld]),
            _ => match self.renew_many(connection, holds, limit).await {
                Ok(answers) => {
                    let busy = |at: &usize| answers[*at].is_none();
                    let busy = (0..holds.len()).filter(busy).collect();
                    let outcome = |answer: &Option<bool>| renewal(answer.unwrap_or_default());
                    (busy, answers.iter().map(outcome).collect())
                }
                Err(error) => {
                    let failed = vec![RenewOutcome::Failed(error); holds.len()];
                    (Vec::new(), failed)
                }
            },
        };
        let renewals = one_by_one.iter().map(|at| self.renew_one(connection, holds[*at], limit));
        for (at, answer) in one_by_one.iter().zip(join_all(renewals).await) {
            outcomes[*at] = answer.unwrap_or_else(RenewOutcome::Failed);
        }
        outcomes
    }

    /// Renews holds in one statement, except those whose names it would have to wait for.
    async fn renew_many(
        &self,
        connection: &Connection,
        holds: &[&RenewRequest],
        limit: Instant,
    ) -> Result<Vec<Option<bool>>, BackendError> {
        const DOING: &str = "renewing holds";
        let names: Vec<&str> = holds.iter().map(|hold| hold.name.as_str()).collect();
        let ids: Vec<&str> = holds.iter().map(|hold| hold.hold.id()).collect();
        let leases: Vec<i64> = holds.iter().map(|hold| microseconds(hold.lease)).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&names, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY), (&leases, Type::INT8_ARRAY)];
        let sql = &self.calls().renew_many;
        let row = connection.call_one_by(limit, DOING, sql, &parameters).await?;
        let renewed: Vec<Option<bool>> = field(&row, 0, DOING)?;
        if renewed.len() != holds.len() {
            return Err(error::unexpected(DOING));
        }
        Ok(renewed)
    }

    async fn renew_one(
        &self,
        connection: &Connection,
        hold: &RenewRequest,
        limit: Instant,
    ) -> Result<RenewOutcome, BackendError> {
        const DOING: &str = "renewing a hold";
        let (name, id, lease) = (hold.name.as_str(), hold.hold.id(), microseconds(hold.lease));
        let parameters: [Parameter<'_>; 3] =
            [(&name, Type::TEXT), (&id, Type::TEXT), (&lease, Type::INT8)];
        let sql = &self.calls().renew;
        let row = connection.call_one_by(limit, DOING, sql, &parameters).await?;
        field(&row, 0, DOING).map(renewal)
    }
}

fn renewal(is_held: bool) -> RenewOutcome {
    match is_held {
        true => RenewOutcome::Renewed,
        false => RenewOutcome::NotHeld,
    }
}

/// Deletes rows that have ended, from time to time.
async fn keep_swept(connection: Arc<Connection>, calls: Calls, interval: Duration) {
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

/// A field of an answer.
pub(crate) fn field<'a, T: FromSql<'a>>(
    row: &'a Row,
    at: usize,
    doing: &str,
) -> Result<T, BackendError> {
    row.try_get(at).map_err(|error| error::unexpected(doing).with_source(error))
}

/// An answer that consists of a code and a number.
pub(crate) fn answer(row: &Row, doing: &str) -> Result<(i32, i64), BackendError> {
    Ok((field(row, 0, doing)?, field::<Option<i64>>(row, 1, doing)?.unwrap_or_default()))
}

/// A count in an answer, capped at the greatest possible one.
pub(crate) fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// The number of a mode that this backend supports.
fn number_of(mode: Mode) -> Result<i32, BackendError> {
    Ok(match mode {
        Mode::Exclusive => 1,
        Mode::Fair => 2,
        Mode::Read => 3,
        Mode::Write => 4,
        Mode::Permit { plain: false, .. } => 5,
        Mode::Permit { plain: true, .. } => 6,
        _ => return Err(BackendError::unsupported(format_args!("locks in {mode} mode"))),
    })
}

fn mode_of(number: i32, permits: u32, most: u32) -> Option<Mode> {
    Some(match number {
        1 => Mode::Exclusive,
        2 => Mode::Fair,
        3 => Mode::Read,
        4 => Mode::Write,
        5 => Mode::permits(permits, most),
        6 => Mode::plain_permits(permits, most),
        _ => return None,
    })
}

/// A token as the database stores it. A token that is too large becomes one that the database
/// cannot exceed, and so refuses.
fn signed(token: FencingToken) -> i64 {
    i64::try_from(u64::from(token)).unwrap_or(i64::MAX)
}

fn check_id(hold: &HoldId) -> Result<(), BackendError> {
    if hold.id().len() <= LONGEST_ID {
        return Ok(());
    }
    Err(error::configuration(format!("the id of a hold is longer than {LONGEST_ID} bytes")))
}

fn outcome((answer, number): (i32, i64), doing: &str) -> Result<AcquireOutcome, BackendError> {
    Ok(match answer {
        0 => AcquireOutcome::Acquired { token: FencingToken::from(number.cast_unsigned()) },
        1 => {
            let remaining = Duration::from_micros(number.max(0).cast_unsigned());
            AcquireOutcome::Held { remaining: Some(remaining) }
        }
        2 => AcquireOutcome::NotHeld,
        3 => AcquireOutcome::TooMany { limit: count(number) },
        4 => return Err(error::wrong_kind(number)),
        5 => return Err(error::undone()),
        _ => return Err(error::unexpected(doing)),
    })
}

/// The state of a name, collected row by row.
#[derive(Default)]
struct Inspection {
    holders: Vec<Holder>,
    waiters: Vec<String>,
    remaining: Option<Duration>,
    taken: u32,
    /// The number of permits that was set, and the one that the first holder gave.
    set: Option<u32>,
    said: Option<u32>,
}

impl Inspection {
    fn add(&mut self, row: &Row) -> Result<(), BackendError> {
        const DOING: &str = "inspecting a lock";
        let owner: String = field(row, 1, DOING)?;
        let counts = [3, 4, 5].map(|at| field::<i64>(row, at, DOING).map(count));
        let [held, permits, most] = counts;
        let (held, permits, most) = (held?, permits?, most?);
        match field::<i32>(row, 0, DOING)? {
            0 => {
                let mode = mode_of(field(row, 2, DOING)?, permits, most)
                    .ok_or_else(|| error::unexpected(DOING))?;
                if matches!(mode, Mode::Permit { .. }) {
                    self.taken = self.taken.saturating_add(permits);
                    self.said.get_or_insert(most);
                }
                let remaining = field::<i64>(row, 6, DOING)?.max(0).cast_unsigned();
                self.remaining = self.remaining.max(Some(Duration::from_micros(remaining)));
                self.holders.push(Holder::new(owner, mode, held));
            }
            1 => self.waiters.push(owner),
            _ => self.set = Some(permits),
        }
        Ok(())
    }

    fn state(self) -> LockState {
        let state = LockState::held(self.holders, self.remaining).with_waiters(self.waiters);
        match self.set.or(self.said) {
            Some(total) => state.with_permits(total.saturating_sub(self.taken), Some(total)),
            None => state,
        }
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
            | Capabilities::FAIR
            | Capabilities::READ_WRITE
            | Capabilities::PERMITS
            | Capabilities::HAND_OVER
            | Capabilities::DIRECT_GRANT
            | Capabilities::PROPOSED_TOKENS
    }

    fn limits(&self) -> Limits {
        Limits::default().most_tokens(MOST_TOKENS)
    }

    /// Nothing is known about a server behind a pooler: it may change behind an open connection.
    fn intact_for(&self) -> Option<Duration> {
        self.inner.past.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        const DOING: &str = "acquiring";
        let AcquireRequest { name, hold, mode, .. } = request;
        self.capabilities().require(*mode)?;
        check_id(hold)?;
        let (permits, most) = match *mode {
            Mode::Permit { count, limit, .. } => (i64::from(count), i64::from(limit)),
            _ => (0, 0),
        };
        let (id, owner, mode) = (hold.id(), hold.owner(), number_of(*mode)?);
        let (lease, count) = (microseconds(request.lease), i64::from(request.count));
        let queue = request.queue.map(microseconds);
        let within = request.within.as_ref().map(HoldId::id);
        let tokens = i64::from(request.tokens.max(1));
        let number = request.direct_grant.map(u64::cast_signed);
        let least = request.least_token.map(signed);
        let parameters: [Parameter<'_>; 14] = [
            (&name.as_str(), Type::TEXT),
            (&id, Type::TEXT),
            (&owner, Type::TEXT),
            (&mode, Type::INT4),
            (&lease, Type::INT8),
            (&count, Type::INT8),
            (&queue, Type::INT8),
            (&within, Type::TEXT),
            (&tokens, Type::INT8),
            (&permits, Type::INT8),
            (&most, Type::INT8),
            (&number, Type::INT8),
            (&least, Type::INT8),
            (&self.channel_of(name), Type::TEXT),
        ];
        let connection = self.connection(name);
        let answer = connection.call_dated(DOING, &self.calls().acquire, &parameters).await?;
        outcome(answer, DOING)
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let connections = &self.inner.connections;
        let mut groups: Vec<Vec<usize>> = vec![Vec::new(); connections.len()];
        for (at, hold) in holds.iter().enumerate() {
            groups[place_of(hold.name.as_str(), connections.len())].push(at);
        }
        let batches = connections.iter().zip(&groups).flat_map(|(connection, group)| {
            group.chunks(RENEWED_TOGETHER).map(move |batch| (connection, batch))
        });
        let batches: Vec<_> = batches.collect();
        let renewals = batches.iter().map(|(connection, batch)| async move {
            let requests: Vec<_> = batch.iter().map(|at| &holds[*at]).collect();
            self.renew_some(connection, &requests).await
        });
        let mut outcomes = vec![RenewOutcome::NotHeld; holds.len()];
        for ((_, batch), answers) in batches.iter().zip(join_all(renewals).await) {
            for (at, answer) in batch.iter().zip(answers) {
                outcomes[*at] = answer;
            }
        }
        Ok(outcomes)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        const DOING: &str = "releasing";
        let ReleaseRequest { name, hold, is_undo, .. } = request;
        let remaining = i64::from(request.remaining);
        let parameters: [Parameter<'_>; 5] = [
            (&name.as_str(), Type::TEXT),
            (&hold.id(), Type::TEXT),
            (&remaining, Type::INT8),
            (is_undo, Type::BOOL),
            (&self.channel_of(name), Type::TEXT),
        ];
        let connection = self.connection(name);
        let row = connection.call_one(DOING, &self.calls().release, &parameters).await?;
        match field::<i32>(&row, 0, DOING)? {
            0 => Ok(ReleaseOutcome::Released),
            1 => Ok(ReleaseOutcome::StillHeld),
            2 => Ok(ReleaseOutcome::NotHeld),
            _ => Err(error::unexpected(DOING)),
        }
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        const DOING: &str = "forcing a release";
        let channel = self.channel_of(name);
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&channel, Type::TEXT)];
        let connection = self.connection(name);
        let row = connection.call_one(DOING, &self.calls().force_release, &parameters).await?;
        field::<Option<bool>>(&row, 0, DOING)?.ok_or_else(|| error::wrong_kind(5))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let parameters: [Parameter<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let connection = self.connection(name);
        let rows = connection.call("inspecting", &self.calls().inspect, &parameters).await?;
        let mut inspection = Inspection::default();
        for row in &rows {
            inspection.add(row)?;
        }
        Ok(inspection.state())
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        if request.awaited != Awaited::End {
            return Err(BackendError::unsupported("messages about the demand for locks"));
        }
        let only = (request.mode == Mode::Fair).then(|| request.hold.id().to_owned());
        self.listen(self.channel_of(&request.name), only).await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        const DOING: &str = "setting the number of permits";
        let ResizeRequest { name, permits, only_if_unset, .. } = request;
        let permits = i64::from(*permits);
        let parameters: [Parameter<'_>; 4] = [
            (&name.as_str(), Type::TEXT),
            (&permits, Type::INT8),
            (only_if_unset, Type::BOOL),
            (&self.channel_of(name), Type::TEXT),
        ];
        let connection = self.connection(name);
        let row = connection.call_one(DOING, &self.calls().resize, &parameters).await?;
        match field::<i32>(&row, 0, DOING)? {
            0 => Ok(ResizeOutcome::Resized),
            1 => Ok(ResizeOutcome::AlreadySet),
            4 => Err(error::wrong_kind(field::<Option<i64>>(&row, 1, DOING)?.unwrap_or_default())),
            _ => Err(error::unexpected(DOING)),
        }
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        let parameters: [Parameter<'_>; 2] =
            [(&name.as_str(), Type::TEXT), (&signed(token), Type::INT8)];
        let connection = self.connection(name);
        connection.call("raising a token", &self.calls().raise_token, &parameters).await?;
        Ok(())
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}
