//! The effect of each request on the store, in one step, and how the flaws change it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockcore::{
    FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest,
    },
};
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    kinds::Kind,
    store::{Cell, Flawed, Stored, Subscriber},
};

impl Flawed {
    pub(super) fn acquire_now(&self, request: &AcquireRequest, token: u64) -> AcquireOutcome {
        if Kind::of(request.mode).is_shared() {
            return self
                .with(&request.name, |cell, now| self.acquire_shared(cell, request, token, now));
        }
        let elsewhere = self.awaited_elsewhere(request).or(self.held_elsewhere(request));
        self.with(&request.name, |cell, now| {
            let announced = self.announced(cell, request);
            let ahead =
                self.ahead(cell, request, now).or(elsewhere.filter(|_| cell.hold.is_none()));
            let outcome = match ahead {
                Some(outcome) => outcome,
                None => self.decide(cell, request, token, now),
            };
            self.queue(cell, request, &outcome, now);
            self.note_demand(cell, request, &outcome, now);
            let ends = cell.hold.as_ref().map(|stored| stored.ends);
            if matches!(outcome, AcquireOutcome::Acquired { .. }) && announced > ends {
                self.wake(cell);
            }
            outcome
        })
    }

    fn decide(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        token: u64,
        now: Instant,
    ) -> AcquireOutcome {
        if let Some(outcome) = self.revive(cell, request, now) {
            return outcome;
        }
        if self.has(Flaw::RefusesWhoExpectsIt) && request.held_for.is_some() {
            return AcquireOutcome::Held { remaining: request.held_for };
        }
        match &mut cell.hold {
            Some(stored) if self.takes_by_proposal(request) && stored.id != request.hold => {
                self.grant(cell, request, token, now)
            }
            Some(stored) if self.is_same_hold(stored, &request.hold) => {
                self.repeat(stored, request, token, now)
            }
            Some(stored) if self.has(Flaw::GrowthSteals) && request.count > 1 => {
                self.repeat(stored, request, token, now)
            }
            Some(stored)
                if request.count > 1
                    && self.has(Flaw::GrowthIsAlwaysGone)
                    && stored.id != request.hold =>
            {
                AcquireOutcome::NotHeld
            }
            Some(stored)
                if !self.is_same_owner(&stored.id, &request.hold)
                    && (stored.mode == request.mode
                        || !self.has(Flaw::FairHoldsIgnoreExclusiveOnes)) =>
            {
                self.refuse(cell, request, now)
            }
            Some(stored)
                if self.has(Flaw::RefusesTheOwnersNextHold)
                    || stored.id == request.hold
                        && self.has(Flaw::KnowsRepetitionsOfItsOwnClientOnly) =>
            {
                self.refuse(cell, request, now)
            }
            Some(_) if self.has(Flaw::GrowthTakesOver) => self.grant(cell, request, token, now),
            _ if request.count > 1 && !self.has(Flaw::GrowthGrants) => AcquireOutcome::NotHeld,
            _ => self.grant(cell, request, token, now),
        }
    }

    /// For the flaw that answers all waiters that expect a refusal together.
    fn held_elsewhere(&self, request: &AcquireRequest) -> Option<AcquireOutcome> {
        let remaining = request.held_for.filter(|_| self.has(Flaw::RefusesWhoExpectsItIfAnyIsHeld));
        let is_held = |cell: &Cell| cell.hold.is_some();
        let refusal = remaining.map(|_| AcquireOutcome::Held { remaining });
        refusal.filter(|_| self.store().cells.values().any(is_held))
    }

    /// For the flaws that do not release a hold.
    fn revive(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        let grows = request.count > 1 && self.has(Flaw::GrowthRevives);
        if cell.hold.is_some() || !grows {
            return None;
        }
        let mut former = cell.former.take().filter(|former| former.id == request.hold)?;
        former.ends = self.ends(now, request.lease);
        let token = former.token;
        cell.hold = Some(former);
        Some(acquired(token))
    }

    fn repeat(
        &self,
        stored: &mut Stored,
        request: &AcquireRequest,
        token: u64,
        now: Instant,
    ) -> AcquireOutcome {
        let ends = self.ends(now, request.lease);
        let grows = request.count > 1;
        stored.has_grown |= grows;
        let shortens = if grows { Flaw::GrowthShortens } else { Flaw::RepetitionShortens };
        if self.has(shortens) {
            stored.ends = ends;
        } else if !(grows && self.has(Flaw::GrowthKeepsTheLease)) {
            stored.ends = stored.ends.max(ends);
        }
        stored.count = match self.flaw {
            Flaw::CountsRepetitions if !grows => stored.count + 1,
            Flaw::AddsCounts if grows => stored.count + request.count - 1,
            _ => request.count,
        };
        let renumbers = self.has(Flaw::RepeatedDirectGrantHasANewToken)
            && stored.mode == Mode::Fair
            || self.has(Flaw::NewTokenForARepetition)
            || self.renumbers_by_proposal(request)
            || (self.has(Flaw::NewTokenForARepetitionByName) && stored.id.is_named());
        if renumbers {
            stored.token = token;
        }
        acquired(match self.flaw {
            Flaw::RepetitionHasTheLastOfItsTokens => stored.token + u64::from(request.tokens) - 1,
            _ => stored.token,
        })
    }

    fn refuse(&self, cell: &mut Cell, request: &AcquireRequest, now: Instant) -> AcquireOutcome {
        let Some(stored) = &mut cell.hold else { return AcquireOutcome::NotHeld };
        match self.flaw {
            Flaw::RefusalExtendsTheLease => stored.ends = stored.ends.max(now + request.lease),
            Flaw::RefusalIsCounted => stored.count += 1,
            Flaw::RefusalQueues => cell.queued = Some(request.clone()),
            _ => {}
        }
        let remaining = match self.flaw {
            Flaw::RefusesWithoutRemaining => None,
            Flaw::RefusesWithTheWholeLease => Some(stored.lease),
            _ => Some(stored.ends - now),
        };
        AcquireOutcome::Held { remaining }
    }

    fn grant(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        mut token: u64,
        now: Instant,
    ) -> AcquireOutcome {
        let mut ends = self.ends(now, request.lease);
        let mut count = 1;
        if let Some(former) = &cell.former {
            match self.flaw {
                Flaw::TokenOfTheExpiredHoldAgain if former.ends <= now => token = former.token,
                Flaw::GivesTheTokensOfTheExpiredAwayAgain if former.ends <= now => {
                    token = former.token + 1
                }
                Flaw::ExpiryBelongsToTheName if former.ends > now => ends = former.ends,
                _ => {}
            }
        }
        if let Some(stored) = &cell.hold {
            match self.flaw {
                Flaw::TakeoverKeepsTheToken => token = stored.token,
                Flaw::TakeoverKeepsTheCount => count = stored.count,
                _ => {}
            }
        }
        let former_id = cell.hold.take().map(|stored| stored.id);
        cell.hold = Some(Stored {
            id: request.hold.clone(),
            former_id,
            client: self.client,
            count,
            has_grown: false,
            token,
            lease: request.lease,
            ends,
            mode: request.mode,
            granted_request: None,
        });
        acquired(token)
    }

    /// For the flaw that counts holds by owner instead of by name.
    fn holds_elsewhere(&self, hold: &HoldId) -> bool {
        let is_held = |cell: &Cell| cell.hold.as_ref().is_some_and(|stored| &stored.id == hold);
        self.has(Flaw::TakesOwnersForNames) && self.store().cells.values().any(is_held)
    }

    pub(super) fn renew_now(&self, request: &RenewRequest) -> RenewOutcome {
        if Kind::of(request.mode).is_shared() {
            return self.with(&request.name, |cell, now| self.renew_shared(cell, request, now));
        }
        if self.holds_elsewhere(&request.hold) {
            return RenewOutcome::Renewed;
        }
        self.with(&request.name, |cell, now| {
            let ends = self.ends(now, request.lease);
            let revives = [Flaw::RevivesWhatHasEnded, Flaw::ForceKeepsTheHoldForItsOwner]
                .contains(&self.flaw);
            if cell.hold.is_none() && revives {
                cell.hold = cell.former.take().filter(|former| former.id == request.hold);
            }
            match &mut cell.hold {
                None if self.has(Flaw::RenewalMakesAHold) => {
                    let request = AcquireRequest::new(
                        request.name.clone(),
                        request.hold.clone(),
                        request.lease,
                    );
                    self.grant(cell, &request, 0, now);
                    RenewOutcome::NotHeld
                }
                Some(stored)
                    if self.is_same_hold(stored, &request.hold)
                        || self.has(Flaw::RenewsForAnybody) =>
                {
                    stored.ends = match self.flaw {
                        Flaw::DirectGrantIsNotRenewed if stored.mode == Mode::Fair => stored.ends,
                        Flaw::RenewalDoesNothing => stored.ends,
                        Flaw::RenewalShortens => ends,
                        Flaw::RenewalsAddUp => stored.ends + request.lease,
                        Flaw::EndsEarlyOnceRenewed => {
                            stored.ends.max(now + request.lease.mul_f64(0.95))
                        }
                        _ => stored.ends.max(ends),
                    };
                    RenewOutcome::Renewed
                }
                _ => RenewOutcome::NotHeld,
            }
        })
    }

    pub(super) fn renew_batch(&self, holds: &[RenewRequest]) -> Vec<RenewOutcome> {
        let mut by_name: HashMap<String, RenewOutcome> = HashMap::new();
        let mut outcomes = Vec::new();
        for (number, request) in holds.iter().enumerate() {
            let outcome = match self.flaw {
                Flaw::RenewsTheFirstHundred if number >= 100 => RenewOutcome::Renewed,
                Flaw::AnswersByName => {
                    let first = by_name.entry(self.key(&request.name));
                    first.or_insert_with(|| self.renew_now(request)).clone()
                }
                _ => self.renew_now(request),
            };
            let is_held = matches!(outcome, RenewOutcome::Renewed);
            if is_held || holds.len() == 1 || !self.has(Flaw::AnswersOnlyWhatIsHeld) {
                outcomes.push(outcome);
            }
        }
        if self.has(Flaw::AnswersInReverse) {
            outcomes.reverse();
        }
        outcomes
    }

    pub(super) fn release_now(&self, request: &ReleaseRequest) -> ReleaseOutcome {
        if Kind::of(request.mode).is_shared() {
            return self.with(&request.name, |cell, _| self.release_shared(cell, request));
        }
        let next_token = self.next_token(&request.name, &request.hold);
        let (outcome, queued) = self.with(&request.name, |cell, now| {
            let left = self.leave(cell, request, now);
            let has_left = left.is_some();
            let outcome = match left {
                Some(outcome) => outcome,
                None => self.release_in(cell, request, now),
            };
            self.grant_directly(cell, (outcome, has_left), next_token, now);
            (outcome, cell.queued.take_if(|_| cell.hold.is_none()))
        });
        if let Some(queued) = queued {
            let token = self.next_token(&queued.name, &queued.hold);
            self.acquire_now(&queued, token);
        }
        outcome
    }

    fn release_in(
        &self,
        cell: &mut Cell,
        request: &ReleaseRequest,
        now: Instant,
    ) -> ReleaseOutcome {
        let Some(stored) = &mut cell.hold else { return self.release_free(cell, request, now) };
        let is_holder = self.is_same_hold(stored, &request.hold)
            && !(self.has(Flaw::ReleasesForItsOwnClientOnly) && stored.client != self.client);
        let deletes =
            self.has(Flaw::ReleaseDeletes) || request.is_undo && self.has(Flaw::UndoDeletes);
        if !is_holder && !deletes {
            return if self.has(Flaw::ReleasesTwice) {
                ReleaseOutcome::Released
            } else {
                ReleaseOutcome::NotHeld
            };
        }
        if request.remaining > 0 && !self.has(Flaw::PartialReleaseFrees) {
            stored.count = match self.flaw {
                Flaw::SubtractsCounts => stored.count.saturating_sub(request.remaining),
                _ => request.remaining,
            };
            match self.flaw {
                Flaw::PartialReleaseShortens => stored.ends = now + (stored.ends - now) / 3,
                Flaw::PartialReleaseExtends => stored.ends += stored.lease,
                _ => {}
            }
            return ReleaseOutcome::StillHeld;
        }
        if self.has(Flaw::ReleaseLowersTheCount) && stored.count > 1 {
            stored.count -= 1;
            return ReleaseOutcome::StillHeld;
        }
        let silent = self.has(Flaw::ReleaseWakesNobody)
            || (self.has(Flaw::NestedReleaseWakesNobody) && stored.has_grown)
            || (self.has(Flaw::FairReleaseWakesNobody) && stored.mode == Mode::Fair)
            || self.keeps_from_the_queue(stored.mode, &cell.places);
        self.free(cell, silent);
        if request.remaining > 0 { ReleaseOutcome::StillHeld } else { ReleaseOutcome::Released }
    }

    fn release_free(
        &self,
        cell: &mut Cell,
        request: &ReleaseRequest,
        now: Instant,
    ) -> ReleaseOutcome {
        if request.remaining > 0 && self.has(Flaw::PartialReleaseMakesAHold) {
            let lease = Duration::from_secs(600);
            let request = AcquireRequest::new(request.name.clone(), request.hold.clone(), lease);
            self.grant(cell, &request, 0, now);
            return ReleaseOutcome::StillHeld;
        }
        match self.flaw {
            Flaw::ReleaseOfAFreeLockSucceeds => ReleaseOutcome::Released,
            _ => ReleaseOutcome::NotHeld,
        }
    }

    /// Ends the hold and wakes the subscribers.
    fn free(&self, cell: &mut Cell, silent: bool) {
        cell.former = cell.hold.take();
        self.forget_kind(cell);
        if silent || (self.has(Flaw::WakesOnce) && std::mem::replace(&mut cell.has_woken, true)) {
            return;
        }
        self.wake(cell);
    }

    pub(super) fn wake(&self, cell: &Cell) {
        let last = cell.listeners.len().saturating_sub(1);
        let skipped = if self.has(Flaw::WakesTheLastOfTheQueue) { last } else { 0 };
        self.wake_all(&cell.listeners[skipped..]);
    }

    pub(super) fn wake_all(&self, listeners: &[Arc<Subscriber>]) {
        for listener in listeners {
            if self.has(Flaw::WakesItsOwnClientOnly) && listener.client != self.client {
                continue;
            }
            match self.flaw {
                Flaw::WakesOnlyThoseAsleep => listener.notify.notify_waiters(),
                _ => listener.notify.notify_one(),
            }
            if self.has(Flaw::WakesOneSubscriberOnly) {
                break;
            }
        }
    }

    pub(super) fn force_now(&self, name: &LockName) -> bool {
        self.with(name, |cell, _| {
            self.forget_kind(cell);
            let was_shared = self.force_shared(cell);
            let Some(stored) = &mut cell.hold else {
                return was_shared || self.has(Flaw::ForceAlwaysSaysHeld);
            };
            if self.has(Flaw::ForceFreesNamedOwnersOnly) && !stored.id.is_named() {
                return true;
            }
            if self.has(Flaw::ForceLowersTheCount) && stored.count > 1 {
                stored.count -= 1;
                return true;
            }
            let silent = self.has(Flaw::ForcedReleaseWakesNobody)
                || (self.has(Flaw::FairForcedReleaseWakesNobody) && stored.mode == Mode::Fair)
                || self.keeps_from_the_queue(stored.mode, &cell.places);
            self.free(cell, silent);
            !self.has(Flaw::ForceNeverSaysHeld)
        })
    }

    pub(super) fn inspect_now(&self, name: &LockName, token: u64) -> LockState {
        self.with(name, |cell, now| {
            if !cell.shared.is_empty() {
                return self.inspect_shared(&cell.shared, now);
            }
            if let Some(stored) =
                cell.hold.as_mut().filter(|_| self.has(Flaw::LookingMakesANewHold))
            {
                stored.token = token;
            }
            let expired = cell
                .former
                .as_ref()
                .filter(|former| self.has(Flaw::ReportsTheExpired) && former.ends <= now);
            let Some(stored) = cell.hold.as_ref().or(expired) else {
                return match self.flaw {
                    Flaw::ReportsALeaseOfAFreeLock => {
                        LockState::held(Vec::new(), Some(Duration::from_secs(1)))
                    }
                    _ => LockState::free(),
                };
            };
            let owner = match self.flaw {
                Flaw::ReportsTheIdForTheOwner => stored.id.id(),
                _ => stored.id.owner(),
            };
            let mode = if self.has(Flaw::ReportsAnotherMode) { Mode::Write } else { stored.mode };
            let count = if self.has(Flaw::ReportsOneForEveryCount) { 1 } else { stored.count };
            let remaining = match self.flaw {
                Flaw::ReportsTheWholeLease => stored.lease,
                _ => stored.ends.saturating_duration_since(now),
            };
            LockState::held(vec![Holder::new(owner, mode, count)], Some(remaining))
        })
    }
}

pub(super) fn acquired(token: u64) -> AcquireOutcome {
    AcquireOutcome::Acquired { token: FencingToken::from(token) }
}
