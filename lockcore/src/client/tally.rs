//! [`Tally`]: how much is under way, and the signal that nothing is any more.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts what is under way.
#[derive(Debug, Default)]
pub(super) struct Tally {
    count: AtomicUsize,
    none: Notify,
}

impl Tally {
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn subtract(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none.notify_waiters();
        }
    }

    /// Counts one more, until the result is dropped.
    pub(super) fn count(&self) -> Counting<'_> {
        self.add();
        Counting(self)
    }

    /// One that was added before is over when the result is dropped.
    pub(super) fn done_on_drop(&self) -> Counting<'_> {
        Counting(self)
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
pub(crate) struct Counting<'a>(&'a Tally);

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.subtract();
    }
}
