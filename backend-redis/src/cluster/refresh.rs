//! Refreshing the map of slots: one attempt at a time, for all requests together.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use redis::Value;
use tokio::{runtime::Handle, time::Instant};

use super::{
    Cluster,
    slots::{NodeAddress, SlotMap},
};
use crate::in_turn::{HEAD_START, ask_in_turn};

/// The age at which the map is refreshed while the cluster is in use.
pub(super) const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The range of the pause between attempts, which doubles while the map does not change.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// How long one node may take for its answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// An attempt that takes longer belongs to a runtime that is not being driven.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

/// The times at which the map was and will be refreshed.
#[derive(Debug, Default)]
pub(super) struct RefreshState {
    /// Critical sections are short and do not await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The start of the attempt that is being made.
    running: Option<Instant>,
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

impl State {
    /// Returns `true` while an attempt is being made. An attempt on a runtime that is not being
    /// driven counts for five seconds only.
    fn is_running(&self) -> bool {
        self.running.is_some_and(|began| began.elapsed() < LONGEST_ATTEMPT)
    }
}

/// Ends an attempt, also if its runtime shuts down.
struct EndOnDrop {
    cluster: Arc<Cluster>,
    began: Instant,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let mut state = self.cluster.refresh.lock();
        if state.running == Some(self.began) {
            state.running = None;
            state.last = Some(Instant::now());
        }
    }
}

impl Cluster {
    /// Refreshes the map if it is old.
    pub(super) fn refresh_if_old(self: &Arc<Self>) {
        let is_old = {
            let state = self.refresh.lock();
            !state.is_running() && state.last.is_none_or(|last| last.elapsed() >= REFRESH_EVERY)
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
        if state.is_running() {
            return;
        }
        let began = Instant::now();
        state.running = Some(began);
        let wait = match state.last.map(|last| last.elapsed()) {
            Some(elapsed) if elapsed < REFRESH_EVERY => state.pause.saturating_sub(elapsed),
            _ => {
                state.pause = Duration::ZERO;
                Duration::ZERO
            }
        };
        drop(state);
        // Made here: the task may never be polled.
        let running = EndOnDrop { cluster: self.clone(), began };
        runtime.spawn(async move {
            let cluster = &running.cluster;
            tokio::time::sleep(wait).await;
            let has_changed = match cluster.fetch(LONGEST_ANSWER).await {
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

    /// Asks the nodes for the map until one answers, each for `limit` at most.
    ///
    /// A node that is cut off from the others answers as well, but with an old map. It reports that
    /// the cluster is down, so its map is used only if no other node answers.
    pub(super) async fn fetch(self: &Arc<Self>, limit: Duration) -> Result<SlotMap, BackendError> {
        let ask = |node: NodeAddress| {
            let cluster = self.clone();
            async move {
                let fetching = tokio::time::timeout(limit, cluster.fetch_from(&node));
                fetching.await.unwrap_or_else(|_| Err(no_answer(&node, limit)))
            }
        };
        let view = ask_in_turn(self.candidates(), HEAD_START, ask, |view| view.is_served).await;
        view.map(|view| view.map).map_err(of_all)
    }

    /// The nodes in the order in which they are asked: first those that have a connection,
    /// beginning with a different one each time.
    fn candidates(&self) -> Vec<NodeAddress> {
        let mut candidates = self.nodes.connected();
        let attempts = {
            let mut state = self.refresh.lock();
            state.attempts = state.attempts.wrapping_add(1);
            state.attempts
        };
        if let Some(first) = attempts.checked_rem(candidates.len()) {
            candidates.rotate_left(first);
        }
        for node in self.map().primaries().iter().chain(&self.seeds) {
            if !candidates.contains(node) {
                candidates.push(node.clone());
            }
        }
        candidates
    }

    async fn fetch_from(&self, node: &NodeAddress) -> Result<View, BackendError> {
        let server = self.nodes.server(node);
        let slots = server.ask(redis::cmd("CLUSTER").arg("SLOTS").take(), "CLUSTER SLOTS").await;
        let slots = slots.map_err(|error| without_cluster(&error, node).unwrap_or(error))?;
        let map = SlotMap::parse(&slots, node)
            .ok_or_else(|| crate::error::unexpected("CLUSTER SLOTS").not_applied())?;
        if map.primaries().is_empty() {
            let message = format!("the cluster of {node} has no slots");
            return Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied());
        }
        let info = server.ask(redis::cmd("CLUSTER").arg("INFO").take(), "CLUSTER INFO").await;
        // A user may have no right to it.
        let is_served = info.map_or(true, |info| !says_down(info));
        Ok(View { map, is_served })
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

/// The map as one node knows it.
struct View {
    map: SlotMap,
    /// The node says that the cluster serves its slots.
    is_served: bool,
}

fn says_down(info: Value) -> bool {
    let info: Result<String, _> = redis::from_redis_value(info);
    info.is_ok_and(|info| info.contains("cluster_state:fail"))
}

fn no_answer(node: &NodeAddress, limit: Duration) -> BackendError {
    let message = format!("no answer from {node} within {limit:?}");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The error if no node knows. A permanent error is not hidden behind a temporary one; otherwise
/// the first error counts, which is that of the node that should have known.
fn of_all(failures: Vec<BackendError>) -> BackendError {
    let lasting = failures.iter().find(|failure| !failure.is_retryable());
    lasting.or(failures.first()).cloned().unwrap_or_else(|| {
        let message = "no node of the cluster is known";
        BackendError::new(BackendErrorKind::Configuration, message).not_applied()
    })
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
