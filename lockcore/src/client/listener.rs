//! [`Listener`]: a subscription to a name, from the request for it to its end.

use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use super::{answer::answer, measure::ClientMetrics, outcome::BackendCall};
use crate::{
    BackendError,
    backend::{Backend, SubscribeRequest, Wakeup, Wakeups},
    time::{Backoff, Clock, Moment},
};

/// A request for a subscription.
type Subscribing = Pin<Box<dyn Future<Output = Result<Box<dyn Wakeups>, BackendError>> + Send>>;

/// A subscription. Waiters pass it on: a head that leaves gives it to the next one in whatever
/// state it is, so nothing that was heard is lost.
#[derive(Default)]
pub(crate) struct Listener {
    state: ListenerState,
    backoff: Backoff,
}

#[derive(Default)]
enum ListenerState {
    #[default]
    Idle,
    /// Behind a mutex that is never contended, only to make the listener `Sync`.
    Subscribing(Mutex<Subscribing>),
    Listening(Box<dyn Wakeups>),
    /// Subscribing failed, and is tried again after a pause.
    Pausing {
        until: Moment,
    },
}

/// An event that a listener reports.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The subscription is in effect, or failed and its pause is over. Earlier events were not
    /// heard, so an attempt is due. The attempt also shows whether the backend is up.
    Subscribed,
    /// The lock may be free, or was granted.
    Woken(Wakeup),
}

impl Listener {
    /// Returns `true` if the subscription is in effect.
    pub(super) fn is_listening(&self) -> bool {
        matches!(self.state, ListenerState::Listening(_))
    }

    /// Resolves when there is something to tell.
    ///
    /// # Errors
    /// Errors that a retry cannot help.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost, and no subscription is begun anew.
    pub(super) async fn heard(
        &mut self,
        backend: &Arc<dyn Backend>,
        (clock, measure): (&Clock, &ClientMetrics),
        request: impl FnOnce() -> SubscribeRequest,
    ) -> Result<Heard, BackendError> {
        if matches!(self.state, ListenerState::Idle) {
            let subscribing = Box::pin(subscribe(backend.clone(), measure.clone(), request()));
            self.state = ListenerState::Subscribing(Mutex::new(subscribing));
        }
        match &mut self.state {
            ListenerState::Idle => {}
            ListenerState::Subscribing(_) => {
                match poll_fn(|context| poll_subscribing(&mut self.state, context)).await {
                    Ok(wakeups) => {
                        self.state = ListenerState::Listening(wakeups);
                        self.backoff = Backoff::default();
                    }
                    Err(error) if error.is_retryable() => {
                        tracing::debug!(%error, "subscription failed, will be retried");
                        let until = clock.now().after(self.backoff.next());
                        self.state = ListenerState::Pausing { until };
                        clock.sleep_until(until).await;
                        self.state = ListenerState::Idle;
                    }
                    Err(error) => {
                        self.state = ListenerState::Idle;
                        return Err(error);
                    }
                }
            }
            ListenerState::Listening(wakeups) => {
                return Ok(Heard::Woken(wakeups.woken().await));
            }
            ListenerState::Pausing { until } => {
                clock.sleep_until(*until).await;
                self.state = ListenerState::Idle;
            }
        }
        Ok(Heard::Subscribed)
    }
}

/// Polls a request for a subscription. It is taken out meanwhile, so that one that panics is not
/// polled again.
fn poll_subscribing(
    state: &mut ListenerState,
    context: &mut Context<'_>,
) -> Poll<Result<Box<dyn Wakeups>, BackendError>> {
    let ListenerState::Subscribing(mut subscribing) = mem::take(state) else {
        return Poll::Pending;
    };
    let polled =
        subscribing.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context);
    if polled.is_pending() {
        *state = ListenerState::Subscribing(subscribing);
    }
    polled
}

async fn subscribe(
    backend: Arc<dyn Backend>,
    measure: ClientMetrics,
    request: SubscribeRequest,
) -> Result<Box<dyn Wakeups>, BackendError> {
    answer(measure.call(BackendCall::Subscribe, backend.subscribe(&request))).await
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            ListenerState::Idle => "idle",
            ListenerState::Subscribing(_) => "subscribing",
            ListenerState::Listening(_) => "listening",
            ListenerState::Pausing { .. } => "pausing",
        };
        f.debug_tuple("Listener").field(&state).finish()
    }
}
