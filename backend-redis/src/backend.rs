//! [`RedisBackend`].

use std::sync::Arc;

use lockcore::{
    BackendError, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, Conditions, Latches, ReleaseOutcome,
        ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome, ResizeRequest, SubscribeRequest,
        Wakeups, async_trait,
    },
};
use redis::Value;

use crate::{
    RedisBackendBuilder,
    cluster::{self, Cluster, Trail},
    exclusive::{self, BatchableRequest},
    keys::LockKeys,
    permits, read_write, renewal, reply,
    script::{self, ScriptCall},
    server::{CommandConnection, Server},
};

/// Locks on a Redis or Valkey server, shared with Redisson.
///
/// Clones share two connections: one for the commands of all tasks, and one for wake-ups, which is
/// opened when a task first waits. Both are replaced when one breaks, when the server stops
/// answering, or when it becomes a replica. The host name is then looked up again. After an
/// interruption of wake-ups, every waiter tries again.
///
/// A server that cannot be reached is tried at most 20 times a second, and less often after a
/// while, however many tasks wait for it. In between, requests fail with the error of the last
/// attempt, and are retried like others.
///
/// On a Redis Cluster there are such connections to each node that is used, and one of two kinds
/// for wake-ups; see [`ClusterMessages`](crate::ClusterMessages). Each request goes to the primary
/// of its slot, and follows it when the slot moves or a replica takes over.
///
/// Each request is sent at most once. If the reply to an acquisition is lost, a release follows on
/// the same connection, so that it cannot overtake the acquisition.
///
/// # Examples
/// ```no_run
/// use lockcore::Locks;
/// use lockcore_redis::RedisBackend;
///
/// # async fn connect() -> Result<(), lockcore::LockError> {
/// let locks = Locks::new(RedisBackend::connect("redis://127.0.0.1").await?);
/// let guard = locks.lock("order:42").acquire().await?;
/// # guard.release().await }
/// ```
#[derive(Clone, Debug)]
pub struct RedisBackend {
    deployment: Deployment,
    key_prefix: Arc<str>,
}

/// Where the locks are.
#[derive(Clone, Debug)]
enum Deployment {
    Single(Arc<Server>),
    Cluster(Arc<Cluster>),
}

impl RedisBackend {
    /// Connects to the server at `url` with the default options of [`RedisBackendBuilder`].
    ///
    /// # Errors
    /// See [`RedisBackendBuilder::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open.
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }

    /// Creates a builder for the primary `name` that Sentinels monitor, such as
    /// `["host:26379", "other:26379"]`.
    ///
    /// For every connection that is opened, the Sentinels are asked in turn where the primary is,
    /// until one answers. A task listens to one of them for failovers: then all connections move to
    /// the new primary at once, and every waiter tries again there. Sentinels that the others name
    /// are asked as well.
    ///
    /// A failover loses what the old primary had not sent to the new one. The holder of a lost
    /// lock is told at its next renewal; until then, another owner may have acquired the lock, with
    /// a higher fencing token. If a release is lost, the lock stays held until its lease ends. In a
    /// failover by hand, the old primary goes on answering for up to a second or two, and nothing
    /// that it answers then is kept.
    ///
    /// See [`RedisBackendBuilder::sentinel`] for credentials and TLS.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore::Locks;
    /// use lockcore_redis::{Credentials, RedisBackend};
    ///
    /// # async fn connect() -> Result<(), lockcore::LockError> {
    /// let backend = RedisBackend::sentinel(["s1.internal", "s2.internal:26379"], "mymaster")
    ///     .credentials(Credentials::new("worker", "secret"))
    ///     .sentinel_credentials(Credentials::password("other secret"))
    ///     .connect()
    ///     .await?;
    /// let locks = Locks::new(backend);
    /// # Ok(()) }
    /// ```
    pub fn sentinel<A: Into<String>>(
        sentinels: impl IntoIterator<Item = A>,
        name: impl Into<String>,
    ) -> RedisBackendBuilder {
        Self::builder().sentinel(sentinels, name)
    }

    /// Creates a builder with the default options.
    pub fn builder() -> RedisBackendBuilder {
        RedisBackendBuilder::new()
    }

    /// Connects to the Redis Cluster of these nodes, each `host:port`. One that can be reached is
    /// enough, since it knows the others. Short for [`RedisBackendBuilder::cluster`].
    ///
    /// # Errors
    /// See [`RedisBackendBuilder::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no connection is left open.
    pub async fn cluster(
        nodes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, BackendError> {
        Self::builder().cluster(nodes).connect().await
    }

    pub(crate) fn on_server(server: Server, key_prefix: String) -> Self {
        Self { deployment: Deployment::Single(Arc::new(server)), key_prefix: key_prefix.into() }
    }

    pub(crate) fn on_cluster(cluster: Arc<Cluster>, key_prefix: String) -> Self {
        Self { deployment: Deployment::Cluster(cluster), key_prefix: key_prefix.into() }
    }

    pub(crate) fn cluster_if_any(&self) -> Option<&Arc<Cluster>> {
        match &self.deployment {
            Deployment::Cluster(cluster) => Some(cluster),
            Deployment::Single(_) => None,
        }
    }

    pub(crate) fn keys(&self, name: &LockName) -> Result<LockKeys, BackendError> {
        LockKeys::new(&self.key_prefix, name)
    }

    /// Sends `call` once, and decodes the reply.
    pub(crate) async fn call<T>(
        &self,
        call: &ScriptCall,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        match &self.deployment {
            Deployment::Single(server) => server.call(call, decode).await,
            Deployment::Cluster(cluster) => cluster.call(call, decode).await,
        }
    }

    pub(crate) async fn listen(&self, channel: String) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(match &self.deployment {
            Deployment::Single(server) => Box::new(server.subscribe(channel).await?),
            Deployment::Cluster(cluster) => Box::new(cluster.subscribe(channel).await?),
        })
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
            | Capabilities::FAIR
            | Capabilities::READ_WRITE
            | Capabilities::PERMITS
            | Capabilities::HAND_OVER
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        let keys = self.keys(&request.name)?;
        // A nested acquisition is not undone: the release would end the outer hold as well.
        let undone = (request.count == 1).then_some(request);
        match &self.deployment {
            Deployment::Single(server) => {
                let dispatch = Dispatch::acquire(keys, request)?;
                let connection = server.connection().await?;
                let sent = Sent::Single(&connection);
                let unanswered = ReleaseUnanswered { backend: self, sent, request: undone };
                let reply = dispatch.send(&connection).await;
                let outcome = reply.and_then(|reply| connection.decode(reply, reply::acquire));
                unanswered.disarm_if_known(&outcome);
                outcome
            }
            Deployment::Cluster(cluster) => {
                let (call, trail) = (acquire_call(&keys, request)?, Trail::default());
                let sent = Sent::Cluster(cluster, &trail);
                let unanswered = ReleaseUnanswered { backend: self, sent, request: undone };
                let sending = cluster.call_on_trail(&call, &trail, reply::acquire);
                // Boxed, because this future is large.
                let outcome = Box::pin(sending).await;
                unanswered.disarm_if_known(&outcome);
                outcome
            }
        }
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let mut renewals = Vec::with_capacity(holds.len());
        for hold in holds {
            let keys = self.keys(&hold.name)?;
            renewals.push(match hold.mode {
                Mode::Read | Mode::Write => read_write::renew(&keys, hold),
                Mode::Permit { count, .. } => permits::renew(&keys, hold, count),
                Mode::Exclusive | Mode::Fair => exclusive::renew(&keys, hold),
                unknown => return Err(not_supported(unknown)),
            });
        }
        Ok(match &self.deployment {
            Deployment::Single(server) => renewal::renew(server, &renewals).await,
            Deployment::Cluster(cluster) => {
                let lease = holds.iter().map(|hold| hold.lease).min().unwrap_or_default();
                cluster::renew(cluster, renewals, lease).await
            }
        })
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let keys = self.keys(&request.name)?;
        match &self.deployment {
            Deployment::Single(server) => {
                let dispatch = Dispatch::release(keys, request)?;
                let connection = server.connection().await?;
                let reply = dispatch.send(&connection).await?;
                connection.decode(reply, reply::release)
            }
            Deployment::Cluster(cluster) => {
                let call = release_call(&keys, request)?;
                // Boxed, because this future is large.
                Box::pin(cluster.call(&call, reply::release)).await
            }
        }
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let keys = self.keys(name)?;
        let [queue, expiries] = keys.queue();
        let (leased, plain) = (keys.permit_leases(), keys.plain_permit_leases());
        let call = ScriptCall {
            script: &script::FORCE_RELEASE,
            keys: vec![
                keys.lock(),
                keys.hold(),
                queue,
                expiries,
                leased,
                plain,
                keys.permit_holds(),
                keys.latch_state(),
            ],
            args: vec![
                keys.channel().to_string(),
                keys.read_write_channel(),
                keys.permits_channel(),
                keys.lease_prefix(),
            ],
            optional: 7,
        };
        self.call(&call, |reply| reply::flag(&reply, "force_release")).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let keys = self.keys(name)?;
        let [queue, expiries] = keys.queue();
        let (leased, plain) = (keys.permit_leases(), keys.plain_permit_leases());
        let call = ScriptCall {
            script: &script::INSPECT,
            keys: vec![
                keys.lock(),
                keys.writers(),
                leased,
                plain,
                keys.permit_holds(),
                keys.latch_state(),
                queue,
                expiries,
            ],
            args: vec![keys.lease_prefix()],
            optional: 7,
        };
        self.call(&call, reply::inspect).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let keys = self.keys(&request.name)?;
        self.listen(match request.mode {
            Mode::Fair => keys.owner_channel(request.hold.owner()),
            Mode::Read | Mode::Write => keys.read_write_channel(),
            Mode::Permit { .. } => keys.permits_channel(),
            Mode::Exclusive => keys.channel().to_string(),
            unknown => return Err(not_supported(unknown)),
        })
        .await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        let call = permits::resize(&self.keys(&request.name)?, request);
        self.call(&call, reply::resize).await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }
}

/// The error for a mode that is newer than this backend.
fn not_supported(mode: Mode) -> BackendError {
    BackendError::unsupported(format_args!("locks in {mode} mode"))
}

fn acquire_call(keys: &LockKeys, request: &AcquireRequest) -> Result<ScriptCall, BackendError> {
    match request.mode {
        Mode::Read | Mode::Write => read_write::acquire(keys, request),
        Mode::Permit { count, limit, .. } => Ok(permits::acquire(keys, request, count, limit)),
        Mode::Exclusive | Mode::Fair => Ok(exclusive::acquire(keys, request)),
        unknown => Err(not_supported(unknown)),
    }
}

fn release_call(keys: &LockKeys, request: &ReleaseRequest) -> Result<ScriptCall, BackendError> {
    match request.mode {
        Mode::Read | Mode::Write => Ok(read_write::release(keys, request)),
        Mode::Permit { .. } => Ok(permits::release(keys, request)),
        Mode::Exclusive | Mode::Fair => Ok(exclusive::release(keys, request)),
        unknown => Err(not_supported(unknown)),
    }
}

/// How a request is sent to a single server.
enum Dispatch {
    Single(ScriptCall),
    Batched(BatchableRequest),
}

impl Dispatch {
    fn acquire(keys: LockKeys, request: &AcquireRequest) -> Result<Self, BackendError> {
        Ok(match BatchableRequest::can_acquire(request) {
            true => Self::Batched(BatchableRequest::acquire(keys, request)),
            false => Self::Single(acquire_call(&keys, request)?),
        })
    }

    fn release(keys: LockKeys, request: &ReleaseRequest) -> Result<Self, BackendError> {
        Ok(match BatchableRequest::can_release(request) {
            true => Self::Batched(BatchableRequest::release(keys, request)),
            false => Self::Single(release_call(&keys, request)?),
        })
    }

    async fn send(self, connection: &Arc<CommandConnection>) -> Result<Value, BackendError> {
        match self {
            Self::Batched(request) => connection.send_batched(request).await,
            // Boxed, because this future is large.
            Self::Single(call) => Box::pin(connection.call(&call)).await,
        }
    }
}

/// Sends a release behind an acquisition whose reply is lost, on the same connection.
///
/// The core releases such a hold as well. But it may do so through a new connection, and the server
/// may read that connection first.
struct ReleaseUnanswered<'a> {
    backend: &'a RedisBackend,
    sent: Sent<'a>,
    request: Option<&'a AcquireRequest>,
}

/// Where an acquisition was sent.
enum Sent<'a> {
    Single(&'a Arc<CommandConnection>),
    Cluster(&'a Arc<Cluster>, &'a Trail),
}

impl ReleaseUnanswered<'_> {
    /// Nothing is to be undone after a reply that says whether the hold was granted.
    fn disarm_if_known(mut self, outcome: &Result<AcquireOutcome, BackendError>) {
        if !matches!(outcome, Err(error) if error.is_outcome_unknown()) {
            self.request = None;
        }
    }
}

impl Drop for ReleaseUnanswered<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        // Without a runtime, the connection does not work either.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(keys) = self.backend.keys(&request.name) else { return };
        let undo = request.undo();
        match self.sent {
            Sent::Single(connection) => {
                let Ok(undo) = Dispatch::release(keys, &undo) else { return };
                let connection = connection.clone();
                runtime.spawn(async move { report(undo.send(&connection).await.map(drop)) });
            }
            Sent::Cluster(cluster, trail) => {
                let Ok(undo) = release_call(&keys, &undo) else { return };
                // Without a trail, no node may have granted the hold.
                let Some(trail) = trail.take() else { return };
                let cluster = cluster.clone();
                runtime.spawn(async move {
                    let undone = cluster.call_on_trail(&undo, &trail, reply::release).await;
                    report(undone.map(drop));
                });
            }
        }
    }
}

fn report(undone: Result<(), BackendError>) {
    if let Err(error) = undone {
        tracing::debug!(%error, "failed to release a hold after a lost reply to acquire");
    }
}
