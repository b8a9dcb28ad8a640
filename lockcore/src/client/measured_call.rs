//! [`MeasuredCall`]: a call of the backend, for the metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    measure::ClientMetrics,
    outcome::BackendCall,
    timed::{OutputReport, TimeReport},
};
use crate::{
    BackendError,
    backend::{AcquireOutcome, ReleaseOutcome, RenewOutcome, Wakeups},
    state::LockState,
};

/// The backend's answer. The number is the index in `ANSWERS`.
#[derive(Clone, Copy)]
pub(crate) enum AnswerEnd {
    Ok = 0,
    Refused = 1,
    NotHeld = 2,
    Error = 3,
    Unanswered = 4,
}

/// An answer of the backend.
pub(crate) trait MeasuredAnswer {
    fn answered(&self) -> AnswerEnd {
        AnswerEnd::Ok
    }
}

impl MeasuredAnswer for AcquireOutcome {
    fn answered(&self) -> AnswerEnd {
        match self.token() {
            Some(_) => AnswerEnd::Ok,
            None => AnswerEnd::Refused,
        }
    }
}

impl MeasuredAnswer for ReleaseOutcome {
    fn answered(&self) -> AnswerEnd {
        match self {
            Self::NotHeld => AnswerEnd::NotHeld,
            _ => AnswerEnd::Ok,
        }
    }
}

impl MeasuredAnswer for Vec<RenewOutcome> {
    /// A backend that cannot renew anything answers for each hold.
    fn answered(&self) -> AnswerEnd {
        match self.iter().any(|outcome| matches!(outcome, RenewOutcome::Failed(_))) {
            true => AnswerEnd::Error,
            false => AnswerEnd::Ok,
        }
    }
}

impl MeasuredAnswer for Box<dyn Wakeups> {}
impl MeasuredAnswer for LockState {}
impl MeasuredAnswer for bool {}

/// A call of the backend whose time is measured.
pub(super) struct MeasuredCall<'a> {
    measure: &'a ClientMetrics,
    operation: BackendCall,
    /// The time since which it waits.
    since: Option<Instant>,
}

impl<'a> MeasuredCall<'a> {
    pub(super) fn new(measure: &'a ClientMetrics, operation: BackendCall) -> Self {
        Self { measure, operation, since: None }
    }

    fn answered(&self, answered: AnswerEnd) {
        let took = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.measure.answered(self.operation, answered, took);
    }
}

impl TimeReport for MeasuredCall<'_> {
    fn waits(&mut self) {
        self.since = Some(Instant::now());
    }

    fn dropped(&self) {
        self.answered(AnswerEnd::Unanswered);
    }
}

impl<T: MeasuredAnswer> OutputReport<Result<T, BackendError>> for MeasuredCall<'_> {
    fn done(&self, answer: &Result<T, BackendError>, has_waited: bool) {
        let answered = answer.as_ref().map_or(AnswerEnd::Error, T::answered);
        // The store was not asked, so there is no response time to record.
        if has_waited || matches!(answered, AnswerEnd::Error) {
            self.answered(answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BackendErrorKind;

    #[test]
    fn a_call_that_could_not_renew_a_hold_is_an_error() {
        let error = BackendError::new(BackendErrorKind::Unavailable, "down");
        for (outcomes, is_error) in [
            (vec![RenewOutcome::Renewed, RenewOutcome::NotHeld], false),
            (vec![RenewOutcome::Renewed, RenewOutcome::Failed(error)], true),
        ] {
            assert_eq!(matches!(outcomes.answered(), AnswerEnd::Error), is_error, "{outcomes:?}");
        }
    }
}
