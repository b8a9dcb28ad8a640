//! The kind that a name is in use as, and how the flaws treat it.

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{AcquireOutcome, AcquireRequest},
};

use super::{
    flaw::Flaw,
    store::{Cell, Flawed},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lock,
    /// For the flaw that treats each mode as a kind.
    Fair,
    ReadWrite,
    Permits,
    PlainPermits,
}

impl Kind {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Read | Mode::Write => Self::ReadWrite,
            Mode::Permit { plain: false, .. } => Self::Permits,
            Mode::Permit { plain: true, .. } => Self::PlainPermits,
            _ => Self::Lock,
        }
    }

    /// Returns `true` if several can hold the name at once.
    pub(super) fn is_shared(self) -> bool {
        self != Self::Lock
    }
}

impl Flawed {
    fn kind_of(&self, mode: Mode) -> Kind {
        if mode == Mode::Fair && self.has(Flaw::TakesEachModeForAKind) {
            Kind::Fair
        } else {
            Kind::of(mode)
        }
    }

    pub(super) fn kind_in_use(&self, cell: &Cell) -> Option<Kind> {
        let stored = cell.hold.iter().chain(&cell.shared.holds).next();
        let held = stored.map(|stored| self.kind_of(stored.mode));
        let queued = (!cell.places.is_empty()).then_some(Kind::Lock);
        let awaited = (!cell.shared.writers.is_empty()).then_some(Kind::ReadWrite);
        let is_resized = cell.shared.permits.is_some() && !self.has(Flaw::ResizedIsFreeForAll);
        let remembers =
            [Flaw::StaysOfItsKindForEver, Flaw::KindOutlivesTheLease].contains(&self.flaw);
        let former = cell.former_kind.filter(|_| remembers);
        held.or(queued).or(awaited).or(is_resized.then_some(Kind::Permits)).or(former)
    }

    /// The refusal of a name that is in use as another kind.
    pub(super) fn refuse_kind(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let kind = self.kind_of(request.mode);
        let is_latch = self.is_closed_latch(&request.name);
        let is_another = self.with(&request.name, |cell, _| {
            let is_another = is_latch || self.kind_in_use(cell).is_some_and(|used| used != kind);
            if !is_another {
                cell.former_kind = Some(kind);
            } else if self.has(Flaw::AnotherKindEndsTheHold) {
                cell.hold = None;
                cell.shared.holds.clear();
            }
            is_another
        });
        if !is_another || (request.count > 1 && self.has(Flaw::GrowthSkipsTheKind)) {
            return None;
        }
        match self.flaw {
            Flaw::GrantsAsAnotherKind => None,
            Flaw::CallsAnotherKindHeld => Some(Ok(AcquireOutcome::Held { remaining: None })),
            Flaw::CallsAnotherKindAnotherError => {
                Some(Err(BackendError::new(BackendErrorKind::Other, "another kind")))
            }
            Flaw::TakesAnotherKindAndFails => {
                let token = self.next_token(&request.name, &request.hold);
                self.acquire_now(request, token);
                Some(Err(another_kind()))
            }
            _ => Some(Err(another_kind())),
        }
    }

    /// For the flaw that forgets the kind of a name when it is released, and only then.
    pub(super) fn forget_kind(&self, cell: &mut Cell) {
        if self.has(Flaw::KindOutlivesTheLease) {
            cell.former_kind = None;
        }
    }
}

pub(super) fn another_kind() -> BackendError {
    BackendError::new(BackendErrorKind::WrongType, "the name is in use as another kind")
        .not_applied()
}
