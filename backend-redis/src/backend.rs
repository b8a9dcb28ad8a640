//! [`RedisBackend`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockcore::{
    AcquireOutcome, AcquireRequest, Backend, BackendError, Capabilities, HoldId, LockName, LockState, Mode,
    ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, SubscribeRequest, Wakeups,
};

use crate::{
    RedisBackendBuilder,
    commands::{Commands, Connection},
    connect::Connector,
    keys::Keys,
    reply,
    script::{self, Call},
    wakeups::Listener,
};

/// How long a token is remembered at least. It only matters if the server's clock is set back.
const TOKEN_MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

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
        Ok(Self { commands, listener: Arc::new(Listener::new(connector)), key_prefix: key_prefix.into() })
    }

    fn keys(&self, name: &LockName) -> Result<Keys, BackendError> {
        Keys::new(&self.key_prefix, name)
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE | Capabilities::FAIR
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        let keys = self.keys(&request.name)?;
        let connection = self.commands.connection().await?;
        // A nested acquisition that went unanswered must not take the outer hold with it.
        let undo = (request.count == 1).then(|| request.undo());
        let unanswered = Unanswered { connection: &connection, keys: &keys, undo };
        let answer = acquire(&connection, &keys, request).await;
        if !matches!(&answer, Err(error) if error.is_outcome_unknown()) {
            unanswered.disarm();
        }
        answer
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let names: Vec<Keys> = holds.iter().map(|hold| self.keys(&hold.name)).collect::<Result<_, _>>()?;
        let leases: Vec<String> = holds.iter().map(|hold| millis(hold.lease)).collect();
        let ids: Vec<String> = names.iter().map(Keys::hold).collect();
        let keys: Vec<&str> = names.iter().zip(&ids).flat_map(|(keys, id)| [keys.lock(), id]).collect();
        let args: Vec<&[u8]> = holds
            .iter()
            .zip(&leases)
            .flat_map(|(RenewRequest { hold, .. }, lease)| {
                let id = if hold.is_named() { hold.id() } else { "" };
                [hold.owner().as_bytes(), lease.as_bytes(), id.as_bytes()]
            })
            .collect();
        let call = Call { script: &script::RENEW, keys: &keys, args: &args };
        reply::renew(self.commands.call_in_time(&call).await?)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let keys = self.keys(&request.name)?;
        release(&self.commands.connection().await?, &keys, request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let keys = self.keys(name)?;
        let (all, channel) = (keys.all(), keys.channel());
        let all = all.each_ref().map(String::as_str);
        let call = Call { script: &script::FORCE_RELEASE, keys: &all, args: &[channel.as_bytes()] };
        reply::force_release(&self.commands.call(&call).await?)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let keys = self.keys(name)?;
        reply::inspect(
            self.commands.call(&Call { script: &script::INSPECT, keys: &[keys.lock()], args: &[] }).await?,
        )
    }

    async fn subscribe(&self, request: &SubscribeRequest) -> Result<Box<dyn Wakeups>, BackendError> {
        let keys = self.keys(&request.name)?;
        let channel = match request.mode {
            Mode::Fair => keys.channel_of(request.hold.owner()),
            _ => keys.channel(),
        };
        Ok(Box::new(self.listener.subscribe(channel).await?))
    }
}

/// What tells one hold of a named owner from the next; nothing for other owners, whose field does.
fn id_if_named(hold: &HoldId) -> &str {
    if hold.is_named() { hold.id() } else { "" }
}

async fn acquire(
    connection: &Connection,
    keys: &Keys,
    request: &AcquireRequest,
) -> Result<AcquireOutcome, BackendError> {
    let (script, keys) = match request.mode {
        Mode::Fair => (&script::ACQUIRE_FAIR, keys.all().to_vec()),
        _ if request.hold.is_named() => {
            (&script::ACQUIRE, vec![keys.lock().into(), keys.token(), keys.hold()])
        }
        _ => (&script::ACQUIRE, vec![keys.lock().into(), keys.token()]),
    };
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let lease = millis(request.lease);
    let count = request.count.to_string();
    let token_memory = millis(TOKEN_MEMORY.max(request.lease * 2));
    let queue = millis(request.queue.unwrap_or_default());
    let args = [request.hold.owner(), &lease, &count, &token_memory, id_if_named(&request.hold), &queue];
    reply::acquire(connection.call(&Call { script, keys: &keys, args: &args.map(str::as_bytes) }).await?)
}

async fn release(
    connection: &Connection,
    keys: &Keys,
    request: &ReleaseRequest,
) -> Result<ReleaseOutcome, BackendError> {
    let channel = keys.channel();
    let (script, keys) = match request.mode {
        Mode::Fair => (&script::RELEASE_FAIR, keys.all().to_vec()),
        _ if request.hold.is_named() => (&script::RELEASE, vec![keys.lock().into(), keys.hold()]),
        _ => (&script::RELEASE, vec![keys.lock().into()]),
    };
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let remaining = request.remaining.to_string();
    let args = [request.hold.owner(), &remaining, &channel, id_if_named(&request.hold)];
    let call = Call { script, keys: &keys, args: &args.map(str::as_bytes) };
    reply::release(&connection.call(&call).await?)
}

/// Milliseconds for the wire: whole ones, rounded up, so that no lease becomes zero.
fn millis(span: Duration) -> String {
    span.as_nanos().div_ceil(1_000_000).to_string()
}

/// Sends a release behind an acquire that goes unanswered, on the same connection.
///
/// The core releases such a hold as well; but by then commands may go through a new connection, and the server may read
/// that one first.
struct Unanswered<'a> {
    connection: &'a Connection,
    keys: &'a Keys,
    undo: Option<ReleaseRequest>,
}

impl Unanswered<'_> {
    fn disarm(mut self) {
        self.undo = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        // Without a runtime the connection is dead as well.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (connection, keys) = (self.connection.clone(), self.keys.clone());
        runtime.spawn(async move {
            if let Err(error) = release(&connection, &keys, &undo).await {
                tracing::debug!(%error, "an unanswered acquire could not be undone on its own connection");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_become_whole_milliseconds_and_never_zero() {
        assert_eq!(millis(Duration::from_micros(1)), "1");
        assert_eq!(millis(Duration::from_micros(1500)), "2");
        assert_eq!(millis(Duration::from_secs(30)), "30000");
    }
}
