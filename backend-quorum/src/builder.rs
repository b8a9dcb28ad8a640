//! [`QuorumBuilder`].

use std::{fmt, ops::RangeInclusive, pin::Pin, sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{Backend, Capabilities},
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{timeout, timeout_at},
};

use crate::{
    Quorum,
    failure::Failures,
    member::{Member, MemberSet, no_answer},
    proposals::Proposals,
    quorum::{Inner, Parts},
};

/// The capabilities that every member needs.
const NEEDED: [(Capabilities, &str); 2] = [
    (Capabilities::EXCLUSIVE, "Capabilities::EXCLUSIVE"),
    (Capabilities::PROPOSED_TOKENS, "Capabilities::PROPOSED_TOKENS"),
];

/// The pauses between attempts to connect a member, from the first to the longest.
const PAUSES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// The total time for the first attempts to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, BackendError>> + Send>>;
type Connect = Arc<dyn Fn() -> Connecting + Send + Sync>;

/// A member that is not connected yet, by its index.
type ToConnect = (usize, Connect);

/// Options for a [`Quorum`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use lockcore::Locks;
/// use lockcore_quorum::Quorum;
/// use lockcore_redis::RedisBackend;
///
/// # async fn connect() -> Result<(), lockcore::LockError> {
/// let quorum = Quorum::builder()
///     .member_from(|| RedisBackend::connect("redis://a.internal"))
///     .named("a.internal")
///     .member_from(|| RedisBackend::connect("redis://b.internal"))
///     .named("b.internal")
///     .member_from(|| RedisBackend::connect("redis://c.internal"))
///     .named("c.internal")
///     .member_timeout(Duration::from_millis(300))
///     .connect()
///     .await?;
/// let locks = Locks::new(quorum);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until `build` or `connect`"]
pub struct QuorumBuilder {
    members: Vec<(Source, Option<String>)>,
    member_timeout: Duration,
    rejoin_after: Duration,
}

/// A connected member, or the function that connects it.
enum Source {
    Connected(Arc<dyn Backend>),
    Connects(Connect),
}

impl Default for QuorumBuilder {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            member_timeout: Duration::from_millis(500),
            rejoin_after: Duration::from_secs(30),
        }
    }
}

impl QuorumBuilder {
    /// The shortest and the longest [`member_timeout`](Self::member_timeout). An acquisition takes
    /// up to four of them, and lockcore gives up on it after 5 s.
    pub const MEMBER_TIMEOUTS: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(1);

    /// Adds a member that is connected. Each member must be a store of its own: the same store
    /// twice would have two votes.
    pub fn member(self, backend: impl Backend) -> Self {
        self.shared_member(Arc::new(backend))
    }

    /// Adds a member that is connected, as a trait object.
    pub fn shared_member(mut self, backend: Arc<dyn Backend>) -> Self {
        self.members.push((Source::Connected(backend), None));
        self
    }

    /// Adds a member that is created by `connect`. If that fails, it is retried in the background
    /// until it succeeds, at first after 100 ms and eventually every 5 s.
    pub fn member_from<C, F, B>(mut self, connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<B, BackendError>> + Send + 'static,
        B: Backend,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Backend>) })
        };
        self.members.push((Source::Connects(Arc::new(connect)), None));
        self
    }

    /// Names the member that was added last, for errors and logs: usually by its address, but not
    /// by a URL with a password. Without a name, it is known by its number.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        if let Some((_, last)) = self.members.last_mut() {
            *last = Some(name.into());
        }
        self
    }

    /// Sets how long a member may take to answer, from 1 ms to 1 s. The default is 500 ms.
    ///
    /// While a majority agrees in time, no request waits for longer than the majority takes plus
    /// 10 ms, except a forced release, which waits for all members, and a release, which gives slow
    /// ones another 2 ms. If the answers differ, a request waits for the members that might make up
    /// a majority, except those that have not answered their last request.
    pub fn member_timeout(mut self, timeout: Duration) -> Self {
        self.member_timeout = timeout;
        self
    }

    /// Sets how long the grants of a member do not count after it may have lost its data. The
    /// default is 30 s, the default lease.
    ///
    /// With Redis and PostgreSQL, this is the case when connections lead to another server than
    /// before: one that was restarted, or a replica that has taken over. With a store that cannot
    /// tell, such as a Redis Cluster or PostgreSQL behind a pooler, it is the case when the store
    /// answers again after a request about a lock that failed with a connection error. A connection
    /// that breaks while no such request is on its way is not noticed.
    ///
    /// While there may be holds that the member has forgotten, which is for the longest lease in
    /// use, it could help a second owner to a majority. With less than the longest lease, that is
    /// possible; in return, the quorum tolerates the loss of another member sooner. With zero,
    /// members count at once: choose that if every member keeps its data across a crash.
    ///
    /// This is a precaution, not a proof: a client that starts later has not seen the loss. Without
    /// persistence, also restart a crashed server only after the longest lease.
    pub fn rejoin_after(mut self, time: Duration) -> Self {
        self.rejoin_after = time;
        self
    }

    /// Makes the quorum, if all members are connected.
    ///
    /// # Errors
    /// [`Configuration`](BackendErrorKind::Configuration), if there are no members or more than 63,
    /// if one of them lacks a capability, if a shared one was added twice, if an option is outside
    /// of its range, or if a member was added with [`member_from`](Self::member_from).
    pub fn build(self) -> Result<Quorum, BackendError> {
        if self.members.iter().any(|(source, _)| matches!(source, Source::Connects(_))) {
            return Err(configuration(
                "a quorum with members from `member_from` is made with `connect`".into(),
            ));
        }
        let (members, _) = self.members()?;
        self.finish(members, Vec::new())
    }

    /// Makes the quorum once a majority of its members is connected and the others have had
    /// [`member_timeout`](Self::member_timeout) to connect. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`build`](Self::build); and the errors of the members, if no majority can be connected
    /// within 10 s.
    ///
    /// # Cancel safety
    /// If the future is dropped, no attempt to connect goes on.
    pub async fn connect(self) -> Result<Quorum, BackendError> {
        let (members, connects) = self.members()?;
        let parts = Parts::of(members.len());
        let (attempted, mut attempts) = mpsc::unbounded_channel();
        let tasks = Tasks(
            connects
                .into_iter()
                .map(|(at, connect)| {
                    let (member, attempted) = (members[at].clone(), attempted.clone());
                    tokio::spawn(keep_connecting(connect, member, move || {
                        let _ = attempted.send(at);
                    }))
                })
                .collect(),
        );
        drop(attempted);
        let is_connected = |at: &usize| members[*at].backend().is_ok();
        let all: MemberSet = (0..members.len()).collect();
        let mut open: MemberSet = all.iter().filter(|at| !is_connected(at)).collect();
        let limit = tokio::time::Instant::now() + CONNECT_WITHIN;
        let mut until = limit;
        while !open.is_empty() {
            if all.iter().filter(is_connected).count() >= parts.majority && until == limit {
                until = tokio::time::Instant::now() + self.member_timeout;
            }
            match timeout_at(until, attempts.recv()).await {
                Ok(Some(at)) => open = open.without(MemberSet::of(at)),
                Ok(None) | Err(_) => break,
            }
        }
        if all.iter().filter(is_connected).count() < parts.majority {
            let mut failures = Failures::default();
            for at in all.iter() {
                match members[at].backend() {
                    Ok(_) => {}
                    Err(_) if open.contains(at) => failures.add(at, no_answer(CONNECT_WITHIN)),
                    Err(error) => failures.add(at, error),
                }
            }
            return Err(failures.into_error(&members).not_applied());
        }
        self.finish(members, tasks.into_inner())
    }

    /// The members, and the functions that connect the missing ones.
    fn members(&self) -> Result<(Vec<Arc<Member>>, Vec<ToConnect>), BackendError> {
        let count = self.members.len();
        if count == 0 || count > MemberSet::MAX {
            return Err(configuration(format!(
                "a quorum has 1 to {} members, and {count} were given",
                MemberSet::MAX
            )));
        }
        if !Self::MEMBER_TIMEOUTS.contains(&self.member_timeout) {
            return Err(configuration(format!(
                "`member_timeout` must be 1 ms to 1 s, but is {:?}",
                self.member_timeout
            )));
        }
        let mut connects = Vec::new();
        let mut members = Vec::with_capacity(count);
        for (at, (source, name)) in self.members.iter().enumerate() {
            let label = match name {
                Some(name) => format!("store {} ({name})", at + 1),
                None => format!("store {}", at + 1),
            };
            let member = Member::new(label, self.member_timeout, self.rejoin_after);
            match source {
                Source::Connected(backend) => {
                    check(backend.capabilities())
                        .map_err(|lack| configuration(format!("{}: {lack}", member.label())))?;
                    if let Some(same) = self.first_of(backend).filter(|first| *first < at) {
                        return Err(configuration(format!(
                            "stores {} and {} are the same, so that one store would have two votes",
                            same + 1,
                            at + 1
                        )));
                    }
                    member.connected(backend.clone());
                }
                Source::Connects(connect) => connects.push((at, connect.clone())),
            }
            members.push(Arc::new(member));
        }
        Ok((members, connects))
    }

    /// The first member that is this backend.
    fn first_of(&self, backend: &Arc<dyn Backend>) -> Option<usize> {
        self.members.iter().position(|(source, _)| match source {
            Source::Connected(other) => std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(backend)),
            Source::Connects(_) => false,
        })
    }

    fn finish(
        self,
        members: Vec<Arc<Member>>,
        connecting: Vec<JoinHandle<()>>,
    ) -> Result<Quorum, BackendError> {
        // A member that is not connected yet is assumed to be capable; if it is not, its part of a
        // grant is an error.
        let hands_over = members
            .iter()
            .filter_map(|member| member.backend().ok())
            .all(|backend| backend.capabilities().contains(Capabilities::HAND_OVER));
        let capabilities = match hands_over {
            true => Capabilities::EXCLUSIVE | Capabilities::HAND_OVER,
            false => Capabilities::EXCLUSIVE,
        };
        let connecting = connecting.iter().map(JoinHandle::abort_handle).collect();
        let inner = Inner {
            members: members.into(),
            capabilities,
            member_timeout: self.member_timeout,
            proposals: Proposals::default(),
            doubts: Arc::default(),
            watches: Arc::default(),
            connecting,
        };
        Ok(Quorum { inner: Arc::new(inner) })
    }
}

/// Tasks that end when this is dropped, unless they are taken out.
struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    fn into_inner(mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Tries to connect `member` until that succeeds. Reports each attempt.
async fn keep_connecting(connect: Connect, member: Arc<Member>, attempted: impl Fn()) {
    let (mut pause, of) = (*PAUSES.start(), member.label().to_owned());
    loop {
        let connected = match timeout(CONNECT_WITHIN, connect()).await {
            Ok(connected) => connected.and_then(|backend| {
                check(backend.capabilities()).map_err(configuration).map(|()| backend)
            }),
            Err(_) => Err(no_answer(CONNECT_WITHIN)),
        };
        match connected {
            Ok(backend) => {
                member.connected(backend);
                attempted();
                return;
            }
            Err(error) => {
                match error.is_retryable() {
                    true => {
                        tracing::debug!(member = of, %error, "a member is not connected, will be retried");
                    }
                    // While a majority is healthy, this is the only report of it.
                    false => {
                        tracing::warn!(member = of, %error, "a member cannot be connected as it is set up");
                    }
                }
                member.not_connected(error);
                attempted();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(*PAUSES.end());
    }
}

/// Says what a member with these `capabilities` lacks.
fn check(capabilities: Capabilities) -> Result<(), String> {
    match NEEDED.iter().find(|(needed, _)| !capabilities.contains(*needed)) {
        Some((_, name)) => Err(format!("this backend lacks `{name}`, which every member needs")),
        None => Ok(()),
    }
}

fn configuration(message: String) -> BackendError {
    BackendError::new(BackendErrorKind::Configuration, message).not_applied()
}

impl fmt::Debug for QuorumBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBuilder")
            .field("members", &self.members.len())
            .field("member_timeout", &self.member_timeout)
            .field("rejoin_after", &self.rejoin_after)
            .finish()
    }
}
