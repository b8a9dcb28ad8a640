//! [`Store`]: a backend and what this client knows of it, shared by the callers and the background task.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::{
    Backend, BackendError, BackendErrorKind, Clock, acquiring::waiters::Names, leases::renewal::Schedule,
};

/// How long the core waits for the answer to a call. Backends have time-outs of their own; this is for those that have none,
/// so that a call which never returns keeps neither its caller nor the name for ever.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// What an operation needs, whoever carries it out.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) names: Arc<Names>,
    pub(crate) schedule: Arc<Schedule>,
    /// How much earlier than due a hold may be renewed together with others.
    pub(crate) batching: Duration,
}

impl Store {
    /// Makes a call of the backend, and does not wait for its answer for ever.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (mut call, mut patience) = (pin!(call), pin!(None));
        poll_fn(|context| {
            if let Poll::Ready(answer) = call.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            // An answer that is there at once needs no timer.
            if patience.is_none() {
                patience.set(Some(tokio::time::sleep(ANSWER)));
            }
            let is_over = patience.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(context).is_ready());
            match is_over {
                true => {
                    let message = "the backend has given no answer";
                    Poll::Ready(Err(BackendError::new(BackendErrorKind::Timeout, message)))
                }
                false => Poll::Pending,
            }
        })
        .await
    }
}
