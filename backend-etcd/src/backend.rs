//! [`EtcdBackend`].

use std::{fmt, future::Future, sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        HoldId, Latches, Limits, Page, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, Start, StoredEntry, SubscribeRequest, Wakeups, async_trait,
    },
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    acquire::{Acquiring, TOKENS},
    builder::EtcdBackendBuilder,
    directory, error,
    inspect::inspect,
    keep::tidy,
    keys::{Keys, Kind},
    listener::WakeupListener,
    members::Members,
    release,
    renew::{READ_TOGETHER, renew},
    requests::{Count, GrantLease, GrantedLease},
    storage,
};

/// The name of an unsupported request: a token is the revision of the cluster, which cannot be
/// chosen.
const PROPOSED_TOKENS: &str = "proposed tokens";

/// The pause before the members are asked again after none has answered.
const PAUSE: Duration = Duration::from_millis(100);

/// The range of the shortest lease, as defined by [`Limits`]. A cluster whose members wait longer
/// than 20 s for their leader has a longer one, to which leases are rounded up.
const SHORTEST_LEASES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The longest id of a hold, in bytes.
const LONGEST_ID: usize = 1_024;

/// Locks in an etcd cluster.
///
/// Leases are measured by the cluster, in whole seconds: a requested lease is rounded up. The
/// shortest one is one and a half times the election timeout of the cluster, in whole seconds.
///
/// Clones share their connections.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_etcd::EtcdBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockcore_testkit::EtcdCluster::start(1);
/// # let endpoints = cluster.addresses();
/// // ["etcd-0:2379", "etcd-1:2379", "etcd-2:2379"]
/// let locks = Locks::new(EtcdBackend::connect(endpoints).await?);
///
/// let guard = locks.lock("order:42").acquire().await?;
/// println!("fencing token {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdBackend {
    inner: Arc<Inner>,
}

struct Inner {
    members: Arc<Members>,
    listener: WakeupListener,
    prefix: String,
    shortest_lease: Duration,
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend")
            .field("members", &self.inner.members)
            .field("prefix", &self.inner.prefix)
            .field("listener", &self.inner.listener)
            .finish()
    }
}

impl EtcdBackend {
    /// Connects to the cluster with members at `endpoints`: `host:port`, `http://host:port` or
    /// `https://host:port`. Each endpoint has to be one member, not a balancer in front of several.
    ///
    /// # Errors
    /// An error if no member can be reached or the cluster has no leader, for 6 s unless the
    /// [builder](EtcdBackendBuilder::connect) sets another time, or if it rejects the credentials.
    /// The error names the address.
    pub async fn connect<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<Self, BackendError> {
        Self::builder(endpoints).connect().await
    }

    /// More settings for the cluster with members at `endpoints`.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBackendBuilder {
        EtcdBackendBuilder::new(endpoints.into_iter().map(Into::into).collect())
    }

    /// The number of names that the cluster watches for this client: one for each lock that is
    /// waited for.
    ///
    /// Tests use it to check that nothing is left behind.
    #[must_use]
    pub fn watches_in_use(&self) -> usize {
        self.inner.listener.channels()
    }

    /// Asks the members until one answers, or the time is over. They may be starting up, or be
    /// about to elect a leader.
    pub(crate) async fn open(
        members: Arc<Members>,
        prefix: String,
        limit: Duration,
    ) -> Result<Self, BackendError> {
        let end = Instant::now() + limit;
        let mut failure = None;
        let shortest_lease = loop {
            let error = match timeout_at(end, first_requests(&members, &prefix)).await {
                Ok(Ok(shortest_lease)) => break shortest_lease,
                Ok(Err(error)) => error,
                Err(_) => failure.unwrap_or_else(|| {
                    error::no_answer(error::CONNECTING, members.address(members.current()), limit)
                }),
            };
            if !error.is_retryable() || Instant::now() + PAUSE >= end {
                return Err(error.not_applied());
            }
            failure = Some(error);
            sleep(PAUSE).await;
        };
        let listener = WakeupListener::start(members.clone(), prefix.clone());
        Ok(Self { inner: Arc::new(Inner { members, listener, prefix, shortest_lease }) })
    }

    pub(crate) fn members(&self) -> &Members {
        &self.inner.members
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    fn keys(&self, name: &LockName) -> Keys {
        Keys::new(&self.inner.prefix, name)
    }

    /// Bounds an operation of several requests.
    async fn within<T>(
        &self,
        doing: &str,
        operation: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> Result<T, BackendError> {
        let members = &self.inner.members;
        let limit = members.response_timeout();
        let answer = timeout(limit, operation).await;
        answer.unwrap_or_else(|_| {
            Err(error::no_answer(doing, members.address(members.current()), limit))
        })
    }
}

/// Finds out the shortest lease of the cluster. A client needs it, and the right to ask for it.
async fn first_requests(members: &Members, prefix: &str) -> Result<Duration, BackendError> {
    members.call(error::CONNECTING, &Count(prefix)).await?;
    match shortest_lease(members).await {
        // The cluster grants no lease, but existing holds can be kept and given back. Until there
        // is room again, it does not matter that this value may be too small.
        Err(error) if error.kind() == BackendErrorKind::OutOfMemory => {
            tracing::warn!(%error, "etcd takes no new locks");
            Ok(SHORTEST_LEASES.0)
        }
        shortest => shortest,
    }
}

/// Asks for a lease of a second, and finds out for how long the cluster grants it.
async fn shortest_lease(members: &Members) -> Result<Duration, BackendError> {
    const DOING: &str = "asking for the shortest lease";
    let granted = members.call(DOING, &GrantLease { lease: 0, seconds: 1 }).await?;
    let Some(GrantedLease { lease, seconds }) = granted else {
        return Err(error::unexpected(DOING));
    };
    tidy(members, [lease]).await;
    Ok(Duration::from_secs(seconds.cast_unsigned()).clamp(SHORTEST_LEASES.0, SHORTEST_LEASES.1))
}

fn check(hold: &HoldId) -> Result<(), BackendError> {
    if hold.id().len() <= LONGEST_ID {
        return Ok(());
    }
    Err(error::configuration(format!("the id of a hold is longer than {LONGEST_ID} bytes")))
}

#[async_trait]
impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
            | Capabilities::FAIR
            | Capabilities::READ_WRITE
            | Capabilities::HAND_OVER
    }

    fn limits(&self) -> Limits {
        Limits::default()
            .shortest_lease(self.inner.shortest_lease)
            .most_tokens(TOKENS)
            .largest_renewal(READ_TOGETHER)
    }

    fn intact_for(&self) -> Option<Duration> {
        // A cluster that was restored from a backup looks like one that was only restarted.
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        let Some(kind) = Kind::of(request.mode) else {
            return Err(BackendError::unsupported(request.mode));
        };
        if request.least_token.is_some() {
            return Err(BackendError::unsupported(PROPOSED_TOKENS));
        }
        if request.tokens > TOKENS {
            let what = format_args!("more than {TOKENS} tokens for one hold");
            return Err(BackendError::unsupported(what));
        }
        check(&request.hold)?;
        let keys = self.keys(&request.name);
        Acquiring::new(self.inner.listener.waiters(), &keys, kind, request).run().await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        Ok(renew(&self.inner.members, &self.inner.prefix, holds).await)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let Some(kind) = Kind::of(request.mode) else { return Ok(ReleaseOutcome::NotHeld) };
        let keys = self.keys(&request.name);
        let release = release::release(&self.inner.members, &keys, kind, request);
        self.within("releasing", release).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let keys = self.keys(name);
        self.within("forcing a release", release::force(&self.inner.members, &keys)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let keys = self.keys(name);
        let inspect = inspect(&self.inner.members, &keys, name);
        self.within("inspecting", inspect).await.map_err(BackendError::not_applied)
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        if request.awaited != Awaited::End {
            return Err(BackendError::unsupported("messages about the demand for locks"));
        }
        let SubscribeRequest { name, mode, hold, .. } = request;
        let keys = self.keys(name);
        Ok(Box::new(self.inner.listener.subscribe(keys, *mode, hold.id()).await?))
    }

    async fn resize(&self, _: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        Err(BackendError::unsupported("semaphores"))
    }

    async fn raise_token(&self, _: &LockName, _: FencingToken) -> Result<(), BackendError> {
        Err(BackendError::unsupported(PROPOSED_TOKENS))
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        None
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}

#[async_trait]
impl Directory for EtcdBackend {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let names = directory::names(&self.inner.members, &self.inner.prefix, start);
        self.within("listing names", names).await.map_err(BackendError::not_applied)
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let Inner { members, prefix, .. } = &*self.inner;
        let put = directory::put_client(members, prefix, id, record, lifetime);
        self.within("writing the record of a client", put).await
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        let remove = directory::remove_client(&self.inner.members, &self.inner.prefix, id);
        self.within("removing the record of a client", remove).await
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let clients = directory::clients(&self.inner.members, &self.inner.prefix, start);
        self.within("listing clients", clients).await.map_err(BackendError::not_applied)
    }

    async fn storage(
        &self,
        name: &LockName,
        _: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let keys = Keys::new(&self.inner.prefix, name);
        let stored = storage::of(&self.inner.members, &keys);
        self.within(storage::DOING, stored).await.map_err(BackendError::not_applied)
    }
}
