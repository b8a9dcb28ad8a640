//! [`Quorum`].

use std::{fmt, sync::Arc, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use tokio::task::AbortHandle;

use crate::{
    QuorumBuilder, acquire,
    doubts::Doubts,
    inspect,
    member::{Member, MemberSet},
    nested,
    proposals::Proposals,
    release, renew,
    round::{About, Round},
    subscription::{self, Watches},
};

/// The shortest lease. The members have to answer twice before a hold is known to exist.
const SHORTEST_LEASE: Duration = Duration::from_millis(50);

/// A quorum of independent stores: a lock is held while a majority of them has the hold.
///
/// Clones share everything. Each client of the locks, that is, each process, makes its own `Quorum`
/// of the same stores.
///
/// # Examples
/// ```
/// use lockcore::Locks;
/// use lockcore_memory::MemoryBackend;
/// use lockcore_quorum::Quorum;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stores = [MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new()];
/// let locks = Locks::new(Quorum::new(stores)?);
/// let guard = locks.lock("order:42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Quorum {
    pub(crate) inner: Arc<Inner>,
}

/// The state that the clones of a quorum share.
pub(crate) struct Inner {
    pub(crate) members: Arc<[Arc<Member>]>,
    pub(crate) capabilities: Capabilities,
    /// How long each member may take to answer.
    pub(crate) member_timeout: Duration,
    pub(crate) proposals: Proposals,
    pub(crate) doubts: Arc<Doubts>,
    pub(crate) watches: Arc<Watches>,
    /// The tasks that connect members that were down.
    pub(crate) connecting: Vec<AbortHandle>,
}

/// The sizes that decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) members: usize,
    /// Any two sets of this many members have one in common.
    pub(crate) majority: usize,
}

impl Parts {
    pub(crate) fn of(members: usize) -> Self {
        Self { members, majority: members / 2 + 1 }
    }

    /// Returns `true` if the others cannot be a majority without this many members.
    pub(crate) fn blocks(self, members: usize) -> bool {
        members > self.members - self.majority
    }
}

impl Quorum {
    /// The quorum of `members`, with the default options of [`QuorumBuilder`].
    ///
    /// Three or five independent stores are usual. With an even number, no more members may fail
    /// than with one member less. The order of the members does not matter.
    ///
    /// # Errors
    /// See [`QuorumBuilder::build`].
    pub fn new<B: Backend>(members: impl IntoIterator<Item = B>) -> Result<Self, BackendError> {
        members.into_iter().fold(Self::builder(), QuorumBuilder::member).build()
    }

    /// Options for a quorum, and members of different kinds.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::default()
    }
}

impl Inner {
    pub(crate) fn parts(&self) -> Parts {
        Parts::of(self.members.len())
    }

    pub(crate) fn all(&self) -> MemberSet {
        (0..self.members.len()).collect()
    }

    /// Makes a request to the members in `to`.
    pub(crate) fn ask<T, F>(
        &self,
        to: MemberSet,
        request: impl Fn(Arc<dyn Backend>) -> F,
    ) -> Round<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
        T: Send + 'static,
    {
        self.ask_each(to, |_, member| request(member))
    }

    /// Makes a request to the members in `to`, to each its own.
    pub(crate) fn ask_each<T, F>(
        &self,
        to: MemberSet,
        request: impl Fn(usize, Arc<dyn Backend>) -> F,
    ) -> Round<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
        T: Send + 'static,
    {
        Round::new(&self.members, to, About::Holds, request)
    }

    /// The limits that all connected members keep.
    fn limits(&self) -> Limits {
        let own = Limits::default().shortest_lease(SHORTEST_LEASE);
        let members = self.members.iter().filter_map(|member| member.backend().ok());
        members.fold(own, |limits, member| limits.of_both(member.limits()))
    }

    fn require(&self, mode: Mode) -> Result<(), BackendError> {
        self.capabilities.require(mode)
    }

    /// Refuses a request that needs an undeclared capability.
    fn check(&self, request: &AcquireRequest) -> Result<(), BackendError> {
        self.require(request.mode)?;
        if request.tokens > 1 && !self.capabilities.contains(Capabilities::HAND_OVER) {
            return Err(BackendError::unsupported("grants of several tokens"));
        }
        if request.least_token.is_some() {
            return Err(BackendError::unsupported("proposed tokens"));
        }
        if request.replicas.is_some() {
            return Err(BackendError::unsupported("acknowledgements by replicas"));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.inner.check(request)?;
        match request.count {
            0 | 1 => acquire::acquire(&self.inner, request).await,
            _ => nested::grow(&self.inner, request).await,
        }
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        holds.iter().try_for_each(|hold| self.inner.require(hold.mode))?;
        renew::renew(&self.inner, holds).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        self.inner.require(request.mode)?;
        release::release(&self.inner, request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        release::force(&self.inner, name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        inspect::inspect(&self.inner, name).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        self.inner.require(request.mode)?;
        if request.awaited != Awaited::End {
            return Err(BackendError::unsupported("messages about the demand for locks"));
        }
        Ok(Box::new(subscription::subscribe(&self.inner, request).await?))
    }

    async fn resize(&self, _: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        Err(BackendError::unsupported("semaphores"))
    }

    async fn raise_token(&self, _: &LockName, _: FencingToken) -> Result<(), BackendError> {
        Err(BackendError::unsupported("proposed tokens"))
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        None
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.inner.has_directory().then_some(self)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connecting.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("members", &self.inner.members).finish_non_exhaustive()
    }
}
