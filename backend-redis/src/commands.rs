//! The connection for commands: one for all tasks, replaced when it is broken or silent.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{Cmd, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use tokio::runtime::Handle;

use crate::{
    batch::Queue,
    connect::Connector,
    error,
    script::{self, Call, Script},
};

/// Sends script calls, each at most once.
#[derive(Debug)]
pub(crate) struct Commands {
    connector: Arc<Connector>,
    current: Arc<Current>,
    /// Held while connecting, so that tasks which lost the same connection make one new one.
    connecting: tokio::sync::Mutex<()>,
}

/// The connection in use. Short critical sections without awaits, hence not tokio's mutex.
#[derive(Debug, Default)]
struct Current(Mutex<Option<Arc<Connection>>>);

impl Current {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, and whether it has been found unusable.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) inner: MultiplexedConnection,
    /// Where its driver runs.
    pub(crate) runtime: Handle,
    /// What goes out together.
    pub(crate) queue: Queue,
    broken: Arc<AtomicBool>,
    /// Where it is kept for others.
    current: Weak<Current>,
}

/// Marks a connection as unusable when its driver is gone.
struct BrokenWhenDropped(Arc<AtomicBool>);

impl Drop for BrokenWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Sends `call` once. After a failure of the connection, or a silence, nobody else uses it: what is sent on a
    /// connection that does not answer may arrive much later.
    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        self.send(call.script, |by_digest| call.command(by_digest)).await
    }

    /// Sends the command of a script once. A server that does not know the script has not run it, so the source may follow.
    pub(crate) async fn send(
        &self,
        script: &'static Script,
        command: impl Fn(bool) -> Cmd,
    ) -> Result<Value, BackendError> {
        let by_digest = self.query(command(true)).await;
        let reply = match by_digest {
            Err(error) if script::is_unknown(&error) => Box::pin(self.query(command(false))).await,
            reply => reply,
        };
        reply.map_err(|error| {
            let error = error::of_request(error, script.name);
            self.give_up_after(&error);
            error
        })
    }

    /// Without the box that `Cmd::query_async` has made for each command.
    pub(crate) async fn query(&self, command: Cmd) -> RedisResult<Value> {
        let reply = self.inner.clone().send_packed_command(&command).await;
        reply.and_then(Value::extract_error)
    }

    /// Gives the connection up if the error is its own.
    pub(crate) fn give_up_after(&self, error: &BackendError) {
        use BackendErrorKind::{Connection, Protocol, Timeout};
        if matches!(error.kind(), Connection | Timeout | Protocol) {
            self.give_up();
        }
    }

    /// Has nobody else use the connection, nor keep it: what is kept is read, and a server that never ends its answer would fill
    /// the memory.
    pub(crate) fn give_up(&self) {
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

    fn current(&self) -> Option<Arc<Connection>> {
        let current = self.current.lock();
        current.as_ref().filter(|connection| connection.is_usable()).cloned()
    }

    /// The connection in use, or a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        match self.current() {
            Some(connection) => Ok(connection),
            // In a box, as it is large and rare.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(&self) -> Result<Arc<Connection>, BackendError> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let broken = Arc::new(AtomicBool::new(false));
        // The driver of the connection owns `on_push`: it goes with the driver, which goes with its runtime.
        let notice = BrokenWhenDropped(broken.clone());
        let on_push = move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                notice.0.store(true, Ordering::Release);
            }
        };
        let connection = Arc::new(Connection {
            inner: self.connector.open_checked(on_push).await?,
            runtime: Handle::current(),
            queue: Queue::default(),
            broken,
            current: Arc::downgrade(&self.current),
        });
        *self.current.lock() = Some(connection.clone());
        Ok(connection)
    }

    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        self.connection().await?.call(call).await
    }

    /// As [`call`](Self::call), for callers that only stop waiting when they have waited for too long: dropped without an
    /// answer, the connection is given up.
    pub(crate) async fn call_in_time(&self, call: &Call) -> Result<Value, BackendError> {
        struct GiveUp(Option<Arc<Connection>>);
        impl Drop for GiveUp {
            fn drop(&mut self) {
                if let Some(connection) = &self.0 {
                    connection.give_up();
                }
            }
        }
        let connection = self.connection().await?;
        let mut silent = GiveUp(Some(connection.clone()));
        let reply = connection.call(call).await;
        silent.0 = None;
        reply
    }
}
