//! [`Tally`]: how much is under way, and the signal that nothing is any more.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts what is under way.
#[derive(Debug, Default)]
pub(super) struct Tally {
    count: AtomicUsize,
    none: Notify,
}

impl Tally {
    /// Counts one more, until the result is dropped.
    pub(super) fn count(self: &Arc<Self>) -> Counting {
        self.count.fetch_add(1, Ordering::SeqCst);
        Counting(self.clone())
    }

    /// Resolves when nothing is under way.
    pub(super) async fn none(&self) {
        loop {
            let none = self.none.notified();
            tokio::pin!(none);
            none.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            none.await;
        }
    }
}

/// One that is under way.
#[derive(Debug)]
pub(crate) struct Counting(Arc<Tally>);

impl Drop for Counting {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
