//! The error for a request that too few members have answered.

use std::{fmt::Write, sync::Arc, time::Duration};

use lockcore::{BackendError, BackendErrorKind};

use crate::{
    member::{Member, MemberSet, no_answer},
    quorum::Parts,
    round::Round,
};

/// The reasons why members do not count in a round.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<(usize, BackendError)>);

impl Failures {
    /// The failures of `round`. Members that have not answered were waited for during `waited`.
    pub(crate) fn of<T: Send + 'static>(round: &Round<T>, waited: Duration) -> Self {
        let failed = round.answers().filter_map(|(at, answer)| Some((at, answer.as_ref().err()?)));
        let mut failures: Vec<_> = failed.map(|(at, error)| (at, error.clone())).collect();
        failures.extend(round.pending().iter().map(|at| (at, no_answer(waited))));
        Self(failures)
    }

    /// Adds members that an older request may still reach.
    pub(crate) fn add_doubtful(&mut self, members: MemberSet) {
        self.0.extend(members.iter().map(|at| (at, doubtful())));
    }

    /// Adds members that do not have the hold.
    pub(crate) fn add_lacking(&mut self, members: MemberSet) {
        let message = "it does not have the hold";
        let lacking = || BackendError::new(BackendErrorKind::Unavailable, message);
        self.0.extend(members.iter().map(|at| (at, lacking())));
    }

    /// Adds members that may have lost their data.
    pub(crate) fn add_rejoining(&mut self, members: MemberSet, all: &[Arc<Member>]) {
        for at in members.iter() {
            let left = all[at].rejoins_in().unwrap_or_default();
            let message = format!(
                "it may have come back without its data, so its grants count again \
                 only in {left:.0?} (`rejoin_after`)"
            );
            self.0.push((at, BackendError::new(BackendErrorKind::Unavailable, message)));
        }
    }

    pub(crate) fn add(&mut self, member: usize, error: BackendError) {
        self.0.push((member, error));
    }

    /// The error of a request that did not get a majority. Its outcome is unknown unless the caller
    /// says otherwise.
    pub(crate) fn into_error(mut self, all: &[Arc<Member>]) -> BackendError {
        self.0.sort_by_key(|(at, _)| *at);
        let parts = Parts::of(all.len());
        let Parts { members, majority, .. } = parts;
        let mut message = format!(
            "no majority: {majority} of the {members} stores of the quorum are needed, and {} did \
             not answer as needed",
            self.0.len()
        );
        for (at, error) in &self.0 {
            // The advice follows once, at the end. Writing to a string does not fail.
            let _ = write!(message, "; {}: {}", all[*at].label(), error.message());
        }
        let error = BackendError::new(self.kind(parts), message).maybe_applied();
        match self.0.into_iter().next() {
            Some((_, first)) => error.with_source(first),
            None => error,
        }
    }

    /// The kind that decides what follows: whether a retry can help, and what is to be done.
    fn kind(&self, Parts { members, majority, .. }: Parts) -> BackendErrorKind {
        let lasting: Vec<_> = self.0.iter().filter(|(_, error)| !error.is_retryable()).collect();
        if let Some((_, first)) = lasting.first()
            && lasting.len() > members - majority
        {
            return first.kind();
        }
        let has = |kind| self.0.iter().any(|(_, error)| error.kind() == kind);
        let kinds = [BackendErrorKind::Timeout, BackendErrorKind::Connection];
        kinds.into_iter().find(|kind| has(*kind)).unwrap_or(BackendErrorKind::Unavailable)
    }
}

/// The error for a member that an older request may still reach.
pub(crate) fn doubtful() -> BackendError {
    let message = "an earlier request for this hold may still be on its way";
    BackendError::new(BackendErrorKind::Unavailable, message)
}
