//! [`RecentReleases`]: releases that a failover may have undone.
//!
//! A manual failover promotes the replica first. For a second or two, the old primary goes on
//! answering, and its writes are lost: a lock that was released there is still held at the new
//! primary. So the releases of the last seconds are repeated there. A release names its hold, so it
//! does no harm to the next one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use lockcore::{BackendError, backend::ReleaseRequest};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    dispatch::release_call,
    keys::LockKeys,
    server::{CommandConnection, Identity, Server},
};

/// The greatest age of a release, relative to the last one.
const KEPT: Duration = Duration::from_secs(3);
/// How long to look for the next primary. After that, most leases have ended.
const SOUGHT: Duration = Duration::from_secs(60);
/// The pause after releases that could not be repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// The most releases that are remembered: some 4 MB.
const MOST: usize = 10_000;

/// The last releases that the primary has answered.
#[derive(Debug)]
pub(crate) struct RecentReleases {
    server: Weak<Server>,
    key_prefix: Arc<str>,
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    state: Mutex<State>,
    /// Notified of a release that was answered by a primary which has been succeeded.
    is_late: Notify,
}

#[derive(Debug, Default)]
struct State {
    releases: VecDeque<Answered>,
    /// The task that repeats them. It ends with its runtime, and is started again by the next
    /// release.
    task: Option<JoinHandle<()>>,
}

/// A release that was answered.
#[derive(Debug)]
struct Answered {
    request: ReleaseRequest,
    at: Instant,
    connection: Weak<CommandConnection>,
    by: Identity,
}

impl Answered {
    /// Returns `true` if `connection` certainly leads to the server that answered.
    fn is_known_to(&self, connection: &Arc<CommandConnection>) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(connection))
            || self.by.is_surely(&connection.identity)
    }
}

impl RecentReleases {
    pub(crate) fn new(server: &Arc<Server>, key_prefix: Arc<str>) -> Self {
        let server = Arc::downgrade(server);
        Self { server, key_prefix, state: Mutex::default(), is_late: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a release that was answered on `connection`.
    pub(crate) fn note(
        self: &Arc<Self>,
        request: &ReleaseRequest,
        connection: &Arc<CommandConnection>,
    ) {
        if request.remaining > 0 {
            // If it were repeated later, it would undo what has been acquired or released since.
            return;
        }
        let (request, at) = (request.clone(), Instant::now());
        let (weak, by) = (Arc::downgrade(connection), connection.identity.clone());
        let mut state = self.state();
        while let Some(first) = state.releases.front()
            && (at - first.at > KEPT || state.releases.len() >= MOST)
        {
            state.releases.pop_front();
        }
        state.releases.push_back(Answered { request, at, connection: weak, by });
        if state.task.as_ref().is_none_or(JoinHandle::is_finished) {
            state.task = self.start();
        }
        drop(state);
        // Looked at after the release is remembered: the others have been repeated by now.
        if !connection.is_usable() {
            self.is_late.notify_one();
        }
    }

    fn start(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let (runtime, server) = (Handle::try_current().ok()?, self.server.upgrade()?);
        let mut changes = server.changes();
        changes.mark_changed();
        Some(runtime.spawn(self.clone().follow(changes)))
    }

    /// Repeats the releases at each server that takes over. Ends with the server.
    async fn follow(self: Arc<Self>, mut changes: watch::Receiver<()>) {
        let mut are_left = false;
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.is_late.notified() => {}
                () = tokio::time::sleep(PAUSE), if are_left => {}
            }
            let Some(server) = self.server.upgrade() else { return };
            // An idle client would not connect before its next renewal. After a failed attempt, the
            // next change follows soon.
            let connection = match server.current() {
                None if self.are_recent() => server.connection().await.ok(),
                current => current,
            };
            drop(server);
            are_left = match connection {
                Some(connection) => self.repeat(&connection).await && self.are_recent(),
                None => false,
            };
        }
    }

    /// Returns `true` if the last release was answered less than a minute ago.
    fn are_recent(&self) -> bool {
        self.state().releases.back().is_some_and(|last| last.at.elapsed() <= SOUGHT)
    }

    /// Repeats the releases that another server has answered, however long ago. Returns `true` if
    /// some are to be repeated once more.
    async fn repeat(&self, connection: &Arc<CommandConnection>) -> bool {
        let lost: Vec<Answered> = {
            let releases = &mut self.state().releases;
            let (known, lost) = std::mem::take(releases)
                .into_iter()
                .partition(|answered| answered.is_known_to(connection));
            *releases = known;
            Vec::from(lost)
        };
        if lost.is_empty() {
            return false;
        }
        let repeating = lost.iter().map(|answered| self.repeat_one(connection, &answered.request));
        let outcomes = join_all(repeating).await;
        tracing::debug!(releases = lost.len(), "repeated the last releases");
        let failed = lost
            .into_iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.as_ref().is_err_and(BackendError::is_retryable));
        let failed: Vec<Answered> = failed.map(|(answered, _)| answered).collect();
        let are_left = !failed.is_empty();
        let releases = &mut self.state().releases;
        for answered in failed.into_iter().rev() {
            releases.push_front(answered);
        }
        are_left
    }

    async fn repeat_one(
        &self,
        connection: &CommandConnection,
        request: &ReleaseRequest,
    ) -> Result<(), BackendError> {
        let keys = LockKeys::new(&self.key_prefix, &request.name)?;
        connection.call(&release_call(&keys, request)?).await.map(drop)
    }
}
