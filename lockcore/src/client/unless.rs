//! [`unless`]: work that something else may cut off.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Does `work`, unless what `cut_off` makes is done first. That is only made when `work` is not
/// done at once: much is.
pub(crate) async fn unless<T, C: Future>(
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
