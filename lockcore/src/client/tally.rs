//! [`Tally`]: a count of things under way, with a signal when it reaches zero.

use std::{
    borrow::Borrow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// Counts things that are under way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    none: Notify,
    /// Set once somebody waits for zero. Before that, nobody has to be notified.
    is_awaited: AtomicBool,
}

impl Tally {
    /// Counts one more, until the result is dropped.
    pub(super) fn count(&self) -> Counting<&Self> {
        self.add();
        Counting(self)
    }

    /// As [`count`](Self::count), without a borrow.
    pub(super) fn count_owned(self: &Arc<Self>) -> Counting<Arc<Self>> {
        self.add();
        Counting(self.clone())
    }

    /// Counts one more, until it is subtracted.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn subtract(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_awaited.load(Ordering::SeqCst)
        {
            self.none.notify_waiters();
        }
    }

    /// Resolves when nothing is under way.
    pub(super) async fn none(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
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

/// One counted thing that is under way.
#[derive(Debug)]
pub(crate) struct Counting<T: Borrow<Tally>>(T);

impl<T: Borrow<Tally>> Drop for Counting<T> {
    fn drop(&mut self) {
        self.0.borrow().subtract();
    }
}
