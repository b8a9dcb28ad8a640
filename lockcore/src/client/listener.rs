//! [`Listener`]: a subscription to a name, from the request for it to its end.

use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use super::Client;
use crate::{
    BackendError,
    backend::{SubscribeRequest, Wakeups},
    time::{Backoff, Moment},
};

type Subscribing =
    Pin<Box<dyn Future<Output = Result<Box<dyn Wakeups>, BackendError>> + Send + 'static>>;

/// A subscription. Waiters pass it on: a head that leaves gives it to the next one in whatever
/// state it is, so nothing that was heard is lost.
#[derive(Default)]
pub(crate) struct Listener {
    state: State,
    backoff: Backoff,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// Behind a lock that nobody ever waits for: it makes the listener `Sync`.
    Subscribing(Mutex<Subscribing>),
    Listening(Box<dyn Wakeups>),
    /// Subscribing failed. It is tried again then.
    Pausing {
        until: Moment,
    },
}

/// What a listener has to tell.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The subscription is in effect, or failed and was waited for: what happened before was not
    /// heard, so an attempt is due. It also shows whether the backend is up.
    Subscribed,
    /// The lock may be free.
    Woken,
}

impl Listener {
    /// Resolves when there is something to tell.
    ///
    /// # Errors
    /// Those that a retry cannot help.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost, and no subscription is begun anew.
    pub(super) async fn heard(
        &mut self,
        client: &Arc<Client>,
        request: impl FnOnce() -> SubscribeRequest,
    ) -> Result<Heard, BackendError> {
        if matches!(self.state, State::Idle) {
            let subscribing: Subscribing = Box::pin(subscribe(client.clone(), request()));
            self.state = State::Subscribing(Mutex::new(subscribing));
        }
        match &mut self.state {
            State::Idle => {}
            State::Subscribing(_) => {
                match poll_fn(|context| poll_subscribing(&mut self.state, context)).await {
                    Ok(wakeups) => {
                        self.state = State::Listening(wakeups);
                        self.backoff = Backoff::default();
                    }
                    Err(error) if error.is_retryable() => {
                        tracing::debug!(%error, "subscription failed, will be retried");
                        let until = client.clock.now().after(self.backoff.next());
                        self.state = State::Pausing { until };
                        client.clock.sleep_until(until).await;
                        self.state = State::Idle;
                    }
                    Err(error) => {
                        self.state = State::Idle;
                        return Err(error);
                    }
                }
            }
            State::Listening(wakeups) => {
                wakeups.woken().await;
                return Ok(Heard::Woken);
            }
            State::Pausing { until } => {
                client.clock.sleep_until(*until).await;
                self.state = State::Idle;
            }
        }
        Ok(Heard::Subscribed)
    }
}

/// Polls a request for a subscription, which is not there meanwhile: one that panics is left to
/// nobody.
fn poll_subscribing(
    state: &mut State,
    context: &mut Context<'_>,
) -> Poll<Result<Box<dyn Wakeups>, BackendError>> {
    let State::Subscribing(mut subscribing) = mem::take(state) else { return Poll::Pending };
    let polled =
        subscribing.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context);
    if polled.is_pending() {
        *state = State::Subscribing(subscribing);
    }
    polled
}

async fn subscribe(
    client: Arc<Client>,
    request: SubscribeRequest,
) -> Result<Box<dyn Wakeups>, BackendError> {
    client.answer(client.backend.subscribe(&request)).await
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Idle => "idle",
            State::Subscribing(_) => "subscribing",
            State::Listening(_) => "listening",
            State::Pausing { .. } => "pausing",
        };
        f.debug_tuple("Listener").field(&state).finish()
    }
}
