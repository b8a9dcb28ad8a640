//! The total and the taken permits, and how the flaws count them.

use std::time::Duration;

use lockcore::{
    BackendError, LockState, Mode,
    backend::{AcquireOutcome, ResizeOutcome, ResizeRequest},
};
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    kinds::{Kind, another_kind},
    shared::{Shared, is_permit},
    store::{Flawed, Stored},
};

impl Flawed {
    /// The number of permits, if the request says `said`.
    fn total(&self, shared: &Shared, said: u32) -> u32 {
        let first = shared.holds.iter().find_map(|stored| match stored.mode {
            Mode::Permit { limit, .. } => Some(limit),
            _ => None,
        });
        let set = shared.permits.filter(|_| !self.has(Flaw::WhatIsSaidCountsMore));
        let first = first.filter(|_| !self.has(Flaw::EachSaysHowManyPermits));
        set.or(first).unwrap_or(said)
    }

    fn taken(&self, shared: &Shared) -> u32 {
        let taken_by = |stored: &Stored| match stored.mode {
            Mode::Permit { .. } if self.has(Flaw::CountsHoldsForPermits) => 1,
            Mode::Permit { count, .. } => count,
            _ => 0,
        };
        shared.holds.iter().map(taken_by).sum()
    }

    pub(super) fn refuse_permits(
        &self,
        shared: &Shared,
        mode: Mode,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        let Mode::Permit { count, limit, .. } = mode else { return None };
        let total = self.total(shared, limit);
        let free = total.saturating_sub(self.taken(shared));
        let is_too_many = match self.flaw {
            Flaw::AllPermitsAreTooMany => count >= total,
            Flaw::CallsTakenPermitsTooMany => count > free,
            Flaw::MeasuresTooManyByWhatIsSaid => count > limit,
            _ => count > total,
        };
        if is_too_many && !self.has(Flaw::CallsTooManyHeld) {
            return Some(AcquireOutcome::TooMany { limit: total });
        }
        let gives = count <= free || (free > 0 && self.has(Flaw::GivesWhatIsLeft));
        if gives || self.has(Flaw::GrantsPermitsWithoutEnd) {
            return None;
        }
        let ends = shared.holds.iter().map(|stored| stored.ends);
        let until = match self.flaw {
            Flaw::TellsWhenTheLastPermitsComeBack => ends.max(),
            _ => ends.min(),
        };
        let remaining = until.map(|until| until.saturating_duration_since(now));
        Some(AcquireOutcome::Held { remaining })
    }

    /// The mode to store: permits remember their number.
    pub(super) fn mode_to_store(&self, shared: &Shared, mode: Mode) -> Mode {
        match mode {
            Mode::Permit { count, limit, plain: true, .. } => {
                Mode::plain_permits(count, self.total(shared, limit))
            }
            Mode::Permit { count, limit, .. } => Mode::permits(count, self.total(shared, limit)),
            other => other,
        }
    }

    pub(super) fn report_permits(&self, shared: &Shared, state: LockState) -> LockState {
        let is_semaphore = shared.permits.is_some() || shared.holds.iter().any(is_permit);
        if !is_semaphore || self.has(Flaw::ReportsNoPermits) {
            return state;
        }
        let total = self.total(shared, 0);
        state.with_permits(total.saturating_sub(self.taken(shared)), Some(total))
    }

    pub(super) fn resize_now(
        &self,
        request: &ResizeRequest,
    ) -> Result<ResizeOutcome, BackendError> {
        let permits = request.permits;
        self.with(&request.name, |cell, _| {
            let is_another = self.kind_in_use(cell).is_some_and(|used| used != Kind::Permits);
            if is_another && !self.has(Flaw::ResizesWhatIsALock) {
                return Err(another_kind());
            }
            if self.has(Flaw::ResizingDoesNothing) {
                return Ok(ResizeOutcome::Resized);
            }
            let shared = &mut cell.shared;
            let is_set = match self.flaw {
                Flaw::TakesWhatIsSaidForSet => {
                    shared.permits.is_some() || shared.holds.iter().any(is_permit)
                }
                _ => shared.permits.is_some(),
            };
            if request.only_if_unset && is_set && !self.has(Flaw::ResizesWhatIsSet) {
                return Ok(match self.flaw {
                    Flaw::SaysThatItResized => ResizeOutcome::Resized,
                    _ => ResizeOutcome::AlreadySet,
                });
            }
            if self.has(Flaw::ResizingEndsHolds) && self.taken(shared) > permits {
                shared.holds.clear();
            }
            let taken = self.taken(shared);
            shared.permits = Some(if self.has(Flaw::ResizingCountsWhatIsFree) {
                permits + taken
            } else {
                permits
            });
            if self.has(Flaw::ResizingRenews) {
                shared.holds.iter_mut().for_each(|stored| stored.ends += Duration::from_secs(600));
            }
            if !self.has(Flaw::ResizingWakesNobody) {
                self.wake(cell);
            }
            Ok(ResizeOutcome::Resized)
        })
    }
}
