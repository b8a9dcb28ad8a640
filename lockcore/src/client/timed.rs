//! [`Timed`]: a future whose duration is measured.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

/// Receives the duration of a future.
pub(super) trait TimeReport {
    /// The future was dropped before it was done.
    fn dropped(&self, took: Duration);
}

/// Receives the output as well.
pub(super) trait OutputReport<T>: TimeReport {
    /// The future is done.
    fn done(&self, output: &T, took: Duration);
}

/// Measures how long a future waits. A future that is done at its first poll took no time, and no
/// clock is read for it. A future that is dropped before its first poll has not begun.
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
