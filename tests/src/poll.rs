//! [`poll_times`].

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Polls `future` at most `times` times, each time that it asks to be polled, and then drops it.
/// Returns `None` if it was not ready by then.
///
/// With zero it is dropped without ever running.
///
/// # Examples
/// ```
/// use lockcore_testkit::poll_times;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// assert_eq!(poll_times(1, tokio::task::yield_now()).await, None);
/// assert_eq!(poll_times(2, tokio::task::yield_now()).await, Some(()));
/// # }
/// ```
pub async fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
