//! [`Flawed`]: a small store that keeps the contract, but for one [`Flaw`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use lockcore::{
    AcquireOutcome, AcquireRequest, Backend, BackendError, BackendErrorKind, Capabilities, FencingToken,
    HoldId, Holder, LockName, LockState, Mode, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    SubscribeRequest, Wakeups,
};
use lockcore_testkit::{Fixture, Op};
use tokio::{sync::Notify, task::yield_now, time::Instant};

use super::flaw::Flaw;

/// A store with clients that all have the same flaw.
#[derive(Debug)]
pub(crate) struct FlawedFixture {
    flaw: Flaw,
    store: Arc<Mutex<Store>>,
    clients: AtomicU64,
}

impl FlawedFixture {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, store: Arc::default(), clients: AtomicU64::new(0) }
    }
}

impl Fixture for FlawedFixture {
    type Backend = Flawed;

    async fn set_up() -> Self {
        Self::new(Flaw::None)
    }

    async fn client(&self) -> Flawed {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        Flawed { flaw: self.flaw, store: self.store.clone(), client, busy: Arc::default() }
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let now = Instant::now();
        let store = self.store.lock().unwrap();
        let keeps_expired = self.flaw == Flaw::KeepsExpiredNames;
        let is_held = |cell: &Cell| cell.live(now).is_some() || (keeps_expired && cell.hold.is_some());
        let idle = |cell: &Cell| !cell.sticky && cell.listeners.is_empty() && !is_held(cell);
        store.cells.iter().filter(|(_, cell)| !idle(cell)).map(|(name, _)| name.clone()).collect()
    }
}

/// One client of the store.
#[derive(Clone, Debug)]
pub(crate) struct Flawed {
    flaw: Flaw,
    store: Arc<Mutex<Store>>,
    client: u64,
    /// Only for [`Flaw::StaysBusyWhenDropped`].
    busy: Arc<Mutex<bool>>,
}

#[derive(Debug, Default)]
struct Store {
    cells: HashMap<String, Cell>,
    tokens: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Cell {
    hold: Option<Stored>,
    /// A hold that has ended, for the flaws that remember it.
    former: Option<Stored>,
    queued: Option<AcquireRequest>,
    listeners: Vec<Arc<Listener>>,
    has_woken: bool,
    sticky: bool,
}

#[derive(Clone, Debug)]
struct Stored {
    id: HoldId,
    former_id: Option<HoldId>,
    client: u64,
    count: u32,
    has_grown: bool,
    token: u64,
    lease: Duration,
    ends: Instant,
    mode: Mode,
}

#[derive(Debug)]
struct Listener {
    client: u64,
    notify: Notify,
}

impl Cell {
    fn live(&self, now: Instant) -> Option<&Stored> {
        self.hold.as_ref().filter(|hold| hold.ends > now)
    }

    /// Puts what has ended away.
    fn settle(&mut self, now: Instant) {
        if self.hold.as_ref().is_some_and(|hold| hold.ends <= now) {
            self.former = self.hold.take();
        }
    }
}

/// A call on its way. Dropping it leaves the client busy, if that is the flaw.
struct Busy<'a>(&'a Flawed);

impl Busy<'_> {
    fn done(self) {
        *self.0.busy.lock().unwrap() = false;
    }
}

impl Flawed {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// The way of a request to the store.
    async fn send(&self, op: Op) -> Busy<'_> {
        if std::mem::replace(&mut *self.busy.lock().unwrap(), self.has(Flaw::StaysBusyWhenDropped(op))) {
            std::future::pending::<()>().await;
        }
        yield_now().await;
        Busy(self)
    }

    /// The way of a reply back.
    async fn reply(&self, busy: Busy<'_>) {
        yield_now().await;
        busy.done();
    }

    fn key(&self, name: &LockName) -> String {
        let name = name.as_str();
        match self.flaw {
            Flaw::IgnoresCase => name.to_lowercase(),
            Flaw::IgnoresSpaceAround => name.trim().into(),
            Flaw::IgnoresWhatIsInBraces => name.replace("{a}", "a"),
            Flaw::CutsLongNames => name.chars().take(255).collect(),
            _ => name.into(),
        }
    }

    /// Does something to the cell of `name`, and forgets it if it is idle then.
    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut Cell, Instant) -> T) -> T {
        let (now, key) = (Instant::now(), self.key(name));
        let mut store = self.store();
        let cell = store.cells.entry(key.clone()).or_default();
        cell.settle(now);
        let was_held = cell.hold.is_some();
        let result = change(cell, now);
        cell.sticky |= (self.has(Flaw::KeepsNamesAskedFor)
            && !was_held
            && cell.hold.is_none()
            && cell.listeners.is_empty())
            || (self.has(Flaw::KeepsReleasedNames) && was_held && cell.hold.is_none());
        let remembers = matches!(
            self.flaw,
            Flaw::RevivesWhatHasEnded
                | Flaw::GrowthRevives
                | Flaw::ReportsTheExpired
                | Flaw::TokenOfTheExpiredHoldAgain
                | Flaw::ExpiryBelongsToTheName
                | Flaw::ForceKeepsTheHoldForItsOwner
        );
        if cell.hold.is_none() && cell.listeners.is_empty() && !cell.sticky && !remembers {
            store.cells.remove(&key);
            if self.has(Flaw::TokensStartAgainWithTheName) {
                store.tokens.remove(&key);
            }
        }
        result
    }

    fn next_token(&self, name: &LockName, id: &HoldId) -> u64 {
        let key = match self.flaw {
            Flaw::TokensStartAgainWithTheName => self.key(name),
            Flaw::TokensOfEachClient => format!("client {}", self.client),
            _ => String::new(),
        };
        if self.has(Flaw::TokenOfTheNamedOwner) && id.is_named() {
            return 1_000_000;
        }
        let mut store = self.store();
        let token = store.tokens.entry(key).or_default();
        *token += 1;
        *token
    }

    fn forget_tokens(&self) {
        self.store().tokens.clear();
    }

    fn ends(&self, now: Instant, lease: Duration) -> Instant {
        let millis = u64::try_from(lease.as_millis()).unwrap();
        now + match self.flaw {
            Flaw::NeverEnds => lease * 1000,
            Flaw::TakesAMillisecondForNone if millis <= 1 => lease * 1_000_000,
            Flaw::EndsEarly => lease.mul_f64(0.9),
            Flaw::CutsLeasesToThirtyTwoBits => Duration::from_millis(millis & 0xffff_ffff),
            _ => lease,
        }
    }

    fn is_same_owner(&self, stored: &HoldId, asks: &HoldId) -> bool {
        match self.flaw {
            Flaw::GrantsToEverybody => true,
            Flaw::TakesAllNamedOwnersForOne if stored.is_named() && asks.is_named() => true,
            Flaw::NamedOwnersTakeEverything if asks.is_named() => true,
            _ => stored.owner() == asks.owner(),
        }
    }

    fn is_same_hold(&self, stored: &Stored, asks: &HoldId) -> bool {
        match self.flaw {
            Flaw::TakeoverKeepsTheOldHold if stored.former_id.as_ref() == Some(asks) => true,
            Flaw::KnowsRepetitionsOfItsOwnClientOnly if stored.client != self.client => false,
            _ => &stored.id == asks,
        }
    }

    fn acquire_now(&self, request: &AcquireRequest, token: u64) -> AcquireOutcome {
        self.with(&request.name, |cell, now| {
            if let Some(outcome) = self.revive(cell, request, now) {
                return outcome;
            }
            match &mut cell.hold {
                Some(stored) if self.is_same_hold(stored, &request.hold) => {
                    self.repeat(stored, request, token, now)
                }
                Some(stored) if self.has(Flaw::GrowthSteals) && request.count > 1 => {
                    self.repeat(stored, request, token, now)
                }
                Some(stored) if !self.is_same_owner(&stored.id, &request.hold) => {
                    self.refuse(cell, request, now)
                }
                Some(stored)
                    if self.has(Flaw::RefusesTheOwnersNextHold)
                        || stored.id == request.hold
                            && self.has(Flaw::KnowsRepetitionsOfItsOwnClientOnly) =>
                {
                    self.refuse(cell, request, now)
                }
                _ if request.count > 1 && !self.has(Flaw::GrowthGrants) => AcquireOutcome::NotHeld,
                _ => self.grant(cell, request, token, now),
            }
        })
    }

    /// For the flaws that do not let a hold go.
    fn revive(&self, cell: &mut Cell, request: &AcquireRequest, now: Instant) -> Option<AcquireOutcome> {
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
        let renumbers = self.has(Flaw::NewTokenForARepetition)
            || (self.has(Flaw::NewTokenForARepetitionByName) && stored.id.is_named());
        if renumbers {
            stored.token = token;
        }
        acquired(stored.token)
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
        });
        acquired(token)
    }

    /// For the flaw that counts holds by owner instead of by name.
    fn holds_elsewhere(&self, hold: &HoldId) -> bool {
        let is_held = |cell: &Cell| cell.hold.as_ref().is_some_and(|stored| &stored.id == hold);
        self.has(Flaw::TakesOwnersForNames) && self.store().cells.values().any(is_held)
    }

    fn renew_now(&self, request: &RenewRequest) -> RenewOutcome {
        if self.holds_elsewhere(&request.hold) {
            return RenewOutcome::Renewed;
        }
        self.with(&request.name, |cell, now| {
            let ends = self.ends(now, request.lease);
            let revives =
                [Flaw::RevivesWhatHasEnded, Flaw::ForceKeepsTheHoldForItsOwner].contains(&self.flaw);
            if cell.hold.is_none() && revives {
                cell.hold = cell.former.take().filter(|former| former.id == request.hold);
            }
            match &mut cell.hold {
                None if self.has(Flaw::RenewalMakesAHold) => {
                    let request =
                        AcquireRequest::new(request.name.clone(), request.hold.clone(), request.lease);
                    self.grant(cell, &request, 0, now);
                    RenewOutcome::NotHeld
                }
                Some(stored)
                    if self.is_same_hold(stored, &request.hold) || self.has(Flaw::RenewsForAnybody) =>
                {
                    stored.ends = match self.flaw {
                        Flaw::RenewalDoesNothing => stored.ends,
                        Flaw::RenewalShortens => ends,
                        Flaw::RenewalsAddUp => stored.ends + request.lease,
                        Flaw::EndsEarlyOnceRenewed => stored.ends.max(now + request.lease.mul_f64(0.95)),
                        _ => stored.ends.max(ends),
                    };
                    RenewOutcome::Renewed
                }
                _ => RenewOutcome::NotHeld,
            }
        })
    }

    fn renew_batch(&self, holds: &[RenewRequest]) -> Vec<RenewOutcome> {
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

    fn release_now(&self, request: &ReleaseRequest) -> ReleaseOutcome {
        let (outcome, queued) = self.with(&request.name, |cell, now| {
            let outcome = self.release_in(cell, request, now);
            (outcome, cell.queued.take_if(|_| cell.hold.is_none()))
        });
        if let Some(queued) = queued {
            let token = self.next_token(&queued.name, &queued.hold);
            self.acquire_now(&queued, token);
        }
        outcome
    }

    fn release_in(&self, cell: &mut Cell, request: &ReleaseRequest, now: Instant) -> ReleaseOutcome {
        let Some(stored) = &mut cell.hold else { return self.release_free(cell, request, now) };
        let is_holder = self.is_same_hold(stored, &request.hold)
            && !(self.has(Flaw::ReleasesForItsOwnClientOnly) && stored.client != self.client);
        if !is_holder && !self.has(Flaw::ReleaseDeletes) {
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
            || (self.has(Flaw::NestedReleaseWakesNobody) && stored.has_grown);
        self.free(cell, silent);
        if request.remaining > 0 { ReleaseOutcome::StillHeld } else { ReleaseOutcome::Released }
    }

    fn release_free(&self, cell: &mut Cell, request: &ReleaseRequest, now: Instant) -> ReleaseOutcome {
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

    /// Ends the hold and wakes whoever listens.
    fn free(&self, cell: &mut Cell, silent: bool) {
        cell.former = cell.hold.take();
        if silent || (self.has(Flaw::WakesOnce) && std::mem::replace(&mut cell.has_woken, true)) {
            return;
        }
        for listener in &cell.listeners {
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

    fn force_now(&self, name: &LockName) -> bool {
        self.with(name, |cell, _| {
            let Some(stored) = &mut cell.hold else {
                return self.has(Flaw::ForceAlwaysSaysHeld);
            };
            if self.has(Flaw::ForceFreesNamedOwnersOnly) && !stored.id.is_named() {
                return true;
            }
            if self.has(Flaw::ForceLowersTheCount) && stored.count > 1 {
                stored.count -= 1;
                return true;
            }
            self.free(cell, self.has(Flaw::ForcedReleaseWakesNobody));
            !self.has(Flaw::ForceNeverSaysHeld)
        })
    }

    fn inspect_now(&self, name: &LockName, token: u64) -> LockState {
        self.with(name, |cell, now| {
            if let Some(stored) = cell.hold.as_mut().filter(|_| self.has(Flaw::LookingMakesANewHold)) {
                stored.token = token;
            }
            let expired =
                cell.former.as_ref().filter(|former| self.has(Flaw::ReportsTheExpired) && former.ends <= now);
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

    fn refuse_mode(&self, mode: Mode) -> Option<Result<AcquireOutcome, BackendError>> {
        if mode == Mode::Exclusive && !self.has(Flaw::DeclaresNothing) {
            return None;
        }
        let error = |kind| Err(BackendError::new(kind, "no such locks"));
        match self.flaw {
            Flaw::GrantsWhatItDoesNotDeclare | Flaw::TakesTheUndeclaredAndFails | Flaw::DeclaresNothing => {
                None
            }
            Flaw::CallsTheUndeclaredHeld => Some(Ok(AcquireOutcome::Held { remaining: None })),
            Flaw::CallsTheUndeclaredAnotherError => Some(error(BackendErrorKind::Protocol)),
            _ => Some(error(BackendErrorKind::Unsupported)),
        }
    }
}

fn acquired(token: u64) -> AcquireOutcome {
    AcquireOutcome::Acquired { token: FencingToken::from(token) }
}

#[async_trait]
impl Backend for Flawed {
    fn capabilities(&self) -> Capabilities {
        match self.flaw {
            Flaw::DeclaresNothing => Capabilities::default(),
            Flaw::DeclaresWhatItRefuses => Capabilities::EXCLUSIVE | Capabilities::FAIR,
            Flaw::DeclaresOnOneClientOnly if self.client.is_multiple_of(2) => {
                Capabilities::EXCLUSIVE | Capabilities::FAIR
            }
            _ => Capabilities::EXCLUSIVE,
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        let busy = self.send(Op::Acquire).await;
        if let Some(refusal) = self.refuse_mode(request.mode) {
            busy.done();
            return refusal;
        }
        if self.has(Flaw::LooksThenWrites) {
            let is_free = self.with(&request.name, |cell, _| cell.hold.is_none());
            yield_now().await;
            if is_free {
                self.with(&request.name, |cell, _| cell.hold = None);
            }
        }
        let token = self.next_token(&request.name, &request.hold);
        let mut outcome = self.acquire_now(request, token);
        if self.has(Flaw::TokensStartAgainAtARefusal) && !matches!(outcome, AcquireOutcome::Acquired { .. }) {
            self.forget_tokens();
        }
        while self.has(Flaw::WaitsInsteadOfRefusing) && matches!(outcome, AcquireOutcome::Held { .. }) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            outcome = self.acquire_now(request, token);
        }
        if self.has(Flaw::StoresThenSetsTheExpiry) || self.has(Flaw::DroppedAcquireCannotBeUndone) {
            self.acquire_in_two_steps(request, &outcome).await;
        }
        self.reply(busy).await;
        match self.flaw {
            Flaw::TakesTheUndeclaredAndFails => self.capabilities().require(request.mode).map(|()| outcome),
            _ => Ok(outcome),
        }
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        if holds.is_empty() && self.has(Flaw::FailsOnAnEmptyBatch) {
            return Err(BackendError::new(BackendErrorKind::Protocol, "nothing to renew"));
        }
        let busy = self.send(Op::Renew).await;
        if self.has(Flaw::DroppedRenewalLosesTheHold) {
            self.renew_by_taking_out(holds).await;
        }
        let outcomes = self.renew_batch(holds);
        self.reply(busy).await;
        Ok(outcomes)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let busy = self.send(Op::Release).await;
        let outcome = self.release_now(request);
        self.reply(busy).await;
        Ok(outcome)
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let busy = self.send(Op::ForceRelease).await;
        let was_held = self.force_now(name);
        if self.has(Flaw::ForceFreesEveryName) {
            self.store().cells.values_mut().for_each(|cell| cell.hold = None);
        }
        if self.has(Flaw::TokensStartAgainWhenForced) {
            self.forget_tokens();
        }
        self.reply(busy).await;
        Ok(was_held)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let busy = self.send(Op::Inspect).await;
        let token = self.next_token(name, &HoldId::unique("inspect"));
        let state = self.inspect_now(name, token);
        self.reply(busy).await;
        Ok(state)
    }

    async fn subscribe(&self, request: &SubscribeRequest) -> Result<Box<dyn Wakeups>, BackendError> {
        let busy = self.send(Op::Subscribe).await;
        let listener = Arc::new(Listener { client: self.client, notify: Notify::new() });
        let mut subscription = Subscription {
            backend: self.clone(),
            name: request.name.clone(),
            listener,
            stays: self.has(Flaw::DroppedSubscribeStays),
        };
        if !self.has(Flaw::SubscriptionBeginsWithTheFirstWait) {
            subscription.begin();
        }
        self.reply(busy).await;
        subscription.stays = self.has(Flaw::KeepsSubscriptions);
        Ok(Box::new(subscription))
    }
}

impl Flawed {
    /// Sets the right expiry, or the right id, one step after the grant.
    async fn acquire_in_two_steps(&self, request: &AcquireRequest, outcome: &AcquireOutcome) {
        if !matches!(outcome, AcquireOutcome::Acquired { .. }) {
            return;
        }
        let unfinished = HoldId::unique("not yet known");
        let right = self.with(&request.name, |cell, _| {
            let stored = cell.hold.as_mut()?;
            let right = (stored.ends, stored.id.clone());
            match self.flaw {
                Flaw::StoresThenSetsTheExpiry => stored.ends += Duration::from_secs(86_400),
                _ => stored.id = unfinished,
            }
            Some(right)
        });
        yield_now().await;
        self.with(&request.name, |cell, _| {
            if let Some((stored, (ends, id))) = cell.hold.as_mut().zip(right) {
                (stored.ends, stored.id) = (ends, id);
            }
        });
    }

    /// Takes the holds out, and puts them back one step later.
    async fn renew_by_taking_out(&self, holds: &[RenewRequest]) {
        for request in holds {
            let taken = self.with(&request.name, |cell, _| cell.hold.take());
            yield_now().await;
            self.with(&request.name, |cell, _| cell.hold = taken);
        }
    }
}

#[derive(Debug)]
struct Subscription {
    backend: Flawed,
    name: LockName,
    listener: Arc<Listener>,
    stays: bool,
}

impl Subscription {
    fn begin(&self) {
        self.backend.with(&self.name, |cell, _| {
            if !cell.listeners.iter().any(|other| Arc::ptr_eq(other, &self.listener)) {
                cell.listeners.push(self.listener.clone());
            }
        });
    }
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) {
        if self.backend.has(Flaw::SubscriptionBeginsWithTheFirstWait) {
            self.begin();
        }
        self.listener.notify.notified().await;
        if self.backend.has(Flaw::DroppedWaitTakesTheWakeup) {
            yield_now().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        self.backend.with(&self.name, |cell, _| {
            let silences = self.backend.has(Flaw::LeavingSilencesTheOthers);
            cell.listeners.retain(|other| !silences && !Arc::ptr_eq(other, &self.listener));
        });
    }
}
