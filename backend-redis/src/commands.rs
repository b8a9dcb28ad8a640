//! The connection for commands: one for all tasks, replaced when it is broken or silent.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use lockcore::{BackendError, BackendErrorKind};
use redis::{PushKind, Value, aio::MultiplexedConnection};
use tokio::runtime::Handle;

use crate::{batch::Queue, connect::Connector, script::Call};

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
struct Current(Mutex<Option<Connection>>);

impl Current {
    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, and whether it has been found unusable.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) inner: MultiplexedConnection,
    /// Where its driver runs.
    pub(crate) runtime: Handle,
    /// What goes out together.
    pub(crate) queue: Arc<Queue>,
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
        let reply = call.send(&mut self.inner.clone()).await;
        if let Err(error) = &reply {
            self.give_up_after(error);
        }
        reply
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

    fn current(&self) -> Option<Connection> {
        let current = self.current.lock();
        current.as_ref().filter(|connection| connection.is_usable()).cloned()
    }

    /// The connection in use, or a new one.
    pub(crate) async fn connection(&self) -> Result<Connection, BackendError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
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
        let connection = Connection {
            inner: self.connector.open_checked(on_push).await?,
            runtime: Handle::current(),
            queue: Arc::default(),
            broken,
            current: Arc::downgrade(&self.current),
        };
        *self.current.lock() = Some(connection.clone());
        Ok(connection)
    }

    pub(crate) async fn call(&self, call: &Call) -> Result<Value, BackendError> {
        self.connection().await?.call(call).await
    }

    /// As [`call`](Self::call), for callers that only stop waiting when they have waited for too long: dropped without an
    /// answer, the connection is given up.
    pub(crate) async fn call_in_time(&self, call: &Call) -> Result<Value, BackendError> {
        struct GiveUp(Option<Connection>);
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
