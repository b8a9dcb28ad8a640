//! [`Store`]: a backend and what this client knows of it, shared by the callers and the background task.

use std::{sync::Arc, time::Duration};

use crate::{Backend, Clock, renewal::Schedule, waiters::Names};

/// What an operation needs, whoever carries it out.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) names: Arc<Names>,
    pub(crate) schedule: Schedule,
    /// How much earlier than due a hold may be renewed together with others.
    pub(crate) batching: Duration,
}
