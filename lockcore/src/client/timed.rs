//! [`Timed`]: a future that reports its waits and its end.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Is notified when a future waits, and if it is dropped.
pub(super) trait TimeReport {
    /// The future waits for the first time. A future that never waits takes no time, and one that
    /// is dropped before that has not begun.
    fn waits(&mut self);

    /// The future was dropped while it waited.
    fn dropped(&self);
}

/// Receives the output as well.
pub(super) trait OutputReport<T>: TimeReport {
    /// The future is done, perhaps without having waited.
    fn done(&self, output: &T, has_waited: bool);
}

/// A future with its report.
pub(super) struct Timed<F, R: TimeReport> {
    future: F,
    reporter: Reporter<R>,
}

struct Reporter<R: TimeReport> {
    report: R,
    is_waiting: bool,
}

impl<F, R: TimeReport> Timed<F, R> {
    pub(super) fn new(future: F, report: R) -> Self {
        Self { future, reporter: Reporter { report, is_waiting: false } }
    }
}

impl<F, R> Future for Timed<F, R>
where
    F: Future + Unpin,
    R: OutputReport<F::Output> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, reporter } = self.get_mut();
        let Poll::Ready(output) = Pin::new(future).poll(context) else {
            if !std::mem::replace(&mut reporter.is_waiting, true) {
                reporter.report.waits();
            }
            return Poll::Pending;
        };
        let has_waited = std::mem::take(&mut reporter.is_waiting);
        reporter.report.done(&output, has_waited);
        Poll::Ready(output)
    }
}

impl<R: TimeReport> Drop for Reporter<R> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.report.dropped();
        }
    }
}
