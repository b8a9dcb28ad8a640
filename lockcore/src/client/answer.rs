//! Calls of the backend, which may never return: [`answer`], and [`unless`] below it.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use crate::{BackendError, BackendErrorKind, time::ANSWER};

/// Makes a call of the backend, and does not wait for its answer for ever.
pub(super) async fn answer<T>(
    call: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let answer = unless(|| tokio::time::sleep(ANSWER), call).await;
    answer.unwrap_or_else(|()| Err(no_answer()))
}

/// The error of a call that was not answered in time.
pub(super) fn no_answer() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "the backend has given no answer")
}

/// Does `work`, unless what `cut_off` makes is done first. That is only made when `work` is not
/// done at once: much is.
pub(super) async fn unless<T, C: Future>(
    cut_off: impl FnOnce() -> C,
    work: impl Future<Output = T>,
) -> Result<T, C::Output> {
    let (mut work, mut cut) = (pin!(work), pin!(None));
    let mut cut_off = Some(cut_off);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        if let Some(cut_off) = cut_off.take() {
            cut.set(Some(cut_off()));
        }
        match cut.as_mut().as_pin_mut() {
            Some(cut) => cut.poll(context).map(Err),
            None => Poll::Pending,
        }
    })
    .await
}
