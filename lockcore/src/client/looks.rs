//! [`LatchLooks`]: waiters of a latch that look at it at the same time share one request.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::{
    FutureExt,
    future::{FusedFuture, Shared, WeakShared},
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tokio::{
    runtime::{self, Handle},
    time::timeout,
};

use super::shared::Client;
use crate::{BackendError, BackendErrorKind, LockName, time::ANSWER};

/// A request for the count of a latch. Whoever waits for its answer polls it through a
/// [`LatchLooker`], so a task that no longer polls its future holds up nobody else.
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

/// One of the waiters that share a request.
struct LatchLooker {
    look: Shared<LatchLook>,
    runtime: Option<Handle>,
    has_polled: bool,
}

impl Future for LatchLooker {
    type Output = Result<u32, BackendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.has_polled = true;
        self.look.poll_unpin(context)
    }
}

/// A wake-up that comes while a waiter polls is for that one alone, and who joins meanwhile relies
/// on it to poll once more. If it gives up instead, a task does that for the others.
impl Drop for LatchLooker {
    fn drop(&mut self) {
        let is_shared = self.look.strong_count() > Some(1);
        if self.has_polled
            && is_shared
            && !self.look.is_terminated()
            && let Some(runtime) = &self.runtime
        {
            let look = self.look.clone();
            runtime.spawn(async move { timeout(ANSWER, look).await });
        }
    }
}

impl Client {
    /// Asks the backend for the count of `latch`. Waiters that a message has woken share the
    /// request if they run before it is sent.
    pub(crate) async fn look_at_latch(
        self: &Arc<Self>,
        latch: &LockName,
    ) -> Result<u32, BackendError> {
        let runtime = Handle::try_current().ok();
        let look = self.join_look((latch.clone(), runtime.as_ref().map(Handle::id)));
        let looker = LatchLooker { look, runtime, has_polled: false };
        // Meanwhile, the other tasks that were woken join it.
        tokio::task::yield_now().await;
        looker.await
    }

    fn join_look(self: &Arc<Self>, key: Key) -> Shared<LatchLook> {
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, task::Waker, thread, time::Duration};

    use futures_util::future::poll_fn;

    use super::*;

    /// The answer comes while one of two waiters polls, and that one gives up.
    #[tokio::test]
    async fn a_waiter_that_gives_up_leaves_its_wake_up_to_the_others() {
        let ((polling, is_polling), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        let mut is_first = true;
        let look: LatchLook = Box::pin(poll_fn(move |context| {
            if !std::mem::take(&mut is_first) {
                return Poll::Ready(Ok(0));
            }
            context.waker().wake_by_ref();
            polling.send(()).unwrap();
            may_go_on.recv().unwrap();
            Poll::Pending
        }));
        let look = look.shared();
        let join = || {
            let runtime = Some(Handle::current());
            LatchLooker { look: look.clone(), runtime, has_polled: false }
        };
        let (mut first, mut second) = (join(), join());
        let giving_up = thread::spawn(move || {
            let mut context = Context::from_waker(Waker::noop());
            assert!(first.poll_unpin(&mut context).is_pending());
        });
        is_polling.recv().unwrap();
        let polled = second.poll_unpin(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the other one polls");
        let waiting = tokio::spawn(second);
        tokio::task::yield_now().await;
        go_on.send(()).unwrap();
        giving_up.join().unwrap();
        let waited = timeout(Duration::from_secs(20), waiting).await;
        assert!(matches!(waited.expect("nobody polls any more"), Ok(Ok(0))));
    }
}
