//! The connection for commands: shared by all tasks, and replaced when it breaks or stops
//! answering.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Cmd, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use tokio::runtime::Handle;

use crate::{
    batch::SendQueue,
    connect::Connector,
    error,
    script::{self, LuaScript, ScriptCall},
};

/// Sends script calls, each at most once.
#[derive(Debug)]
pub(crate) struct Commands {
    connector: Arc<Connector>,
    current: Arc<CurrentConnection>,
    /// Held while connecting, so that tasks that lost the same connection open one new connection.
    connecting: tokio::sync::Mutex<()>,
}

/// The connection in use. Critical sections are short and do not await, so this is not tokio's
/// mutex.
#[derive(Debug, Default)]
struct CurrentConnection(Mutex<Option<Arc<CommandConnection>>>);

impl CurrentConnection {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<CommandConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection for commands.
#[derive(Debug)]
pub(crate) struct CommandConnection {
    pub(crate) inner: MultiplexedConnection,
    /// The runtime of the connection's driver.
    pub(crate) runtime: Handle,
    /// The requests that wait to be sent in batches.
    pub(crate) queue: SendQueue,
    broken: Arc<AtomicBool>,
    /// The slot that other tasks take the connection from.
    current: Weak<CurrentConnection>,
}

/// Marks a connection as broken when its driver is dropped.
struct MarkBrokenOnDrop(Arc<AtomicBool>);

impl Drop for MarkBrokenOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl CommandConnection {
    /// Sends `call` once. If the connection fails or times out, it is discarded: a command on a
    /// connection that does not answer may arrive much later.
    pub(crate) async fn call(&self, call: &ScriptCall) -> Result<Value, BackendError> {
        self.send(call.script, |by_digest| call.command(by_digest)).await
    }

    /// Sends the command of a script once. If the server does not know the script, it has not run
    /// it, so the command is sent again with the source.
    pub(crate) async fn send(
        &self,
        script: &'static LuaScript,
        command: impl Fn(bool) -> Cmd,
    ) -> Result<Value, BackendError> {
        let by_digest = self.query(command(true)).await;
        let reply = match by_digest {
            Err(error) if script::is_unknown_script(&error) => {
                Box::pin(self.query(command(false))).await
            }
            reply => reply,
        };
        reply.map_err(|error| {
            let error = error::of_request(error, script.name);
            self.discard_if_broken(&error);
            error
        })
    }

    /// Sends one command. Unlike `Cmd::query_async`, this allocates no box.
    pub(crate) async fn query(&self, command: Cmd) -> RedisResult<Value> {
        let reply = self.inner.clone().send_packed_command(&command).await;
        reply.and_then(Value::extract_error)
    }

    /// Discards the connection if the error is one of the connection, not of the request.
    pub(crate) fn discard_if_broken(&self, error: &BackendError) {
        use BackendErrorKind::{Connection, Protocol, Timeout};
        if matches!(error.kind(), Connection | Timeout | Protocol) {
            self.discard();
        }
    }

    /// Stops other tasks from using the connection, and drops the shared reference to it. While
    /// that exists, the driver keeps reading, and a reply without an end would fill the memory.
    pub(crate) fn discard(&self) {
        self.broken.store(true, Ordering::Release);
        let Some(current) = self.current.upgrade() else { return };
        let unusable = current.lock().take_if(|connection| !connection.is_usable());
        drop(unusable);
    }

    fn is_usable(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }
}

impl Commands {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, current: Arc::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn current(&self) -> Option<Arc<CommandConnection>> {
        let current = self.current.lock();
        current.as_ref().filter(|connection| connection.is_usable()).cloned()
    }

    /// Returns the connection in use, or opens a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<CommandConnection>, BackendError> {
        match self.current() {
            Some(connection) => Ok(connection),
            // Boxed, because this future is large and rarely needed.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(&self) -> Result<Arc<CommandConnection>, BackendError> {
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let broken = Arc::new(AtomicBool::new(false));
        // The driver owns `on_push`, and the runtime owns the driver. So the connection is also
        // marked when the runtime shuts down.
        let mark = MarkBrokenOnDrop(broken.clone());
        let on_push = move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                mark.0.store(true, Ordering::Release);
            }
        };
        let connection = Arc::new(CommandConnection {
            inner: self.connector.open_checked(on_push).await?,
            runtime: Handle::current(),
            queue: SendQueue::default(),
            broken,
            current: Arc::downgrade(&self.current),
        });
        *self.current.lock() = Some(connection.clone());
        Ok(connection)
    }

    pub(crate) async fn call(&self, call: &ScriptCall) -> Result<Value, BackendError> {
        self.connection().await?.call(call).await
    }

    /// Like [`call`](Self::call), for callers that drop the future only when it takes too long: the
    /// connection is discarded if the future is dropped before the reply.
    pub(crate) async fn call_or_discard(&self, call: &ScriptCall) -> Result<Value, BackendError> {
        struct DiscardOnDrop(Option<Arc<CommandConnection>>);
        impl Drop for DiscardOnDrop {
            fn drop(&mut self) {
                if let Some(connection) = &self.0 {
                    connection.discard();
                }
            }
        }
        let connection = self.connection().await?;
        let mut unanswered = DiscardOnDrop(Some(connection.clone()));
        let reply = connection.call(call).await;
        unanswered.0 = None;
        reply
    }
}
