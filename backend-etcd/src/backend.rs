//! [`EtcdBackend`].

use std::{collections::HashMap, fmt, future::Future, sync::Arc, time::Duration};

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use futures_util::future::join_all;
use lockcore::{
    BackendError, BackendErrorKind, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, HoldId,
        Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use tokio::time::{Instant, timeout};

use crate::{
    acquire::{Acquiring, TOKENS},
    builder::EtcdBackendBuilder,
    error,
    keep::{keep, refresh},
    keys::{Keys, Kind},
    listener::WakeupListener,
    members::Members,
    record::seconds,
    release,
    requests::{GrantLease, GrantedLease, Revoke, Transact},
    seen::{Entry, gets},
};

/// The name of a request that is refused: a token is the revision of the cluster, which cannot be
/// chosen.
const PROPOSED_TOKENS: &str = "proposed tokens";

/// The pause before a cluster without a leader is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// How many holds one transaction reads. Servers allow 128 operations.
const READ_TOGETHER: usize = 128;

/// The range of the shortest lease, as [`Limits`] say it. A cluster whose members wait longer than
/// 20 s for their leader has a longer one, to which leases are rounded up.
const SHORTEST_LEASES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The longest id of a hold, in bytes.
const LONGEST_ID: usize = 1_024;

/// Locks in an etcd cluster.
///
/// Leases are measured by the cluster, in whole seconds: one that is asked for is rounded up. The
/// shortest is one and a half of the election timeout of the cluster, in whole seconds.
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
    /// No member can be reached, the cluster has no leader, or it rejects the credentials. The
    /// error names the address.
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

    pub(crate) async fn open(members: Arc<Members>, prefix: String) -> Result<Self, BackendError> {
        // A read that needs the leader, and the right to read.
        let count = GetOptions::new().with_prefix().with_count_only();
        let read = Transact(Txn::new().and_then([TxnOp::get(prefix.as_str(), Some(count))]));
        let end = Instant::now() + members.response_timeout();
        while let Err(error) = members.call("connecting", &read).await {
            // The members may be about to agree on a leader.
            if error.kind() != BackendErrorKind::Unavailable || Instant::now() >= end {
                return Err(error.not_applied());
            }
            tokio::time::sleep(PAUSE).await;
        }
        let shortest_lease = shortest_lease(&members).await?;
        let listener = WakeupListener::start(members.clone(), prefix.clone());
        Ok(Self { inner: Arc::new(Inner { members, listener, prefix, shortest_lease }) })
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

    /// Renews holds that are read together, and each by itself.
    async fn renew_some(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        const DOING: &str = "renewing holds";
        let members = &self.inner.members;
        let keys: Vec<_> = holds.iter().map(|hold| self.keys(&hold.name)).collect();
        let reads: Vec<_> = holds
            .iter()
            .zip(&keys)
            .map(|(hold, keys)| TxnOp::get(keys.hold(hold.mode, hold.hold.id()), None))
            .collect();
        let answer = members.call(DOING, &Transact(Txn::new().and_then(reads))).await?;
        let answers = answer.ok_or_else(|| error::unexpected(DOING))?.op_responses();
        if answers.len() != holds.len() {
            return Err(error::unexpected(DOING));
        }
        let mut entries = Vec::new();
        for ((hold, keys), answer) in holds.iter().zip(&keys).zip(answers) {
            let TxnOpResponse::Get(found) = answer else { return Err(error::unexpected(DOING)) };
            entries.push(match (Kind::of(hold.mode), found.kvs().first()) {
                (Some(kind), Some(pair)) => Entry::read(pair, &keys.holds(kind)).map(Some),
                _ => Ok(None),
            });
        }
        let renewed = self.renew_together(&entries, holds).await?;
        let renewals = entries.into_iter().zip(holds).zip(&keys).map(|((entry, hold), keys)| {
            let renewed = &renewed;
            async move {
                let Some(entry) = entry? else { return Ok(false) };
                match renewed.get(&entry.lease) {
                    Some(Ok(true)) => Ok(true),
                    Some(Err(error)) => Err(error.clone()),
                    Some(Ok(false)) | None => self.keep(keys, entry, hold).await,
                }
            }
        });
        let outcome = |renewed| match renewed {
            Ok(true) => RenewOutcome::Renewed,
            Ok(false) => RenewOutcome::NotHeld,
            Err(error) => RenewOutcome::Failed(error),
        };
        Ok(join_all(renewals).await.into_iter().map(outcome).collect())
    }

    /// Renews the leases that need not grow, and answers by lease.
    async fn renew_together(
        &self,
        entries: &[Result<Option<Entry>, BackendError>],
        holds: &[RenewRequest],
    ) -> Result<HashMap<i64, Result<bool, BackendError>>, BackendError> {
        let found = entries.iter().zip(holds).filter_map(|(entry, hold)| match entry {
            Ok(Some(entry)) if entry.record.seconds >= seconds(hold.lease) => Some(entry),
            _ => None,
        });
        let together: Vec<_> = found.collect();
        let Some(first) = together.first() else { return Ok(HashMap::new()) };
        let leases: Vec<_> = together.iter().map(|entry| entry.lease).collect();
        let renewed = refresh(&self.inner.members, &first.key, &leases).await?;
        Ok(leases.into_iter().zip(renewed).collect())
    }

    /// Renews a hold, however often somebody changes it meanwhile. Its caller limits that.
    async fn keep(
        &self,
        keys: &Keys,
        mut entry: Entry,
        hold: &RenewRequest,
    ) -> Result<bool, BackendError> {
        const DOING: &str = "renewing a hold";
        let members = &self.inner.members;
        let Some(kind) = Kind::of(hold.mode) else { return Ok(false) };
        loop {
            if keep(members, &entry, seconds(hold.lease), None).await? {
                return Ok(true);
            }
            let read = TxnOp::get(entry.key.as_str(), None);
            let answer = members.call(DOING, &Transact(Txn::new().and_then([read]))).await?;
            let [found] = gets(&answer.ok_or_else(|| error::unexpected(DOING))?, DOING)?;
            match found.kvs().first() {
                Some(pair) => entry = Entry::read(pair, &keys.holds(kind))?,
                None => return Ok(false),
            }
        }
    }
}

/// Asks for a lease of a second, and finds out for how long the cluster grants it.
async fn shortest_lease(members: &Members) -> Result<Duration, BackendError> {
    const DOING: &str = "asking for the shortest lease";
    let grant = GrantLease { lease: 0, seconds: 1 };
    let granted = members.call(DOING, &grant).await.map_err(BackendError::not_applied)?;
    let Some(GrantedLease { lease, seconds }) = granted else {
        return Err(error::unexpected(DOING));
    };
    // It would end by itself.
    let _ = members.call(DOING, &Revoke(lease)).await;
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
        Acquiring::new(&self.inner.members, &keys, kind, request).run().await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let renewals = holds
            .chunks(READ_TOGETHER)
            .map(|holds| self.within("renewing holds", self.renew_some(holds)));
        let outcomes = join_all(renewals).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(outcomes.concat())
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
        let inspect = release::inspect(&self.inner.members, &keys, name);
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
}
