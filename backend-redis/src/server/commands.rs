//! A connection for commands: shared by all tasks, and replaced when it is given up.

use std::{
    future::ready,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{BackendError, BackendErrorKind};
use tokio::{sync::watch, task::AbortHandle};

use super::{
    connection::CommandConnection,
    opener::{Opener, Progress, Purpose},
    pace::Pace,
};
use crate::error;

/// Keeps the connection in use, and opens the next one.
#[derive(Debug)]
pub(crate) struct Commands {
    opener: Arc<Opener>,
    purpose: Purpose,
    pace: Arc<Pace>,
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    slot: Mutex<CurrentConnection>,
    /// Notified when a connection, or an attempt to open one, succeeds, fails, or is given up.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
enum CurrentConnection {
    #[default]
    Empty,
    Opening(Attempt),
    Open(Arc<CommandConnection>),
}

/// An attempt to connect, which all callers wait for. It is a task, so that it does not end with
/// the caller that started it.
#[derive(Debug)]
struct Attempt {
    progress: Arc<Progress>,
    outcome: watch::Receiver<Outcome>,
    task: AbortHandle,
}

/// The progress and the outcome of an attempt that a caller waits for.
type Joined = (Arc<Progress>, watch::Receiver<Outcome>);

/// `None` until the attempt is over.
type Outcome = Option<Result<Arc<CommandConnection>, BackendError>>;

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Commands {
    pub(super) fn new(opener: Arc<Opener>, purpose: Purpose) -> Self {
        Self {
            opener,
            purpose,
            pace: Arc::default(),
            slot: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    pub(super) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Notifies of each connection that is opened or given up.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn slot(&self) -> MutexGuard<'_, CurrentConnection> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection in use, if there is one.
    pub(super) fn current(&self) -> Option<Arc<CommandConnection>> {
        self.slot().usable().cloned()
    }

    /// Returns the connection in use, or waits for a new one.
    pub(super) async fn connection(
        self: &Arc<Self>,
    ) -> Result<Arc<CommandConnection>, BackendError> {
        match self.current() {
            Some(connection) => Ok(connection),
            // Boxed, because this future is large and rarely needed.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<CommandConnection>, BackendError> {
        loop {
            let (progress, mut outcome) = match self.join_attempt() {
                Ok(connection) => return Ok(connection),
                Err(attempt) => attempt,
            };
            let limit = self.opener.longest_step();
            loop {
                let left = limit.saturating_sub(progress.elapsed());
                let waited = tokio::time::timeout(left, outcome.wait_for(Option::is_some)).await;
                match waited.map(|outcome| outcome.ok().and_then(|outcome| outcome.clone())) {
                    Ok(Some(outcome)) => return outcome,
                    // The attempt was given up by another caller, or has ended with its runtime. The
                    // next one is made on this runtime, unless that has ended, too.
                    Ok(None) if tokio::spawn(ready(())).await.is_ok() => break,
                    Ok(None) => return Err(runtime_ended()),
                    // Another step has begun meanwhile.
                    Err(_) if progress.elapsed() < limit => {}
                    // The runtime of the attempt is not being driven.
                    Err(_) => return Err(self.abandon(&outcome, limit)),
                }
            }
        }
    }

    /// Joins the attempt that is being made, or starts one. If there is a connection by now, returns
    /// that.
    fn join_attempt(self: &Arc<Self>) -> Result<Arc<CommandConnection>, Joined> {
        let mut slot = self.slot();
        if let Some(connection) = slot.usable() {
            return Ok(connection.clone());
        }
        if let CurrentConnection::Opening(attempt) = &*slot
            && attempt.outcome.has_changed().is_ok()
            // Nobody may have driven its runtime since.
            && attempt.progress.elapsed() < self.opener.longest_step()
        {
            return Err((attempt.progress.clone(), attempt.outcome.clone()));
        }
        let (progress, (sender, outcome)) = (Arc::<Progress>::default(), watch::channel(None));
        let (opener, pace, commands) =
            (self.opener.clone(), self.pace.clone(), Arc::downgrade(self));
        let (purpose, steps) = (self.purpose, progress.clone());
        let task = tokio::spawn(async move {
            let opening = CommandConnection::open(&opener, purpose, commands.clone(), &steps);
            let opened = AssertUnwindSafe(pace.run(opening)).catch_unwind().await;
            let opened = opened.unwrap_or_else(|_| Err(error::panicked("connecting")));
            if let Some(commands) = commands.upgrade() {
                commands.finish_attempt(&sender, opened);
            }
        });
        let task = task.abort_handle();
        let attempt = Attempt { progress: progress.clone(), outcome: outcome.clone(), task };
        let earlier = std::mem::replace(&mut *slot, CurrentConnection::Opening(attempt));
        drop(slot);
        drop(earlier);
        Err((progress, outcome))
    }

    fn finish_attempt(
        &self,
        sender: &watch::Sender<Outcome>,
        opened: Result<Arc<CommandConnection>, BackendError>,
    ) {
        let mut slot = self.slot();
        if !slot.is_attempt(&sender.subscribe()) {
            // Given up at this moment. Another attempt may be under way.
            return;
        }
        let next = match &opened {
            Ok(connection) => CurrentConnection::Open(connection.clone()),
            Err(_) => CurrentConnection::Empty,
        };
        let attempt = std::mem::replace(&mut *slot, next);
        drop(slot);
        sender.send_replace(Some(opened));
        self.changes.send_replace(());
        // Aborts this task, which has nothing left to do.
        drop(attempt);
    }

    fn abandon(&self, attempt: &watch::Receiver<Outcome>, limit: Duration) -> BackendError {
        let mut slot = self.slot();
        let is_current = slot.is_attempt(attempt);
        let abandoned =
            if is_current { std::mem::take(&mut *slot) } else { CurrentConnection::Empty };
        drop(slot);
        drop(abandoned);
        self.changes.send_replace(());
        let message = format!("connecting to Redis came no further for {limit:?}");
        BackendError::new(BackendErrorKind::Timeout, message).not_applied()
    }

    /// Drops the shared reference to a connection that was given up. While that exists, the driver
    /// keeps reading, and a reply without an end would fill the memory.
    pub(super) fn lost(&self) {
        let mut slot = self.slot();
        let is_unusable = matches!(&*slot, CurrentConnection::Open(_)) && slot.usable().is_none();
        let unusable =
            if is_unusable { std::mem::take(&mut *slot) } else { CurrentConnection::Empty };
        drop(slot);
        drop(unusable);
        self.changes.send_replace(());
        self.opener.address.lost();
    }
}

impl CurrentConnection {
    fn usable(&self) -> Option<&Arc<CommandConnection>> {
        match self {
            Self::Open(connection) if connection.is_usable() => Some(connection),
            _ => None,
        }
    }

    /// Returns `true` if this is the attempt with the outcome.
    fn is_attempt(&self, outcome: &watch::Receiver<Outcome>) -> bool {
        matches!(self, Self::Opening(attempt) if attempt.outcome.same_channel(outcome))
    }
}

/// The error of a call on a runtime that has ended.
fn runtime_ended() -> BackendError {
    let message = "no connection to Redis can be opened on a runtime that has ended";
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}

/// The link of a connection to the place that it is shared from.
pub(super) type Home = Weak<Commands>;
