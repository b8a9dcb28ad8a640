//! [`LatchLooks`]: waiters of a latch that look at it at the same time share one request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tokio::{
    runtime::{self, Handle},
    sync::watch,
};

use super::shared::Client;
use crate::{BackendError, BackendErrorKind, LockName};

/// The answer to a look, once it has come.
type LatchCount = Option<Result<u32, BackendError>>;

/// A latch and the runtime of its waiters. Runtimes do not share requests: what a backend awaits
/// may end with the runtime on which the request began.
type Key = (LockName, runtime::Id);

/// The looks at latches that can still be joined.
#[derive(Debug, Default)]
pub(super) struct LatchLooks {
    /// Those that have not been sent: an answer may be older than a waiter that joins later. Short
    /// critical sections without awaits.
    unsent: Mutex<HashMap<Key, watch::Sender<LatchCount>, FxBuildHasher>>,
}

impl LatchLooks {
    fn unsent(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<LatchCount>, FxBuildHasher>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look that can be joined, until this value is dropped.
struct Joinable {
    client: Arc<Client>,
    key: Key,
}

impl Drop for Joinable {
    fn drop(&mut self) {
        self.client.looks.unsent().remove(&self.key);
    }
}

impl Client {
    /// Asks the backend for the count of `latch`. Waiters that a message has woken share the
    /// request if they run before it is sent.
    pub(crate) async fn look_at_latch(
        self: &Arc<Self>,
        latch: &LockName,
    ) -> Result<u32, BackendError> {
        let Ok(runtime) = Handle::try_current() else { return self.count_of(latch).await };
        let mut look = self.join_look(latch, &runtime);
        let answer = look.wait_for(Option::is_some).await;
        let answer = answer.ok().and_then(|answer| answer.clone());
        // The task of the look has ended without one.
        let panicked = || BackendError::new(BackendErrorKind::Other, "the backend panicked");
        answer.unwrap_or_else(|| Err(panicked()))
    }

    /// The request has a task of its own. So it depends on none of the waiters, which may stop
    /// polling at any time, and ends when all of them have given up.
    fn join_look(
        self: &Arc<Self>,
        latch: &LockName,
        runtime: &Handle,
    ) -> watch::Receiver<LatchCount> {
        let key = (latch.clone(), runtime.id());
        let mut unsent = self.looks.unsent();
        if let Some(look) = unsent.get(&key) {
            return look.subscribe();
        }
        let (look, answer) = watch::channel(None);
        unsent.insert(key.clone(), look.clone());
        drop(unsent);
        // A runtime that has ended drops it at once, here.
        let joinable = Joinable { client: self.clone(), key };
        runtime.spawn(async move {
            // Meanwhile, the other tasks that were woken join it.
            tokio::task::yield_now().await;
            let (client, latch) = (joinable.client.clone(), joinable.key.0.clone());
            drop(joinable);
            tokio::select! {
                biased;
                () = look.closed() => {}
                count = client.count_of(&latch) => drop(look.send_replace(Some(count))),
            }
        });
        answer
    }

    async fn count_of(&self, latch: &LockName) -> Result<u32, BackendError> {
        match self.backend.latches() {
            Some(latches) => latches.count(latch).await,
            None => Err(BackendError::unsupported("latches")),
        }
    }
}
