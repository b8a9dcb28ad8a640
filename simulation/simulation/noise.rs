//! The order of polls, derived from the seed: slow tasks and calls, and stopped clients.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::chance::Chance;

/// The amount of noise in one client. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    chance: Chance,
    /// From 0, everything in order, to 4, a delay at each point.
    intensity: usize,
    frozen_until: Arc<Mutex<Instant>>,
}

impl Noise {
    pub(crate) fn new(chance: Chance, intensity: usize) -> Self {
        Self { chance, intensity, frozen_until: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Stops the client until then: it polls nothing, and its messages are late.
    pub(crate) fn freeze_until(&self, until: Instant) {
        *self.frozen_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn frozen_until(&self) -> Option<Instant> {
        let until = *self.frozen_until.lock().unwrap_or_else(PoisonError::into_inner);
        (until > Instant::now()).then_some(until)
    }

    /// A point at which others may run first: on the way to the store, and back.
    pub(crate) async fn pause(&self) {
        while let Some(until) = self.frozen_until() {
            sleep_until(until).await;
        }
        for _ in 0..self.chance.turns(self.intensity) {
            tokio::task::yield_now().await;
        }
        if let Some(latency) = self.chance.latency(self.intensity) {
            sleep(latency).await;
        }
    }

    /// Delays the polls of `task`.
    pub(crate) fn disturb<F: Future>(&self, task: F) -> Restless<F> {
        Restless { task: Box::pin(task), noise: self.clone(), turns: None, frozen: None }
    }
}

/// A task that is not always polled when it asks to be.
#[derive(Debug)]
pub(crate) struct Restless<F> {
    task: Pin<Box<F>>,
    noise: Noise,
    /// The number of turns left to others before the next poll.
    turns: Option<usize>,
    frozen: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Future for Restless<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(until) = self.noise.frozen_until() {
            let mut frozen = Box::pin(sleep_until(until));
            if frozen.as_mut().poll(context).is_pending() {
                self.frozen = Some(frozen);
                return Poll::Pending;
            }
        }
        self.frozen = None;
        let turns = match self.turns {
            Some(turns) => turns,
            None => self.noise.chance.turns(self.noise.intensity),
        };
        if turns > 0 {
            self.turns = Some(turns - 1);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turns = None;
        self.task.as_mut().poll(context)
    }
}

/// Polls `future` once. `None` if it is not ready.
pub(crate) async fn now_or_never<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The output of a `future` that never waits.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the memory backend waits for nothing"),
    }
}
