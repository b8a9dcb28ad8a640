//! [`Timed`]: a future whose time is taken.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

/// Hears how long a future took.
pub(super) trait TimeReport {
    /// It was dropped before it was done.
    fn dropped(&self, took: Duration);
}

/// Hears of the output as well.
pub(super) trait OutputReport<T>: TimeReport {
    /// It is done.
    fn done(&self, output: &T, took: Duration);
}

/// Takes the time of a future, for as long as something is waited for: one that is done when it is
/// polled for the first time took none, and no clock is read for it. One that is dropped before
/// that has not begun.
pub(super) struct Timed<F, R: TimeReport> {
    future: F,
    stopwatch: Stopwatch<R>,
}

struct Stopwatch<R: TimeReport> {
    report: R,
    progress: TimerState,
}

#[derive(Clone, Copy)]
enum TimerState {
    New,
    Since(Instant),
    Over,
}

impl<F, R: TimeReport> Timed<F, R> {
    pub(super) fn new(future: F, report: R) -> Self {
        Self { future, stopwatch: Stopwatch { report, progress: TimerState::New } }
    }
}

impl<F, R> Future for Timed<F, R>
where
    F: Future + Unpin,
    R: OutputReport<F::Output> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, stopwatch } = self.get_mut();
        let Poll::Ready(output) = Pin::new(future).poll(context) else {
            if let TimerState::New = stopwatch.progress {
                stopwatch.progress = TimerState::Since(Instant::now());
            }
            return Poll::Pending;
        };
        let took = match std::mem::replace(&mut stopwatch.progress, TimerState::Over) {
            TimerState::Since(start) => start.elapsed(),
            TimerState::New | TimerState::Over => Duration::ZERO,
        };
        stopwatch.report.done(&output, took);
        Poll::Ready(output)
    }
}

impl<R: TimeReport> Drop for Stopwatch<R> {
    fn drop(&mut self) {
        if let TimerState::Since(start) = self.progress {
            self.report.dropped(start.elapsed());
        }
    }
}
