//! [`LatchLooks`]: waiters of a latch that look at it at the same time share one request.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{Shared, WeakShared},
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tokio::runtime::{self, Handle};

use super::shared::Client;
use crate::{BackendError, BackendErrorKind, LockName};

/// A request for the count of a latch. Whoever waits for its answer polls it, so a task that no
/// longer polls its future holds up nobody else.
type LatchLook = Pin<Box<dyn Future<Output = Result<u32, BackendError>> + Send>>;

/// A latch and the runtime of its waiters. Runtimes do not share requests: what a backend awaits
/// may end with the runtime on which the request began.
type Key = (LockName, Option<runtime::Id>);

/// The looks at latches that can still be joined.
#[derive(Debug, Default)]
pub(super) struct LatchLooks {
    /// Those that have not been sent: an answer may be older than a waiter that joins later. Short
    /// critical sections without awaits, in which no look is dropped.
    unsent: Mutex<HashMap<Key, WeakShared<LatchLook>, FxBuildHasher>>,
}

impl LatchLooks {
    fn unsent(&self) -> MutexGuard<'_, HashMap<Key, WeakShared<LatchLook>, FxBuildHasher>> {
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
        let look = self.join_look(latch);
        // Meanwhile, the other tasks that were woken join it.
        tokio::task::yield_now().await;
        look.await
    }

    fn join_look(self: &Arc<Self>, latch: &LockName) -> Shared<LatchLook> {
        let key = (latch.clone(), Handle::try_current().ok().map(|runtime| runtime.id()));
        let mut unsent = self.looks.unsent();
        if let Some(look) = unsent.get(&key).and_then(WeakShared::upgrade) {
            return look;
        }
        let joinable = Joinable { client: self.clone(), key: key.clone() };
        let look: LatchLook = Box::pin(async move {
            let (client, latch) = (joinable.client.clone(), joinable.key.0.clone());
            drop(joinable);
            let count = async {
                match client.backend.latches() {
                    Some(latches) => latches.count(&latch).await,
                    None => Err(BackendError::unsupported("latches")),
                }
            };
            // Otherwise all who share it would panic, and some only much later.
            let count = AssertUnwindSafe(count).catch_unwind().await;
            let panicked = "the backend panicked";
            count.unwrap_or_else(|_| Err(BackendError::new(BackendErrorKind::Other, panicked)))
        });
        let look = look.shared();
        if let Some(weak) = look.downgrade() {
            unsent.insert(key, weak);
        }
        look
    }
}
