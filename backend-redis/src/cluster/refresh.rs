//! Refreshing the map of slots: one attempt at a time, for all requests together.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use tokio::{runtime::Handle, time::Instant};

use super::{
    Cluster,
    slots::{NodeAddress, SlotMap},
};

/// The age at which the map is refreshed while the cluster is in use.
pub(super) const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// The range of the pause between attempts, which doubles while the map does not change.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How long one node may take for its answer. Another one is asked then.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);

/// When the map was and will be refreshed.
#[derive(Debug, Default)]
pub(super) struct RefreshState {
    /// Critical sections are short and do not await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    last: Option<Instant>,
    pause: Duration,
    /// Counts the attempts, so that another node is asked each time.
    attempts: usize,
}

impl RefreshState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends an attempt, also if its runtime shuts down.
struct EndOnDrop<'a>(&'a RefreshState);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_running = false;
        state.last = Some(Instant::now());
    }
}

impl Cluster {
    /// Refreshes the map if it is old.
    pub(super) fn refresh_if_old(self: &Arc<Self>) {
        let is_old = {
            let state = self.refresh.lock();
            !state.is_running && state.last.is_none_or(|last| last.elapsed() >= REFRESH_EVERY)
        };
        if is_old {
            self.refresh_soon();
        }
    }

    /// Has the map refreshed as soon as the pace allows it.
    pub(super) fn refresh_soon(self: &Arc<Self>) {
        // Without a runtime, no request is under way either.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = self.refresh.lock();
        if state.is_running {
            return;
        }
        state.is_running = true;
        let wait = match state.last.map(|last| last.elapsed()) {
            Some(elapsed) if elapsed < REFRESH_EVERY => state.pause.saturating_sub(elapsed),
            _ => {
                state.pause = Duration::ZERO;
                Duration::ZERO
            }
        };
        drop(state);
        let cluster = self.clone();
        runtime.spawn(async move {
            let running = EndOnDrop(&cluster.refresh);
            tokio::time::sleep(wait).await;
            let has_changed = match cluster.fetch().await {
                Ok(map) => cluster.adopt(map),
                Err(error) => {
                    tracing::debug!(%error, "failed to refresh the map of the cluster");
                    false
                }
            };
            let mut state = cluster.refresh.lock();
            state.pause = match has_changed {
                true => FIRST_PAUSE,
                false => (2 * state.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE),
            };
            drop(state);
            drop(running);
        });
    }

    /// Asks one node after the other for the map, first those that have a connection.
    pub(super) async fn fetch(&self) -> Result<SlotMap, BackendError> {
        let mut candidates = self.nodes.connected();
        let attempts = {
            let mut state = self.refresh.lock();
            state.attempts = state.attempts.wrapping_add(1);
            state.attempts
        };
        if let Some(first) = attempts.checked_rem(candidates.len()) {
            candidates.rotate_left(first);
        }
        let map = self.map();
        for node in map.primaries().iter().chain(&self.seeds) {
            if !candidates.contains(node) {
                candidates.push(node.clone());
            }
        }
        let mut failure = None;
        for node in candidates {
            match self.fetch_from(&node).await {
                Ok(map) => return Ok(map),
                // The first failure is that of the node that should have known.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            let message = "no node of the cluster is known";
            BackendError::new(BackendErrorKind::Configuration, message)
        }))
    }

    async fn fetch_from(&self, node: &NodeAddress) -> Result<SlotMap, BackendError> {
        let server = self.nodes.server(node);
        let limit = LONGEST_ANSWER.min(self.nodes.response_timeout());
        let asking = server.ask(redis::cmd("CLUSTER").arg("SLOTS").take(), "CLUSTER SLOTS");
        let reply = match tokio::time::timeout(limit, asking).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(without_cluster(&error, node).unwrap_or(error)),
            Err(_) => {
                let message = format!("no answer from {node} within {limit:?}");
                return Err(BackendError::new(BackendErrorKind::Timeout, message).not_applied());
            }
        };
        let map = SlotMap::parse(&reply, node)
            .ok_or_else(|| crate::error::unexpected("CLUSTER SLOTS").not_applied())?;
        if map.primaries().is_empty() {
            let message = format!("the cluster of {node} has no slots");
            return Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied());
        }
        Ok(map)
    }

    /// Takes over a new map. Returns `true` if it differs from the one before.
    pub(super) fn adopt(&self, map: SlotMap) -> bool {
        let has_changed = self.topology.send_if_modified(|known| {
            let has_changed = **known != map;
            if has_changed {
                *known = Arc::new(map);
            }
            has_changed
        });
        if has_changed {
            tracing::debug!("the map of the cluster has changed");
            self.nodes.retain(&self.map());
        }
        has_changed
    }
}

/// The error for a server that is not a node of a cluster.
fn without_cluster(error: &BackendError, node: &NodeAddress) -> Option<BackendError> {
    let source = std::error::Error::source(error)?.to_string();
    source.contains("cluster support disabled").then(|| {
        let message = format!(
            "the server at {node} is not a node of a cluster; use a URL redis:// for a single \
             server"
        );
        BackendError::new(BackendErrorKind::Configuration, message).not_applied()
    })
}
