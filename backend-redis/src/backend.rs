//! [`RedisBackend`].

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, Replicas,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use redis::Value;

use crate::{
    DeploymentKind, RedisBackendBuilder, RedisInfo, Support, acquire,
    cluster::{self, Cluster, Trail},
    demand,
    dispatch::{Dispatch, not_supported},
    exclusive,
    keys::LockKeys,
    permits, probe, read_write, renewal, reply,
    script::{self, ScriptCall},
    sentinel::{RecentReleases, SentinelGroup},
    server::{Audience, Purpose, Server},
    turn,
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
    /// The replicas that have to acknowledge a hold, unless the lock says otherwise.
    replicas: Option<Replicas>,
    /// The findings of the probe at connect.
    info: Arc<RedisInfo>,
    /// Set for a primary with Sentinels.
    releases: Option<Arc<RecentReleases>>,
    sentinels: Option<Arc<SentinelGroup>>,
}

/// The place of the locks.
#[derive(Clone, Debug)]
pub(crate) enum Deployment {
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
    /// A failover loses the writes that the old primary had not sent to the new one. The holder of
    /// a lost lock is told at its next renewal; until then, another owner may have acquired the
    /// lock, with a higher fencing token. The releases of the last 3 s are repeated at the new
    /// primary. In a manual failover, the old primary goes on answering for up to a second or two,
    /// and all other writes that it confirms in that time are lost.
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

    /// Creates a builder for a Redis Cluster. `nodes` are some of its nodes, such as `["host:7000",
    /// "other:7000"]`. One reachable node is enough, even a replica, since it knows the others.
    ///
    /// Each lock is in the slot of its name, and so on one primary and its replicas. The backend
    /// follows slots that move, and replicas that take over: waiters and renewals go on at the new
    /// primary. A request that a node refuses because its slot is elsewhere was not carried out,
    /// and is sent to the right node; no other request is sent twice.
    ///
    /// A failover loses the writes that the old primary had not sent to the new one. The holder of
    /// a lost lock is told at its next renewal; until then, another owner may have acquired the
    /// lock, with a higher fencing token. If a release is lost, the lock stays held until its lease
    /// ends.
    ///
    /// See [`RedisBackendBuilder::cluster`] for credentials and TLS, and
    /// [`ClusterMessages`](crate::ClusterMessages) for how waiters are woken.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore::Locks;
    /// use lockcore_redis::{Credentials, RedisBackend};
    ///
    /// # async fn connect() -> Result<(), lockcore::LockError> {
    /// let backend = RedisBackend::cluster(["n1.internal:7000", "n2.internal:7000"])
    ///     .credentials(Credentials::new("worker", "secret"))
    ///     .connect()
    ///     .await?;
    /// let locks = Locks::new(backend);
    /// # Ok(()) }
    /// ```
    pub fn cluster<A: Into<String>>(nodes: impl IntoIterator<Item = A>) -> RedisBackendBuilder {
        Self::builder().cluster(nodes)
    }

    pub(crate) fn on_server(server: Server, key_prefix: String) -> Self {
        let server = Deployment::Single(Arc::new(server));
        Self::on(server, DeploymentKind::Single, key_prefix.into())
    }

    pub(crate) fn on_primary(
        server: Server,
        sentinels: Arc<SentinelGroup>,
        key_prefix: String,
    ) -> Self {
        let (server, key_prefix) = (Arc::new(server), Arc::<str>::from(key_prefix));
        let releases = Some(Arc::new(RecentReleases::new(&server, Arc::clone(&key_prefix))));
        let on = Self::on(Deployment::Single(server), DeploymentKind::Sentinel, key_prefix);
        Self { releases, sentinels: Some(sentinels), ..on }
    }

    pub(crate) fn on_cluster(cluster: Arc<Cluster>, key_prefix: String) -> Self {
        Self::on(Deployment::Cluster(cluster), DeploymentKind::Cluster, key_prefix.into())
    }

    fn on(deployment: Deployment, kind: DeploymentKind, key_prefix: Arc<str>) -> Self {
        let info = Arc::new(RedisInfo::unknown(kind));
        let (releases, sentinels) = (None, None);
        Self { deployment, key_prefix, releases, sentinels, replicas: None, info }
    }

    /// Sets the replicas that have to acknowledge a hold, unless the lock says otherwise.
    pub(crate) fn with_replicas(self, replicas: Option<Replicas>) -> Self {
        Self { replicas, ..self }
    }

    /// Probes the features of the server.
    pub(crate) async fn probed(self) -> Result<Self, BackendError> {
        let info = Arc::new(probe::probe(&self).await?);
        if let Deployment::Single(server) = &self.deployment
            && info.batches_across_slots == Support::No
        {
            server.split_batches();
        }
        Ok(Self { info, ..self })
    }

    /// Returns the findings of the probe at connect, with what later replies added.
    #[must_use]
    pub fn info(&self) -> RedisInfo {
        let mut info = RedisInfo::clone(&self.info);
        if let Deployment::Single(server) = &self.deployment
            && server.splits_batches()
        {
            info.batches_across_slots = Support::No;
        }
        info
    }

    /// Deletes the last fencing token of a name that is no longer in use, which would otherwise
    /// stay for a day. Returns `true` if there was one, and `false` without effect while the lock
    /// is held or has a queue, if the token is ahead of the server's clock, or if it is kept
    /// forever because Redisson wrote it.
    ///
    /// The tokens of a later hold follow the clock of the server, and are greater nevertheless,
    /// unless that clock is set back, or the server is replaced by one whose clock is behind. The
    /// names `x` and `{x}` share one token. So this method is for names that are used once.
    ///
    /// # Errors
    /// The errors of any request.
    ///
    /// # Cancel safety
    /// If the future is dropped, the token may have been deleted.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore::LockName;
    /// # async fn forget(backend: &lockcore_redis::RedisBackend)
    /// # -> Result<(), lockcore::LockError> {
    /// backend.forget(&LockName::new("import:2024-06-01")?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn forget(&self, name: &LockName) -> Result<bool, BackendError> {
        let keys = self.keys(name)?;
        let [queue, _] = keys.queue();
        let keys = vec![keys.lock(), keys.token().to_string(), queue];
        let call = ScriptCall { script: &script::FORGET, keys, args: Vec::new(), optional: 0 };
        self.call(&call, |reply| reply::flag(&reply, "forget")).await
    }

    /// The name and the version of the server software.
    pub(crate) fn software(&self) -> Option<(String, String)> {
        let server = match &self.deployment {
            Deployment::Single(server) => server.clone(),
            Deployment::Cluster(cluster) => cluster.any_server()?,
        };
        server.current()?.software()
    }

    /// A key, or a channel, that belongs to no lock.
    pub(crate) fn probe_key(&self, name: &str) -> String {
        format!("lockcore_probe:{{{}{name}}}", self.key_prefix)
    }

    pub(crate) fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// The replicas that have to acknowledge a hold, unless the lock says otherwise.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Returns `true` if Sentinels can replace the primary by one that does not know a hold. The
    /// connection is given up then.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.releases.is_some()
    }

    /// The Sentinels of the primary.
    pub(crate) fn sentinels(&self) -> Option<&Arc<SentinelGroup>> {
        self.sentinels.as_ref()
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
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
        self.listen_as(Audience::Everybody, channel).await
    }

    pub(crate) async fn listen_as(
        &self,
        audience: Audience,
        channel: String,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(match &self.deployment {
            Deployment::Single(server) => Box::new(server.subscribe(channel, audience).await?),
            Deployment::Cluster(cluster) => Box::new(cluster.subscribe(channel, audience).await?),
        })
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        let heard = match self.info.messages {
            // No client would hear of the demand, or of a grant.
            Support::No => Capabilities::default(),
            // No replica has acknowledged a hold that a release grants.
            _ if self.replicas.is_some_and(|demand| demand.count > 0) => Capabilities::DEMAND,
            _ => Capabilities::DEMAND | Capabilities::DIRECT_GRANT,
        };
        heard
            | Capabilities::EXCLUSIVE
            | Capabilities::FAIR
            | Capabilities::READ_WRITE
            | Capabilities::PERMITS
            | Capabilities::HAND_OVER
            | Capabilities::REPLICAS
            | Capabilities::PROPOSED_TOKENS
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn intact_for(&self) -> Option<Duration> {
        match &self.deployment {
            Deployment::Single(server) => server.intact_for(),
            Deployment::Cluster(_) => None,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        request.least_token.map_or(Ok(()), exclusive::check_token)?;
        acquire::acquire(self, request).await
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
            Deployment::Single(server) => renewal::renew(server, &renewals, None).await,
            Deployment::Cluster(cluster) => {
                let lease = holds.iter().map(|hold| hold.lease).min().unwrap_or_default();
                cluster::renew(cluster, renewals, lease).await
            }
        })
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let dispatch = Dispatch::release(self.keys(&request.name)?, request)?;
        match &self.deployment {
            Deployment::Single(server) => {
                let connection = server.connection().await?;
                let outcome = dispatch.send(&connection, reply::release).await?;
                if let Some(releases) = &self.releases {
                    releases.note(request, &connection);
                }
                Ok(outcome)
            }
            Deployment::Cluster(cluster) => {
                let trail = Trail::new(Purpose::Commands);
                dispatch.on_cluster(cluster).send_on_trail(cluster, &trail, reply::release).await
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
        if request.awaited == Awaited::Demand {
            return demand::subscribe(self, &keys, request.mode).await;
        }
        self.listen(match request.mode {
            Mode::Fair => return turn::subscribe(self, &keys, request.hold.owner()).await,
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

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        exclusive::check_token(token)?;
        let call = exclusive::raise_token(&self.keys(name)?, token);
        self.call(&call, |reply| reply::flag(&reply, "raise_token").map(drop)).await
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
