//! [`Flawed`] as a backend: it keeps the contract, except for one [`Flaw`].

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        HoldId, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use lockcore_testkit::{Fixture, Op, Part};
use tokio::{task::yield_now, time::Instant};

use super::{
    flaw::Flaw,
    listening::Topic,
    parts::unsupported,
    queue,
    store::{Busy, Cell, Flawed, Store},
};

/// A store whose clients all have the same flaw.
#[derive(Debug)]
pub(crate) struct FlawedFixture {
    pub(super) flaw: Flaw,
    pub(super) store: Arc<Mutex<Store>>,
    clients: AtomicU64,
}

impl FlawedFixture {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, store: Arc::default(), clients: AtomicU64::new(0) }
    }

    pub(super) fn new_client(&self) -> Flawed {
        Flawed {
            flaw: self.flaw,
            store: self.store.clone(),
            client: self.clients.fetch_add(1, Ordering::Relaxed),
            busy: Arc::default(),
            pool: Arc::default(),
        }
    }
}

impl Fixture for FlawedFixture {
    type Backend = Flawed;

    async fn set_up() -> Self {
        Self::new(Flaw::None)
    }

    async fn client(&self) -> Flawed {
        self.new_client()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        let now = Instant::now();
        let store = self.store.lock().unwrap();
        let keeps_expired = self.flaw == Flaw::KeepsExpiredNames;
        let is_held = |cell: &Cell| {
            cell.live(now).is_some()
                || (keeps_expired && cell.hold.is_some())
                || cell.shared.keeps_holds(self.flaw, now)
        };
        let is_awaited = |cell: &Cell| {
            queue::keeps_places(self.flaw, cell, now) || cell.shared.keeps_writers(self.flaw, now)
        };
        let idle = |cell: &Cell| {
            !cell.sticky && !cell.has_listeners() && !is_held(cell) && !is_awaited(cell)
        };
        let used = store.cells.iter().filter(|(_, cell)| !idle(cell)).map(|(name, _)| name.clone());
        used.chain(store.signals.left_behind(self.flaw, now)).collect()
    }
}

/// A flawless store that has exclusive locks only.
#[derive(Debug)]
pub(crate) struct ExclusiveFixture(FlawedFixture);

impl Fixture for ExclusiveFixture {
    type Backend = Flawed;

    async fn set_up() -> Self {
        Self(FlawedFixture::new(Flaw::HasOnly(&[])))
    }

    async fn client(&self) -> Flawed {
        self.0.client().await
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        self.0.left_behind(name).await
    }
}

#[async_trait]
impl Backend for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.declared()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn intact_for(&self) -> Option<Duration> {
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        let interruptions = self.interruptions();
        let busy = self.send(Op::Acquire).await;
        self.unless_withheld(request).await;
        if let Some(refusal) = self.refuse_undeclared(request) {
            busy.done();
            return refusal;
        }
        if let Some(refusal) = self.refuse_kind(request) {
            self.reply(busy).await;
            return refusal;
        }
        if self.has(Flaw::LooksThenWrites) {
            let is_free = self.with(&request.name, |cell, _| cell.hold.is_none());
            yield_now().await;
            if is_free {
                self.with(&request.name, |cell, _| cell.hold = None);
            }
        }
        if self.has(Flaw::DroppedAcquireArrivesLate) {
            return self.clone().acquire_in_a_pool(request.clone(), busy).await;
        }
        if self.has(Flaw::LendsAnyConnection) {
            let request = request.clone();
            let acquire = move |client: Self| {
                let token = client.tokens_for(&request);
                client.acquire_now(&request, token)
            };
            return Ok(self.over_any_connection(Duration::from_millis(5), acquire).await);
        }
        let token = self.tokens_for(request);
        let mut outcome = self.acquire_now(request, token);
        if self.has(Flaw::TokensStartAgainAtARefusal)
            && !matches!(outcome, AcquireOutcome::Acquired { .. })
        {
            self.forget_tokens();
        }
        while self.has(Flaw::WaitsInsteadOfRefusing)
            && matches!(outcome, AcquireOutcome::Held { .. })
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
            outcome = self.acquire_now(request, token);
        }
        if self.has(Flaw::StoresThenSetsTheExpiry) || self.has(Flaw::DroppedAcquireCannotBeUndone) {
            self.acquire_in_two_steps(request, &outcome).await;
        }
        self.reply(busy).await;
        self.fail_undeclared(request)?;
        self.answer_since(interruptions, outcome)
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
        if self.has(Flaw::LendsAnyConnection) {
            let request = request.clone();
            let release = move |client: Self| client.release_now(&request);
            return Ok(self.over_any_connection(Duration::ZERO, release).await);
        }
        let outcome = self.release_now(request);
        if self.has(Flaw::ConditionsEndWithTheHold) {
            self.store().signals.conditions.clear();
        }
        self.touch_record(&request.name, Flaw::ReleaseRemovesTheRecord);
        self.reply(busy).await;
        Ok(outcome)
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let busy = self.send(Op::ForceRelease).await;
        let was_held = self.force_now(name);
        if self.has(Flaw::ForceFreesEveryName) {
            self.store().cells.values_mut().for_each(|cell| cell.hold = None);
        }
        self.touch_record(name, Flaw::ForceRemovesTheRecord);
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

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        let busy = self.send(Op::Resize).await;
        let resized = if self.declares(Part::Permits) || self.has(Flaw::ResizesUndeclared) {
            self.resize_now(request)
        } else {
            Err(unsupported())
        };
        self.reply(busy).await;
        resized
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let name = request.name.clone();
        if request.awaited == Awaited::Demand {
            self.check_demand(request.mode)?;
            return Ok(self.listen_to(Topic::Demand(name)).await);
        }
        Ok(self.listen_to(Topic::Lock(name, request.hold.clone())).await)
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        let busy = self.send(Op::RaiseToken).await;
        let raised = self.raise_now(name, token);
        self.reply(busy).await;
        raised
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.declares(Part::Latches).then_some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        self.declares(Part::Conditions).then_some(self)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.declares(Part::Directory).then_some(self)
    }
}

impl Flawed {
    /// Acquires in a separate task, a little later, even if the caller is dropped.
    async fn acquire_in_a_pool(
        self,
        request: AcquireRequest,
        busy: Busy<'_>,
    ) -> Result<AcquireOutcome, BackendError> {
        busy.done();
        let acquired = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let token = self.next_token(&request.name, &request.hold);
            self.acquire_now(&request, token)
        });
        Ok(acquired.await.unwrap())
    }

    /// Sets the correct expiry, or the correct id, one step after the grant.
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
