//! Which parts of the contract a backend declares and has, and how the flaws mix them up.

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{AcquireOutcome, AcquireRequest, Capabilities},
};
use lockcore_testkit::Part;

use super::{flaw::Flaw, store::Flawed};

/// The part that `request` is for; `None` if every backend has it.
fn part_of(request: &AcquireRequest) -> Option<Part> {
    match request.mode {
        Mode::Fair => Some(Part::Fair),
        Mode::Read | Mode::Write => Some(Part::ReadWrite),
        Mode::Permit { .. } => Some(Part::Permits),
        _ if request.least_token.is_some() => Some(Part::ProposedTokens),
        _ => (request.tokens > 1).then_some(Part::HandOver),
    }
}

impl Flaw {
    /// Returns `true` if the backend declares `part`, at its first client.
    fn declares(self, part: Part) -> bool {
        match self {
            Self::HasOnly(parts) => parts.contains(&part),
            Self::IsNotDeclared(undeclared) | Self::GrantsUndeclared(undeclared) => {
                part != undeclared
            }
            Self::ResizesUndeclared => part != Part::Permits,
            Self::CallsTheUndeclaredHeld
            | Self::CallsTheUndeclaredAnotherError
            | Self::TakesTheUndeclaredAndFails
            | Self::DeclaresNothing => {
                matches!(part, Part::Latches | Part::Conditions | Part::Directory)
            }
            _ => true,
        }
    }

    /// The parts that are named for the tests of the backend: those that it declares, unless that
    /// is the flaw.
    pub(super) fn named(self) -> Vec<Part> {
        let is_named = |part: &Part| match self {
            Self::IsNotNamed(unnamed) => *part != unnamed,
            Self::IsNotDeclared(_) => true,
            _ => self.declares(*part),
        };
        Part::ALL.into_iter().filter(is_named).collect()
    }
}

impl Flawed {
    pub(super) fn declares(&self, part: Part) -> bool {
        let is_elsewhere = self.client % 2 == 1 && self.has(Flaw::DeclaresOnOneClientOnly(part));
        self.flaw.declares(part) && !is_elsewhere
    }

    pub(super) fn declared(&self) -> Capabilities {
        let parts = [
            (Part::Fair, Capabilities::FAIR),
            (Part::ReadWrite, Capabilities::READ_WRITE),
            (Part::Permits, Capabilities::PERMITS),
            (Part::HandOver, Capabilities::HAND_OVER),
            (Part::Demand, Capabilities::DEMAND),
            (Part::DirectGrant, Capabilities::DIRECT_GRANT),
            (Part::ProposedTokens, Capabilities::PROPOSED_TOKENS),
        ];
        let exclusive = match self.flaw {
            Flaw::DeclaresNothing => Capabilities::default(),
            _ => Capabilities::EXCLUSIVE,
        };
        let declared = parts.into_iter().filter(|(part, _)| self.declares(*part));
        declared.fold(exclusive, |all, (_, capability)| all | capability)
    }

    /// The refusal of an undeclared part.
    pub(super) fn refuse_undeclared(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let part = part_of(request)?;
        if self.declares(part) && !self.has(Flaw::DeclaresWhatItRefuses) {
            return None;
        }
        match self.flaw {
            Flaw::GrantsUndeclared(_) | Flaw::TakesTheUndeclaredAndFails => None,
            Flaw::CallsTheUndeclaredHeld => Some(Ok(AcquireOutcome::Held { remaining: None })),
            Flaw::CallsTheUndeclaredAnotherError => {
                Some(Err(BackendError::new(BackendErrorKind::Protocol, "what is that?")))
            }
            _ => Some(Err(unsupported())),
        }
    }

    /// The refusal of an undeclared part, after the request was carried out.
    pub(super) fn fail_undeclared(&self, request: &AcquireRequest) -> Result<(), BackendError> {
        let is_undeclared = part_of(request).is_some_and(|part| !self.declares(part));
        if is_undeclared && self.has(Flaw::TakesTheUndeclaredAndFails) {
            return Err(unsupported());
        }
        Ok(())
    }
}

pub(super) fn unsupported() -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, "there is no such thing")
}
