//! [`PostgresBackend`].

use std::{fmt, sync::Arc, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        HoldId, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use tokio::task::JoinHandle;
use tokio_postgres::types::Type;

use crate::{
    answer::{count, field},
    builder::{ConnectSettings, PostgresBackendBuilder},
    calls::{Calls, microseconds},
    channel::{channel, place_of},
    connection::{Connection, Parameter, Path},
    diagnosis::Patient,
    error,
    inspection::Inspection,
    listener::{ListenerProgress, WakeupListener},
    past::Past,
    schema::Schema,
    sweep::keep_swept,
};

/// The most tokens of one grant, which are drawn 64 at a time.
const MOST_TOKENS: u32 = 1 << 16;

/// The longest id of a hold, in bytes: it has to fit into an index and into a notification.
const LONGEST_ID: usize = 1_024;

/// The answer to an acquisition that only a fenced transaction is in the way of.
const FENCED: i32 = 7;

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
    /// It is one transaction, which excludes migrations by clients. Run that of a newer version to
    /// upgrade the schema: what is there already is left out.
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
        let calls = Calls::new(&schema, response_timeout);
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
            WakeupListener::start(wakeups, schema.clone(), first.clone(), pulse, response_timeout);
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

    pub(crate) fn connections(&self) -> &[Arc<Connection>] {
        &self.inner.connections
    }

    /// The connection for all requests for this name.
    pub(crate) fn connection(&self, name: &LockName) -> &Connection {
        self.connection_at(name.as_str())
    }

    /// The connection for all requests with this text as their key.
    pub(crate) fn connection_at(&self, what: &str) -> &Connection {
        let connections = self.connections();
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
        1 | FENCED => {
            let remaining = Duration::from_micros(number.max(0).cast_unsigned());
            AcquireOutcome::Held { remaining: Some(remaining) }
        }
        2 => AcquireOutcome::NotHeld,
        3 => AcquireOutcome::TooMany { limit: count(number) },
        4 => return Err(error::wrong_kind(number)),
        _ => return Err(error::unexpected(doing)),
    })
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
        if answer.0 == FENCED {
            tracing::debug!(lock = %name, "the fence is closed: a transaction has checked a token");
        }
        outcome(answer, DOING)
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        Ok(self.renew_all(holds).await)
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
