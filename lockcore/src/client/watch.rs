//! [`Watch`]: how a hold ended, for those who want to know.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use tokio::sync::Notify;

use crate::LossReason;

/// Wakes tasks. If a waker panics, that concerns its task only: whoever wakes it has work left that
/// others rely on, be it to give a hold back.
pub(super) fn wake(wake: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(wake)).is_err() {
        tracing::error!("the waker of a task has panicked");
    }
}

/// Told once how a hold ended. It outlives the hold, so nobody comes too late.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// `None` inside: it was released.
    end: OnceLock<Option<LossReason>>,
    ended: Notify,
    /// Keeps requests that carry a count in order.
    pub(super) storing: tokio::sync::Mutex<()>,
}

impl Watch {
    /// The hold ended: it was lost for this reason, or released. Only the first time counts.
    pub(super) fn end(&self, how: Option<LossReason>) {
        if self.end.set(how).is_ok() {
            wake(|| self.ended.notify_waiters());
        }
    }

    /// How the hold ended, if it did.
    pub(crate) fn get(&self) -> Option<Option<LossReason>> {
        self.end.get().copied()
    }

    /// Resolves when the hold ends.
    pub(crate) async fn ended(&self) -> Option<LossReason> {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(end) = self.get() {
                return end;
            }
            ended.await;
        }
    }
}
