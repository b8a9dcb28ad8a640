//! [`Store`]: a backend and what this client knows of it, shared by the callers and the background task.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    BackendError, BackendErrorKind, Clock, acquiring::waiters::Names, backend::Backend,
    leases::renewal::Schedule, unless::unless,
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
        match unless(|| tokio::time::sleep(ANSWER), call).await {
            Ok(answer) => answer,
            Err(()) => {
                Err(BackendError::new(BackendErrorKind::Timeout, "the backend has given no answer"))
            }
        }
    }
}
