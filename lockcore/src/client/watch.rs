//! [`Watch`]: tells watchers how a hold ended.

use std::{sync::OnceLock, time::Duration};

use tokio::{
    sync::{Mutex, MutexGuard, Notify},
    time::timeout,
};

use super::foreign::foreign;
use crate::{BackendError, BackendErrorKind, LossReason, time::ANSWER};

/// Records once how a hold ended. It outlives the hold, so that nobody asks too late.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// `Some(None)` if the hold was released.
    end: OnceLock<Option<LossReason>>,
    ended: Notify,
    /// Keeps requests that carry a count in order.
    storing: Mutex<()>,
}

impl Watch {
    /// The hold ended: it was lost for this reason, or released. Only the first time counts.
    pub(super) fn end(&self, how: Option<LossReason>) {
        if self.end.set(how).is_ok() {
            foreign(|| self.ended.notify_waiters());
        }
    }

    /// The turn to make a request that carries a count.
    ///
    /// # Errors
    /// A time-out if the request before does not end. A request ends after [`ANSWER`], unless its
    /// future is kept without being polled.
    pub(super) async fn turn(&self) -> Result<MutexGuard<'_, ()>, BackendError> {
        if let Ok(turn) = self.storing.try_lock() {
            return Ok(turn);
        }
        timeout(ANSWER + Duration::from_secs(1), self.storing.lock()).await.map_err(|_| {
            let message = "an earlier nested acquisition is under way, but nobody polls it";
            BackendError::new(BackendErrorKind::Timeout, message).not_applied()
        })
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
