//! [`Timed`]: a future whose time is taken.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

/// Hears how long a future took.
pub(super) trait Report {
    /// It was dropped before it was done.
    fn dropped(&self, took: Duration);
}

/// Hears of the output as well.
pub(super) trait ReportOf<T>: Report {
    /// It is done.
    fn done(&self, output: &T, took: Duration);
}

/// Takes the time of a future, for as long as something is waited for: one that is done when it is
/// polled for the first time took none, and no clock is read for it. One that is dropped before
/// that has not begun.
pub(super) struct Timed<F, R: Report> {
    future: F,
    watch: Watch<R>,
}

struct Watch<R: Report> {
    report: R,
    progress: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    New,
    Since(Instant),
    Over,
}

impl<F, R: Report> Timed<F, R> {
    pub(super) fn new(future: F, report: R) -> Self {
        Self { future, watch: Watch { report, progress: Progress::New } }
    }
}

impl<F, R> Future for Timed<F, R>
where
    F: Future + Unpin,
    R: ReportOf<F::Output> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, watch } = self.get_mut();
        let Poll::Ready(output) = Pin::new(future).poll(context) else {
            if let Progress::New = watch.progress {
                watch.progress = Progress::Since(Instant::now());
            }
            return Poll::Pending;
        };
        let took = match std::mem::replace(&mut watch.progress, Progress::Over) {
            Progress::Since(start) => start.elapsed(),
            Progress::New | Progress::Over => Duration::ZERO,
        };
        watch.report.done(&output, took);
        Poll::Ready(output)
    }
}

impl<R: Report> Drop for Watch<R> {
    fn drop(&mut self) {
        if let Progress::Since(start) = self.progress {
            self.report.dropped(start.elapsed());
        }
    }
}
