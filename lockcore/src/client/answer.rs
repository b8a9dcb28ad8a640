//! Calls of the backend, which may never return: [`answer`], and [`unless`] below it.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use crate::{BackendError, BackendErrorKind, time::ANSWER};

/// Calls the backend, and waits for its answer for a limited time.
pub(super) async fn answer<T>(
    call: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let answer = unless(|| tokio::time::sleep(ANSWER), call).await;
    answer.unwrap_or_else(|()| Err(no_answer()))
}

/// The error for a call that was not answered in time.
pub(super) fn no_answer() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "the backend has given no answer")
}

/// Does `work`, unless the future that `cut_off` makes resolves first. `cut_off` is called only if
/// `work` is not done at once, which it often is.
pub(super) async fn unless<T, C: Future>(
    cut_off: impl FnOnce() -> C,
    work: impl Future<Output = T>,
) -> Result<T, C::Output> {
    let mut work = pin!(work);
    // Boxed, because most of these calls need no room for it.
    let (mut cut, mut cut_off) = (None, Some(cut_off));
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        if let Some(cut_off) = cut_off.take() {
            cut = Some(Box::pin(cut_off()));
        }
        match &mut cut {
            Some(cut) => cut.as_mut().poll(context).map(Err),
            None => Poll::Pending,
        }
    })
    .await
}
