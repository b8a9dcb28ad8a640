//! [`Opener`]: opens connections.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use lockcore::{BackendError, BackendErrorKind, backend::Replicas};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, PushInfo,
    aio::MultiplexedConnection, io::tcp::socket2::TcpKeepalive,
};

use super::{
    address::{Locate, Place},
    check::{self, Facts, Identity},
    session::{self, Session},
};
use crate::{credentials::Login, error};

/// The number of requests that may wait to be written. With room for all, a request gets its place in
/// the order with its first poll (C17). Without, it would get it only when its task runs again, and a
/// release could overtake its acquisition.
const QUEUED: usize = 1 << 24;

/// At most this many calls of `WAIT` are answered while a command waits for its reply: the one that
/// blocks the connection when the command is sent, the one that was sent before it, and its own.
const MAX_WAITS: u32 = 3;

/// The core drops a request after five seconds. A connection that does not answer is given up
/// before that, so that the next request does not use it again.
const LONGEST_REPLY: Duration = Duration::from_secs(4);

/// How connections are opened, wherever they lead.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) login: Login,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) eviction_allowed: bool,
}

/// Opens connections to one server, wherever it is by then.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(super) address: Arc<dyn Locate>,
    options: ConnectOptions,
    /// `true` if the server is a node of a cluster. Set by the first connection.
    pub(super) is_cluster_node: OnceLock<bool>,
    /// Set when the server has refused a call because its keys were in different slots.
    pub(super) splits_batches: Arc<AtomicBool>,
    /// Cleared when the server has refused an acquisition without a script.
    pub(super) can_restore: Arc<AtomicBool>,
    /// The server at the last connection for commands, and the time since which it differs from the
    /// one before.
    last: Mutex<(Identity, Option<Instant>)>,
    /// The sessions at the server that its connections for commands had last, one for each purpose.
    sessions: [Mutex<Option<Session>>; 2],
}

impl Opener {
    /// Creates an opener for the server at `address`. It may be known already whether that is a
    /// node of a cluster.
    pub(crate) fn new(
        address: Arc<dyn Locate>,
        options: ConnectOptions,
        is_cluster_node: Option<bool>,
    ) -> Self {
        let is_cluster_node = is_cluster_node.map_or_else(OnceLock::new, OnceLock::from);
        let (splits_batches, can_restore) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        let (last, sessions) = (Mutex::default(), Default::default());
        Self { address, options, is_cluster_node, splits_batches, can_restore, last, sessions }
    }

    pub(super) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// How long ago connections led to another server, which may lack what this one was told.
    pub(super) fn intact_for(&self) -> Option<Duration> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (identity, since) = &*last;
        identity.is_known().then(|| since.map_or(Duration::MAX, |since| since.elapsed()))
    }

    fn note(&self, identity: &Identity) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.contradicts(identity) {
            last.1 = Some(Instant::now());
        }
        // An identity that cannot be found out now may be known from before.
        if identity.is_known() {
            last.0 = identity.clone();
        }
    }

    /// The longest time that a step of an attempt to connect takes on a runtime that is driven: the
    /// location, the credentials, the connection, or an answer of the server.
    pub(super) fn longest_step(&self) -> Duration {
        let ConnectOptions { connect_timeout, response_timeout, .. } = &self.options;
        let longest = LONGEST_REPLY.min(*response_timeout).max(*connect_timeout);
        longest.saturating_add(Duration::from_secs(1))
    }

    /// Opens a connection, and checks the server. `on_push` is called for each message, and when
    /// the connection breaks. It is dropped with the driver of the connection.
    ///
    /// If the server moves meanwhile, there is nothing to wait for.
    pub(super) async fn open(
        &self,
        purpose: Purpose,
        progress: &Progress,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Opened, BackendError> {
        progress.note();
        let place = self.locate().await?;
        tokio::select! {
            opened = self.open_at(&place, purpose, progress, on_push) => match opened {
                Ok((connection, identity)) => Ok(Opened { connection, identity, place }),
                Err(error) => {
                    self.address.reject(&place);
                    Err(error)
                }
            },
            () = self.address.moved(&place) => {
                self.address.reject(&place);
                let message = format!("another server has succeeded {}", place.address());
                Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied())
            }
        }
    }

    /// Returns where the server is now.
    pub(super) async fn locate(&self) -> Result<Place, BackendError> {
        let limit = self.options.connect_timeout;
        let located = tokio::time::timeout(limit, self.address.locate()).await;
        located.unwrap_or_else(|_| {
            let message = format!("no server was located within {limit:?}");
            Err(BackendError::new(BackendErrorKind::Timeout, message).not_applied())
        })
    }

    async fn open_at(
        &self,
        place: &Place,
        purpose: Purpose,
        progress: &Progress,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Identity), BackendError> {
        let address = place.address();
        progress.note();
        let info =
            self.options.login.apply(place.info.clone(), self.options.connect_timeout).await?;
        progress.note();
        let mut connection = self.connect(info, &address, purpose, on_push).await?;
        progress.note();
        let identity = match purpose {
            Purpose::Commands | Purpose::Acknowledged => {
                let facts = Facts::of(&mut connection, progress).await?;
                progress.note();
                self.check_deployment(facts.is_cluster_node, &address)?;
                let identity = check::check(&facts, &address, self.options.eviction_allowed)?;
                self.note(&identity);
                self.succeed(purpose, progress, &mut connection, &identity).await?;
                identity
            }
            Purpose::Messages => check::identify(&mut connection).await?,
        };
        Ok((connection, identity))
    }

    /// Ends the session of the connection that this one succeeds, if the server has it still.
    /// Requests that were sent over the old connection must not be carried out after those that are
    /// sent over this one (C17).
    async fn succeed(
        &self,
        purpose: Purpose,
        progress: &Progress,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
    ) -> Result<(), BackendError> {
        let last = &self.sessions[usize::from(purpose == Purpose::Acknowledged)];
        let last = || last.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = last().clone().filter(|earlier| earlier.server.is_surely(identity));
        if let Some(earlier) = earlier {
            session::end(earlier.id, connection).await?;
            progress.note();
        }
        let id = session::id(connection).await?;
        *last() = id.map(|id| Session { id, server: identity.clone() });
        Ok(())
    }

    /// Checks that the server belongs to a cluster if the first one did.
    fn check_deployment(&self, is_node: bool, address: &str) -> Result<(), BackendError> {
        if *self.is_cluster_node.get_or_init(|| is_node) == is_node {
            return Ok(());
        }
        let message = match is_node {
            true => format!(
                "the server at {address} is a node of a cluster; connect to it with \
                 `RedisBackend::cluster`, or with a redis+cluster:// URL"
            ),
            false => format!(
                "the server at {address} is not a node of a cluster any more; create the backend \
                 anew"
            ),
        };
        Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied())
    }

    async fn connect(
        &self,
        info: ConnectionInfo,
        address: &str,
        purpose: Purpose,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, BackendError> {
        let ConnectOptions { response_timeout, connect_timeout, .. } = &self.options;
        let info = with_our_settings(info);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(*connect_timeout))
            .set_response_timeout(Some(purpose.longest_reply(*response_timeout)))
            .set_pipeline_buffer_size(QUEUED)
            .set_push_sender(move |push| {
                on_push(push);
                Ok::<(), ()>(())
            });
        let connected = async {
            Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
        };
        match connected.await {
            Err(error) if error::is_of_cluster_database(&error) => {
                let message = format!(
                    "the server at {address} is a node of a cluster, which has the database 0 \
                     only; leave the number out of the URL"
                );
                Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied())
            }
            connected => connected.map_err(|error| error::of_connecting(error, address)),
        }
    }
}

/// When an attempt to connect began its last step. An attempt whose runtime is not being driven
/// comes to none.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Instant>);

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Progress {
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Commands: the server has to be one that can be trusted with locks.
    Commands,
    /// The same, for acquisitions that replicas have to acknowledge.
    Acknowledged,
    /// Messages: it matters whether they come from the server of the commands.
    Messages,
}

impl Purpose {
    /// How long a reply may take. The server may leave a command unread because it waits for
    /// replicas.
    fn longest_reply(self, response_timeout: Duration) -> Duration {
        let longest = match self {
            Self::Acknowledged => {
                response_timeout.saturating_add(MAX_WAITS * *Replicas::TIMEOUTS.end())
            }
            Self::Commands | Self::Messages => response_timeout,
        };
        longest.min(LONGEST_REPLY)
    }
}

/// A new connection, and the place that it leads to.
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    pub(super) identity: Identity,
    pub(super) place: Place,
}

fn with_our_settings(info: ConnectionInfo) -> ConnectionInfo {
    // Detects a dead peer in well under a minute. A pending request has its own timeout.
    let probe = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
    let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info.set_tcp_settings(tcp).set_redis_settings(settings)
}
