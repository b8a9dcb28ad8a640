//! [`LatchLooks`]: waiters of a latch that look at it at the same time share one request.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use futures_util::{
    FutureExt,
    future::{FusedFuture, Shared, WeakShared},
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tokio::runtime::{self, Handle};

use super::shared::Client;
use crate::{BackendError, BackendErrorKind, LockName};

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
    runtime: Option<runtime::Id>,
    has_polled: bool,
}

impl Future for LatchLooker {
    type Output = Result<u32, BackendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.has_polled = true;
        self.look.poll_unpin(context)
    }
}

/// A wake-up that comes while this one polls is for this one alone: who joins meanwhile relies on
/// it to poll once more.
impl Drop for LatchLooker {
    fn drop(&mut self) {
        if self.has_polled && !self.look.is_terminated() && self.runtime == current_runtime() {
            let _ = self.look.poll_unpin(&mut Context::from_waker(Waker::noop()));
        }
    }
}

fn current_runtime() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

impl Client {
    /// Asks the backend for the count of `latch`. Waiters that a message has woken share the
    /// request if they run before it is sent.
    pub(crate) async fn look_at_latch(
        self: &Arc<Self>,
        latch: &LockName,
    ) -> Result<u32, BackendError> {
        let runtime = current_runtime();
        let look = self.join_look((latch.clone(), runtime));
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
    use std::{
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        task::Wake,
        thread,
    };

    use futures_util::future::poll_fn;

    use super::*;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// The answer comes while one of two waiters polls, and that one gives up.
    #[test]
    fn a_waiter_that_gives_up_leaves_its_wake_up_to_the_others() {
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
        let join = || LatchLooker { look: look.clone(), runtime: None, has_polled: false };
        let (mut first, mut second) = (join(), join());
        let giving_up = thread::spawn(move || {
            let mut context = Context::from_waker(Waker::noop());
            assert!(first.poll_unpin(&mut context).is_pending());
        });
        is_polling.recv().unwrap();
        let woken = Arc::new(Flag::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        assert!(second.poll_unpin(&mut context).is_pending(), "the other one polls");
        go_on.send(()).unwrap();
        giving_up.join().unwrap();
        assert!(woken.0.load(Ordering::SeqCst), "nobody polls any more");
        assert!(matches!(second.poll_unpin(&mut context), Poll::Ready(Ok(0))));
    }
}
