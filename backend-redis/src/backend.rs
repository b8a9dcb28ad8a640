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
    commands::{Commands, Connection},
    connect::Connector,
    exclusive::{self, Outermost},
    keys::Keys,
    permits, read_write, reply,
    script::{self, Call},
    wakeups::{Listener, Subscription},
};

/// Locks on a Redis or Valkey server, shared with Redisson.
///
/// Clones share two connections: one for the commands of all tasks, one for the messages, which is only opened when
/// somebody waits. Both are replaced when they break, and a waiter whose messages were interrupted tries again.
///
/// Every request is sent once. If its answer is lost, it is undone, on the same connection so that the undoing cannot
/// overtake it.
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
    commands: Arc<Commands>,
    listener: Arc<Listener>,
    key_prefix: Arc<str>,
}

impl RedisBackend {
    /// Connects to the server at `url` with the default options of [`RedisBackendBuilder`].
    ///
    /// # Errors
    /// See [`RedisBackendBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropped before it resolves, no connection is left.
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }

    /// Options for a connection.
    pub fn builder() -> RedisBackendBuilder {
        RedisBackendBuilder::new()
    }

    pub(crate) async fn connect_with(
        connector: Arc<Connector>,
        key_prefix: String,
    ) -> Result<Self, BackendError> {
        let commands = Arc::new(Commands::new(connector.clone()));
        commands.connection().await?;
        Ok(Self {
            commands,
            listener: Arc::new(Listener::new(connector)),
            key_prefix: key_prefix.into(),
        })
    }

    pub(crate) fn keys(&self, name: &LockName) -> Result<Keys, BackendError> {
        Keys::new(&self.key_prefix, name)
    }

    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        self.commands.call(call).await
    }

    pub(crate) async fn listen(&self, channel: String) -> Result<Box<dyn Wakeups>, BackendError> {
        let subscription: Subscription = self.listener.subscribe(channel).await?;
        Ok(Box::new(subscription))
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
        let step = Step::acquire(keys, request)?;
        let connection = self.commands.connection().await?;
        // A nested acquisition that went unanswered must not take the outer hold with it.
        let undone = (request.count == 1).then_some(request);
        let unanswered = Unanswered { backend: self, connection: &connection, request: undone };
        let reply = step.carry_out(&connection).await;
        let answer = reply.and_then(reply::acquire);
        if !matches!(&answer, Err(error) if error.is_outcome_unknown()) {
            unanswered.disarm();
        }
        answer
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let mut call = Call { script: &script::RENEW, keys: Vec::new(), args: Vec::new() };
        for hold in holds {
            let keys = self.keys(&hold.name)?;
            let (keys, args) = match hold.mode {
                Mode::Read | Mode::Write => read_write::renew(&keys, hold),
                Mode::Permit { .. } => permits::renew(&keys, hold),
                Mode::Exclusive | Mode::Fair => exclusive::renew(&keys, hold),
                unknown => return Err(not_supported(unknown)),
            };
            call.keys.extend(keys);
            call.args.extend(args);
        }
        reply::renew(self.commands.call_in_time(&call).await?)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let step = Step::release(self.keys(&request.name)?, request)?;
        let connection = self.commands.connection().await?;
        reply::release(&step.carry_out(&connection).await?)
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let keys = self.keys(name)?;
        let [queue, times] = keys.queue();
        let (leased, plain) = (keys.permit_leases(), keys.plain_permit_leases());
        let call = Call {
            script: &script::FORCE_RELEASE,
            keys: vec![
                keys.lock(),
                keys.hold(),
                queue,
                times,
                leased,
                plain,
                keys.permits(),
                keys.latch(),
            ],
            args: vec![
                keys.channel().to_string(),
                keys.read_write_channel(),
                keys.permits_channel(),
                keys.leases(),
            ],
        };
        reply::flag(&self.call(&call).await?, "force_release")
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let keys = self.keys(name)?;
        let [queue, times] = keys.queue();
        let (leased, plain) = (keys.permit_leases(), keys.plain_permit_leases());
        let call = Call {
            script: &script::INSPECT,
            keys: vec![
                keys.lock(),
                keys.writers(),
                leased,
                plain,
                keys.permits(),
                keys.latch(),
                queue,
                times,
            ],
            args: vec![keys.leases()],
        };
        reply::inspect(self.call(&call).await?)
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let keys = self.keys(&request.name)?;
        self.listen(match request.mode {
            Mode::Fair => keys.channel_of(request.hold.owner()),
            Mode::Read | Mode::Write => keys.read_write_channel(),
            Mode::Permit { .. } => keys.permits_channel(),
            Mode::Exclusive => keys.channel().to_string(),
            unknown => return Err(not_supported(unknown)),
        })
        .await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        let call = permits::resize(&self.keys(&request.name)?, request);
        reply::resize(&self.call(&call).await?)
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }
}

/// A mode that is newer than this backend.
fn not_supported(mode: Mode) -> BackendError {
    BackendError::unsupported(format_args!("locks in {mode} mode"))
}

/// What is sent for a request.
enum Step {
    Alone(Call),
    /// Or with others.
    Shared(Outermost),
}

impl Step {
    fn acquire(keys: Keys, request: &AcquireRequest) -> Result<Self, BackendError> {
        Ok(match request.mode {
            Mode::Read | Mode::Write => Self::Alone(read_write::acquire(&keys, request)?),
            Mode::Permit { count, limit, .. } => {
                Self::Alone(permits::acquire(&keys, request, count, limit))
            }
            Mode::Exclusive if Outermost::is_acquired(request) => {
                Self::Shared(Outermost::acquire(keys, request))
            }
            Mode::Exclusive | Mode::Fair => Self::Alone(exclusive::acquire(&keys, request)),
            unknown => return Err(not_supported(unknown)),
        })
    }

    fn release(keys: Keys, request: &ReleaseRequest) -> Result<Self, BackendError> {
        Ok(match request.mode {
            Mode::Read | Mode::Write => Self::Alone(read_write::release(&keys, request)),
            Mode::Permit { .. } => Self::Alone(permits::release(&keys, request)),
            Mode::Exclusive if Outermost::is_released(request) => {
                Self::Shared(Outermost::release(keys, request))
            }
            Mode::Exclusive | Mode::Fair => Self::Alone(exclusive::release(&keys, request)),
            unknown => return Err(not_supported(unknown)),
        })
    }

    async fn carry_out(self, connection: &Arc<Connection>) -> Result<Value, BackendError> {
        match self {
            Self::Shared(request) => connection.share(request).await,
            // In a box, as it is large.
            Self::Alone(call) => Box::pin(connection.call(&call)).await,
        }
    }
}

/// Sends a release behind an acquire that goes unanswered, on the same connection.
///
/// The core releases such a hold as well; but by then commands may go through a new connection, and the server may read
/// that one first.
struct Unanswered<'a> {
    backend: &'a RedisBackend,
    connection: &'a Arc<Connection>,
    request: Option<&'a AcquireRequest>,
}

impl Unanswered<'_> {
    fn disarm(mut self) {
        self.request = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        // Without a runtime the connection is dead as well.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(keys) = self.backend.keys(&request.name) else { return };
        let Ok(undo) = Step::release(keys, &request.undo()) else { return };
        let connection = self.connection.clone();
        runtime.spawn(async move {
            if let Err(error) = undo.carry_out(&connection).await {
                tracing::debug!(%error, "an unanswered acquire could not be undone on its own connection");
            }
        });
    }
}
