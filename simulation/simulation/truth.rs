//! [`Truth`]: the real events at the store, and [`Observed`], the store that records them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, Departure,
        Directory, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeup, Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;
use tokio::time::Instant;

use crate::{
    noise::{Noise, at_once},
    trace::Trace,
};

/// The events at the store. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(crate) store: MemoryBackend,
    pub(crate) trace: Trace,
    events: Arc<Mutex<Events>>,
}

#[derive(Debug, Default)]
struct Events {
    /// The last token over all names.
    last_token: u64,
    /// By name: the time of the last grant, or the last count of a latch.
    granted_at: BTreeMap<String, Instant>,
    /// By name and token: the grants.
    grants: BTreeMap<(String, u64), Granted>,
    /// When the latch was last opened; `None` while it is closed.
    opened_at: Option<Instant>,
    /// When the latch was last closed.
    closed_at: Option<Instant>,
    /// The number of count-downs.
    counted_down: u32,
    /// The number of notified waiters of a condition.
    notified: u32,
    /// By name: the last token whose hold was released by force.
    forced: BTreeMap<String, u64>,
    /// By name, owner and side: the last token.
    latest: BTreeMap<(String, String, &'static str), u64>,
    /// The names that will be in use forever.
    resized: BTreeSet<String>,
}

/// The owner and the mode of a grant.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) owner: String,
    pub(crate) mode: Mode,
}

impl Granted {
    /// Returns `true` if `holder` is the stored hold of this grant.
    pub(crate) fn is_stored_as(&self, holder: &Holder) -> bool {
        holder.owner() == self.owner && (holder.mode() == Mode::Write) == (self.mode == Mode::Write)
    }
}

/// Holds of one owner on different sides do not take each other over.
fn side(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
        Mode::Permit { .. } => "permit",
        _ => "lock",
    }
}

impl Truth {
    pub(crate) fn new(store: MemoryBackend, trace: Trace) -> Self {
        Self { store, trace, events: Arc::default() }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn granted(&self, request: &AcquireRequest, token: u64) {
        let mut events = self.events();
        let name = request.name.to_string();
        events.granted_at.insert(name.clone(), Instant::now());
        let granted = Granted { owner: request.hold.owner().to_owned(), mode: request.mode };
        events.grants.insert((name.clone(), token), granted);
        let key = (name.clone(), request.hold.owner().to_owned(), side(request.mode));
        let is_new = token > events.last_token;
        events.last_token = events.last_token.max(token);
        if let Some(before) = events.latest.insert(key, token)
            && token < before
            && side(request.mode) != "permit"
        {
            drop(events);
            self.trace.violation(format!("the token {token} of {name} was granted after {before}"));
        } else if is_new && request.count > 1 {
            drop(events);
            self.trace.violation(format!(
                "a nested acquisition of {name} was granted a new hold, {token}"
            ));
        }
    }

    fn forced(&self, name: &LockName) {
        let mut events = self.events();
        let last = events.last_token;
        events.forced.insert(name.to_string(), last);
    }

    /// Returns `true` if a belief in this hold is excused: it was released by force, or taken over
    /// by its own owner.
    pub(crate) fn excuses(&self, name: &str, owner: &str, mode: Mode, token: u64) -> bool {
        let events = self.events();
        // A task that was handed a hold released by force knows as little of that as the previous
        // one.
        let grants = events.grants.range((name.to_owned(), 0)..=(name.to_owned(), token));
        let first = grants.map(|((_, first), _)| *first).next_back().unwrap_or(token);
        let forced = events.forced.get(name).is_some_and(|forced| first <= *forced);
        let latest = events.latest.get(&(name.to_owned(), owner.to_owned(), side(mode)));
        forced || side(mode) != "permit" && latest.is_some_and(|latest| token < *latest)
    }

    pub(crate) fn granted_at(&self, name: &str) -> Option<Instant> {
        self.events().granted_at.get(name).copied()
    }

    /// The grant of this token: a separate one, or one of several tokens that follow the first.
    pub(crate) fn granted_for(&self, name: &str, token: u64) -> Granted {
        let events = self.events();
        let name = name.to_owned();
        let (_, granted) =
            events.grants.range((name.clone(), 0)..=(name, token)).next_back().expect("a grant");
        granted.clone()
    }

    /// Returns `true` if the hold of this token is still stored, and not just because it was handed
    /// over.
    pub(crate) fn has_grant(&self, name: &str, token: u64) -> bool {
        let granted = self.granted_for(name, token);
        granted.mode != Mode::Exclusive
            && self.inspect(name).holders().iter().any(|holder| granted.is_stored_as(holder))
    }

    /// The number of count-downs so far.
    pub(crate) fn counted_down(&self) -> u32 {
        self.events().counted_down
    }

    /// The number of notified waiters so far.
    pub(crate) fn notified(&self) -> u32 {
        self.events().notified
    }

    /// The number of names that will be in use forever.
    pub(crate) fn resized(&self) -> usize {
        self.events().resized.len()
    }

    pub(crate) fn inspect(&self, name: &str) -> LockState {
        let name = LockName::new(name).expect("a valid name");
        at_once(self.store.inspect(&name)).expect("an answer")
    }

    pub(crate) fn latch_count(&self, name: &str) -> u32 {
        let name = LockName::new(name).expect("a valid name");
        at_once(Latches::count(&self.store, &name)).expect("an answer")
    }

    /// Records whether the latch is open, after each operation on it.
    fn look_at_latch(&self, name: &LockName) {
        let is_open = self.latch_count(name.as_str()) == 0;
        let mut events = self.events();
        if is_open {
            events.opened_at.get_or_insert_with(Instant::now);
        } else if events.opened_at.take().is_some() || events.closed_at.is_none() {
            events.closed_at = Some(Instant::now());
        }
    }

    /// Returns `true` if the latch has been closed from `start` until now.
    pub(crate) fn latch_closed_since(&self, start: Instant) -> bool {
        let events = self.events();
        events.opened_at.is_none() && events.closed_at.is_some_and(|closed| closed < start)
    }

    /// How long the latch has been open, since `start` at most.
    pub(crate) fn latch_open_for(&self, start: Instant) -> Duration {
        self.events().opened_at.map(|opened| opened.max(start).elapsed()).unwrap_or_default()
    }

    pub(crate) fn open_latch(&self, name: &str) {
        let name = LockName::new(name).expect("a valid name");
        at_once(self.store.open(&name)).expect("an answer");
    }
}

/// The store, as one client reaches it: every request takes a while to arrive, and so does its
/// answer.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) client: usize,
    pub(crate) truth: Truth,
    pub(crate) noise: Noise,
}

impl Observed {
    /// Makes a call, and records it when it takes effect.
    async fn call<T: std::fmt::Debug>(
        &self,
        what: String,
        effect: impl Future<Output = T> + Send,
        note: impl FnOnce(&T),
    ) -> T {
        self.noise.pause().await;
        let answer = effect.await;
        self.truth.trace.event(format_args!("  c{} {what} -> {answer:?}", self.client));
        note(&answer);
        self.noise.pause().await;
        answer
    }
}

#[async_trait]
#[deny(
    clippy::missing_trait_methods,
    reason = "a call that is not passed on would not be observed"
)]
impl Backend for Observed {
    fn capabilities(&self) -> Capabilities {
        self.truth.store.capabilities()
    }

    fn limits(&self) -> Limits {
        self.truth.store.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.truth.store.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        let AcquireRequest { name, hold, mode, lease, count, .. } = request;
        let what = format!("acquire {name} {mode:?} {hold:?} {lease:?} {count}");
        let note = |answer: &Result<AcquireOutcome, _>| {
            if let Ok(AcquireOutcome::Acquired { token }) = answer {
                self.truth.granted(request, u64::from(*token));
            }
        };
        self.call(what, self.truth.store.acquire(request), note).await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.call(format!("renew {}", holds.len()), self.truth.store.renew(holds), |_| ()).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let what = format!("release {} {:?} {}", request.name, request.hold, request.remaining);
        self.call(what, self.truth.store.release(request), |_| ()).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let note = |_: &Result<bool, _>| self.truth.forced(name);
        self.call(format!("force {name}"), self.truth.store.force_release(name), note).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        self.call(format!("inspect {name}"), self.truth.store.inspect(name), |_| ()).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let subscribe = Backend::subscribe(&self.truth.store, request);
        let what = format!("subscribe {}", request.name);
        let wakeups = self.call(what, without_debug(subscribe), |_| ()).await.0?;
        let (observed, request) = (self.clone(), request.clone());
        Ok(Box::new(ObservedWakeups { wakeups, observed, request, on_its_way: None }))
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        let ResizeRequest { name, permits, .. } = request;
        let note = |_: &Result<ResizeOutcome, _>| {
            self.truth.events().resized.insert(name.to_string());
        };
        self.call(format!("resize {name} {permits}"), self.truth.store.resize(request), note).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        let raise = self.truth.store.raise_token(name, token);
        self.call(format!("raise {name} {token}"), raise, |_| ()).await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        Some(self)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        None
    }
}

/// Wake-ups that take a while to arrive. A hold that comes with one was granted by another's
/// release.
#[derive(Debug)]
struct ObservedWakeups {
    wakeups: Box<dyn Wakeups>,
    observed: Observed,
    request: SubscribeRequest,
    on_its_way: Option<Wakeup>,
}

#[async_trait]
impl Wakeups for ObservedWakeups {
    async fn woken(&mut self) -> Wakeup {
        let Observed { client, truth, noise } = &self.observed;
        if self.on_its_way.is_none() {
            let wakeup = self.wakeups.woken().await;
            let Wakeup::Granted { token, .. } = wakeup else { return wakeup };
            let SubscribeRequest { name, hold, mode, .. } = &self.request;
            truth.trace.event(format_args!("  c{client} woken {name} {hold:?} -> {wakeup:?}"));
            let lease = Duration::ZERO;
            let granted = AcquireRequest::new(name.clone(), hold.clone(), lease).mode(*mode);
            truth.granted(&granted, u64::from(token));
            self.on_its_way = Some(wakeup);
        }
        noise.pause().await;
        self.on_its_way.take().unwrap_or(Wakeup::Changed)
    }
}

/// A subscription without a debug output that would differ between runs.
struct Subscribed(Result<Box<dyn Wakeups>, BackendError>);

impl std::fmt::Debug for Subscribed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a subscription")
    }
}

async fn without_debug(
    subscribe: impl Future<Output = Result<Box<dyn Wakeups>, BackendError>> + Send,
) -> Subscribed {
    Subscribed(subscribe.await)
}

#[async_trait]
impl Latches for Observed {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let note = |_: &Result<bool, _>| self.truth.look_at_latch(name);
        let set = async {
            let before = self.truth.latch_count(name.as_str());
            let answer = self.truth.store.set_count(name, count, id).await;
            let after = self.truth.latch_count(name.as_str());
            if before > 0 && after != before {
                self.truth
                    .trace
                    .violation(format!("a latch with {before} left was set to {after}"));
            }
            answer
        };
        self.call(format!("set {name} {count}"), set, note).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        let note = |_: &Result<u32, _>| self.truth.look_at_latch(name);
        let count_down = async {
            let before = self.truth.latch_count(name.as_str());
            let answer = self.truth.store.count_down(name, id).await;
            self.truth.events().counted_down += before - self.truth.latch_count(name.as_str());
            answer
        };
        self.call(format!("count down {name}"), count_down, note).await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        self.call(format!("count {name}"), Latches::count(&self.truth.store, name), |_| ()).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        self.call(format!("open {name}"), self.truth.store.open(name), |_| ()).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        let subscribe = Latches::subscribe(&self.truth.store, name);
        self.call(format!("listen {name}"), without_debug(subscribe), |_| ()).await.0
    }
}

#[async_trait]
impl Conditions for Observed {
    async fn join(
        &self,
        id: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        self.call(format!("join {waiter}"), self.truth.store.join(id, waiter, keep), |_| ()).await
    }

    async fn stay(
        &self,
        id: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        self.call(format!("stay {waiter}"), self.truth.store.stay(id, waiter, keep), |_| ()).await
    }

    async fn leave(
        &self,
        id: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let leave = self.truth.store.leave(id, waiter, departure);
        self.call(format!("leave {waiter} {departure:?}"), leave, |_| ()).await
    }

    async fn notify(&self, id: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let note = |notified: &Result<u32, _>| {
            self.truth.events().notified += notified.as_ref().copied().unwrap_or_default();
        };
        self.call(format!("notify {count}"), self.truth.store.notify(id, count), note).await
    }

    async fn subscribe(
        &self,
        id: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let subscribe = Conditions::subscribe(&self.truth.store, id, waiter);
        self.call(format!("listen {waiter}"), without_debug(subscribe), |_| ()).await.0
    }
}
