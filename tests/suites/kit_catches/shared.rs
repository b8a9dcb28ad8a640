//! Several holds of one name, and what readers, writers and permits have in common.

use lockcore::{
    Holder, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest,
    },
};
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    kinds::Kind,
    steps::acquired,
    store::{Cell, Flawed, Stored},
};

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) holds: Vec<Stored>,
    /// The writers that keep new readers out, and until when.
    pub(super) writers: Vec<(HoldId, Instant)>,
    /// The number of permits, if it was set.
    pub(super) permits: Option<u32>,
}

impl Shared {
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.writers.is_empty() && self.permits.is_none()
    }

    pub(super) fn settle(&mut self, flaw: Flaw, now: Instant) {
        let before = self.holds.len();
        let stays = |stored: &Stored| is_permit(stored) && flaw == Flaw::EndedPermitsStayTaken;
        self.holds.retain(|stored| stored.ends > now || stays(stored));
        let ends_all = match flaw {
            Flaw::FirstLeaseEndsAll => true,
            Flaw::OneEndGivesBackAllPermits => self.holds.iter().any(is_permit),
            _ => false,
        };
        if ends_all && self.holds.len() < before {
            self.holds.clear();
        }
        self.writers.retain(|(_, until)| *until > now);
        if flaw == Flaw::ForgetsTheSizeWhenFree && before > 0 && self.holds.is_empty() {
            self.permits = None;
        }
    }

    /// Returns `true` if something is kept for those who hold the name.
    pub(super) fn keeps_holds(&self, flaw: Flaw, now: Instant) -> bool {
        let keeps = |stored: &Stored| stored.ends > now || flaw == Flaw::KeepsExpiredNames;
        self.permits.is_some() || self.holds.iter().any(keeps)
    }

    /// Returns `true` if something is kept for those who wait.
    pub(super) fn keeps_writers(&self, flaw: Flaw, now: Instant) -> bool {
        self.writers.iter().any(|(_, until)| *until > now || flaw == Flaw::KeepsLapsedPlaces)
    }

    pub(super) fn readers(&mut self) -> impl Iterator<Item = &mut Stored> {
        self.holds.iter_mut().filter(|stored| stored.mode == Mode::Read)
    }

    pub(super) fn writer(&self) -> Option<&Stored> {
        self.holds.iter().find(|stored| stored.mode == Mode::Write)
    }

    fn find(&mut self, hold: &HoldId) -> Option<&mut Stored> {
        self.holds.iter_mut().find(|stored| stored.id == *hold)
    }
}

pub(super) fn is_permit(stored: &Stored) -> bool {
    matches!(stored.mode, Mode::Permit { .. })
}

impl Flawed {
    pub(super) fn acquire_shared(
        &self,
        cell: &mut Cell,
        request: &AcquireRequest,
        token: u64,
        now: Instant,
    ) -> AcquireOutcome {
        let shared = &mut cell.shared;
        if let Some(repeated) = self.repeat_shared(shared, request, now) {
            return repeated;
        }
        let refused = match request.mode {
            Mode::Read => self.refuse_reader(shared, request, now),
            Mode::Write => self.refuse_writer(shared, request, now),
            _ => self.refuse_permits(shared, request.mode, now),
        };
        match refused {
            Some(outcome) => outcome,
            None if request.count > 1 && !self.has(Flaw::GrowthOfAReaderGrants) => {
                if self.has(Flaw::GrowthOfAWaitingWriterLetsReadersIn) {
                    shared.writers.retain(|(waiting, _)| *waiting != request.hold);
                }
                AcquireOutcome::NotHeld
            }
            None => {
                let announced = self.announced_shared(shared, request);
                let outcome = self.grant_shared(shared, request, token, now);
                if announced > Some(now + request.lease) {
                    self.wake(cell);
                }
                outcome
            }
        }
    }

    /// The announced end of what a grant replaces: of a writer's place, or of an older hold of its
    /// owner.
    fn announced_shared(&self, shared: &Shared, request: &AcquireRequest) -> Option<Instant> {
        let older = shared.holds.iter().filter(|stored| {
            self.gives_way(stored, request) && !self.has(Flaw::TakeoverWakesNobody)
        });
        let place = shared.writers.iter().filter(|(hold, _)| {
            *hold == request.hold && !self.has(Flaw::ShortHoldAfterAPlaceWakesNobody)
        });
        older.map(|stored| stored.ends).chain(place.map(|(_, until)| *until)).max()
    }

    fn repeat_shared(
        &self,
        shared: &mut Shared,
        request: &AcquireRequest,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        let is_stopped = match self.flaw {
            Flaw::WaitingWritersStopAllReaders => {
                !shared.writers.is_empty() && request.mode == Mode::Read
            }
            Flaw::RefusesRepeatedPermits => Kind::of(request.mode) != Kind::ReadWrite,
            _ => false,
        };
        let stored = shared.find(&request.hold).filter(|_| !is_stopped)?;
        let ends = now + request.lease;
        stored.ends =
            if self.has(Flaw::RepetitionOfAReaderShortens) { ends } else { stored.ends.max(ends) };
        stored.count = match self.flaw {
            Flaw::CountsRepeatedReaders if request.count == 1 => stored.count + 1,
            _ => request.count,
        };
        if let (Mode::Permit { count, limit, .. }, Flaw::RepeatedPermitsCount) =
            (stored.mode, self.flaw)
        {
            stored.mode = Mode::permits(count * 2, limit);
        }
        let token = stored.token;
        self.share_count(shared, request.count);
        Some(acquired(token))
    }

    fn share_count(&self, shared: &mut Shared, count: u32) {
        if self.has(Flaw::ReadersShareACount) {
            shared.readers().for_each(|reader| reader.count = count);
        }
    }

    fn grant_shared(
        &self,
        shared: &mut Shared,
        request: &AcquireRequest,
        token: u64,
        now: Instant,
    ) -> AcquireOutcome {
        let mode = self.mode_to_store(shared, request.mode);
        let own_tokens = self.has(Flaw::WritersHaveTokensOfTheirOwn) && mode == Mode::Write;
        let token = if own_tokens { token + 1_000_000 } else { token };
        if !self.has(Flaw::WritersInKeepReadersOut) {
            shared.writers.retain(|(hold, _)| *hold != request.hold);
        }
        let before = shared.holds.len();
        shared.holds.retain(|stored| !self.gives_way(stored, request));
        if shared.holds.len() < before && self.has(Flaw::TakeoverEndsAllReaders) {
            shared.holds.clear();
        }
        shared.holds.push(Stored {
            id: request.hold.clone(),
            former_id: None,
            client: self.client,
            count: 1,
            has_grown: false,
            token,
            lease: request.lease,
            ends: now + request.lease,
            mode,
            granted_request: None,
        });
        self.share_leases(shared, Flaw::LastLeaseIsForAll);
        acquired(token)
    }

    fn share_leases(&self, shared: &mut Shared, flaw: Flaw) {
        let last = shared.holds.iter().map(|stored| stored.ends).max();
        if let Some(last) = last.filter(|_| self.has(flaw)) {
            shared.holds.iter_mut().for_each(|stored| stored.ends = last);
        }
    }

    /// Returns `true` if `stored` is an older hold that `request` takes over.
    fn gives_way(&self, stored: &Stored, request: &AcquireRequest) -> bool {
        stored.id.owner() == request.hold.owner()
            && match request.mode {
                Mode::Permit { .. } => self.has(Flaw::PermitsOfAnOwnerAreOneHold),
                Mode::Read if self.has(Flaw::NamedReadersPileUp) => false,
                Mode::Read if self.has(Flaw::ReaderTakesOverTheWriter) => true,
                mode => stored.mode == mode,
            }
    }

    pub(super) fn renew_shared(
        &self,
        cell: &mut Cell,
        request: &RenewRequest,
        now: Instant,
    ) -> RenewOutcome {
        let shared = &mut cell.shared;
        let for_anybody = match request.mode {
            Mode::Permit { .. } => self.has(Flaw::AnybodyRenewsPermits),
            _ => self.has(Flaw::AnybodyRenewsReaders),
        };
        let is_this = |stored: &&mut Stored| for_anybody || stored.id == request.hold;
        let Some(stored) = shared.holds.iter_mut().find(is_this) else {
            return RenewOutcome::NotHeld;
        };
        let ends = now + request.lease;
        stored.ends = match self.flaw {
            Flaw::RenewalOfAReaderShortens => ends,
            _ => stored.ends.max(ends),
        };
        self.share_leases(shared, Flaw::RenewalIsForAll);
        RenewOutcome::Renewed
    }

    pub(super) fn release_shared(
        &self,
        cell: &mut Cell,
        request: &ReleaseRequest,
    ) -> ReleaseOutcome {
        self.forget_kind(cell);
        let shared = &mut cell.shared;
        let for_anybody = match request.mode {
            Mode::Permit { .. } => self.has(Flaw::AnybodyReleasesPermits),
            _ => self.has(Flaw::AnybodyReleasesReaders),
        };
        let is_this = |stored: &Stored| for_anybody || stored.id == request.hold;
        let Some(place) = shared.holds.iter().position(is_this) else {
            return self.give_up(cell, &request.hold);
        };
        if request.remaining > 0 {
            shared.holds[place].count = request.remaining;
            self.share_count(shared, request.remaining);
            return ReleaseOutcome::StillHeld;
        }
        let mode = shared.holds[place].mode;
        match self.flaw {
            Flaw::OneReleaseEndsAllReaders if mode == Mode::Read => shared.holds.clear(),
            Flaw::WriteEndsWithItsReader => shared.holds.clear(),
            Flaw::StaysAWriterWhileItReads if mode == Mode::Write && shared.holds.len() > 1 => {}
            _ => drop(shared.holds.remove(place)),
        }
        if self.has(Flaw::ForgetsTheSizeWhenFree) && shared.holds.is_empty() {
            shared.permits = None;
        }
        let is_silent = match self.flaw {
            Flaw::ReleaseOfAReaderWakesNobody => mode == Mode::Read,
            Flaw::ReleaseOfAWriterWakesNobody => mode == Mode::Write,
            Flaw::ReleaseOfPermitsWakesNobody => matches!(mode, Mode::Permit { .. }),
            Flaw::WakesOnlyWhenFree => !shared.holds.is_empty(),
            _ => false,
        };
        if !is_silent {
            self.wake(cell);
        }
        ReleaseOutcome::Released
    }

    /// Ends all holds. Returns `true` if there were any.
    pub(super) fn force_shared(&self, cell: &mut Cell) -> bool {
        let holds = &mut cell.shared.holds;
        let were_held = !holds.is_empty();
        match self.flaw {
            Flaw::ForceEndsOneHold => drop(holds.pop()),
            Flaw::ForceKeepsReaders => holds.retain(|stored| stored.mode == Mode::Read),
            _ => holds.clear(),
        }
        if were_held {
            self.wake(cell);
        }
        were_held
    }

    pub(super) fn inspect_shared(&self, shared: &Shared, now: Instant) -> LockState {
        let reported = if self.has(Flaw::ReportsOneHolder) { 1 } else { shared.holds.len() };
        let as_writers = self.has(Flaw::ReportsReadersAsWriters);
        let holder = |stored: &Stored| {
            let mode =
                if as_writers && stored.mode == Mode::Read { Mode::Write } else { stored.mode };
            Holder::new(stored.id.owner(), mode, stored.count)
        };
        let last = shared.holds.iter().map(|stored| stored.ends).max();
        let remaining = last.map(|ends| ends.saturating_duration_since(now));
        let state =
            LockState::held(shared.holds.iter().take(reported).map(holder).collect(), remaining);
        let waiting = shared.writers.iter().map(|(hold, _)| hold.owner().to_owned()).collect();
        let waiters = if self.has(Flaw::ReportsNoWaitingWriter) { Vec::new() } else { waiting };
        self.report_permits(shared, state.with_waiters(waiters))
    }
}
