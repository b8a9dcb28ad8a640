//! The setting of every case, and the steps that cases consist of.

use std::{future::Future, mem::discriminant, pin::Pin, time::Duration};

use lockcore::{
    BackendErrorKind, FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, HoldId, ReleaseOutcome, ReleaseRequest,
        RenewOutcome, RenewRequest, SubscribeRequest, Wakeups,
    },
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::Fixture;

/// The lease of holds that must not end during a test.
pub(crate) const LASTING: Duration = Duration::from_secs(600);

/// The time limit for events that must come at once. It is much shorter than [`LASTING`].
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A unique name, and two independent clients of the store.
pub(crate) struct Scene<B> {
    pub(crate) name: LockName,
    pub(crate) one: B,
    pub(crate) two: B,
    /// The default mode of its rivals.
    mode: Mode,
}

/// A contender for the lock: a hold, at one of the clients.
#[derive(Clone, Copy)]
pub(crate) struct Rival<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) name: &'a LockName,
    hold: &'a HoldId,
    mode: Mode,
    queue: Option<Duration>,
    within: Option<&'a HoldId>,
    tokens: u32,
    direct_grant: Option<u64>,
    least_token: Option<FencingToken>,
}

impl<B: Backend> Scene<B> {
    pub(crate) async fn of<F: Fixture<Backend = B>>(fixture: &F) -> Self {
        let (one, two) = (fixture.client().await, fixture.client().await);
        Self { name: unique_name(""), one, two, mode: Mode::Exclusive }
    }

    /// A lease that ends soon.
    pub(crate) fn brief(&self) -> Duration {
        self.one.limits().shortest_lease.max(Duration::from_millis(20))
    }

    /// The scene of a lock in `mode`.
    pub(crate) async fn in_mode<F: Fixture<Backend = B>>(fixture: &F, mode: Mode) -> Self {
        Self { mode, ..Self::of(fixture).await }
    }

    /// The scene of a fair lock.
    pub(crate) async fn fair<F: Fixture<Backend = B>>(fixture: &F) -> Self {
        Self::in_mode(fixture, Mode::Fair).await
    }

    /// The scene of a read-write lock. Rivals read by default.
    pub(crate) async fn read_write<F: Fixture<Backend = B>>(fixture: &F) -> Self {
        Self::in_mode(fixture, Mode::Read).await
    }

    /// The scene of a semaphore with `limit` permits. Rivals take one by default.
    pub(crate) async fn semaphore<F: Fixture<Backend = B>>(fixture: &F, limit: u32) -> Self {
        Self::in_mode(fixture, Mode::permits(1, limit)).await
    }

    /// `hold`, at the first client.
    pub(crate) fn one<'a>(&'a self, hold: &'a HoldId) -> Rival<'a> {
        self.contender(&self.one, hold)
    }

    /// `hold`, at the second client.
    pub(crate) fn two<'a>(&'a self, hold: &'a HoldId) -> Rival<'a> {
        self.contender(&self.two, hold)
    }

    fn contender<'a>(&'a self, backend: &'a B, hold: &'a HoldId) -> Rival<'a> {
        Rival {
            backend,
            name: &self.name,
            hold,
            mode: self.mode,
            queue: None,
            within: None,
            tokens: 1,
            direct_grant: None,
            least_token: None,
        }
    }
}

/// A name that no other test and no other process uses.
pub(crate) fn unique_name(end: &str) -> LockName {
    LockName::new(format!("lockcore-testkit:{}{end}", Uuid::new_v4())).expect("a valid name")
}

/// A hold of a unique owner.
pub(crate) fn stranger() -> HoldId {
    HoldId::unique(format!("{}:1", Uuid::new_v4()))
}

/// A new hold of the named owner `owner`.
pub(crate) fn named(owner: &str) -> HoldId {
    HoldId::named(owner, format!("{}:1", Uuid::new_v4()))
}

/// Returns the output of `future`, which must complete at once.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.expect("this should have come at once")
}

/// Shows that `future` is still pending.
pub(crate) async fn still_waits<F: Fixture, T>(
    fixture: &F,
    future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) {
    tokio::select! {
        biased;
        _ = future => panic!("this should have waited"),
        () = fixture.pass(Duration::from_millis(50)) => {}
    }
}

/// Shows that nothing of `name` remains, after a short while, that would stay forever.
pub(crate) async fn nothing_is_left<F: Fixture>(fixture: &F, name: &LockName) {
    let mut left = fixture.left_behind(name).await;
    for _ in 0..200 {
        if left.is_empty() {
            return;
        }
        fixture.pass(SOON / 200).await;
        left = fixture.left_behind(name).await;
    }
    panic!("this is left of `{name}` for ever: {left:?}");
}

pub(crate) async fn state(backend: &dyn Backend, name: &LockName) -> LockState {
    soon(backend.inspect(name)).await.expect("inspect failed")
}

pub(crate) async fn force(backend: &dyn Backend, name: &LockName) -> bool {
    soon(backend.force_release(name)).await.expect("force_release failed")
}

impl<'a> Rival<'a> {
    /// The same hold at another client.
    pub(crate) fn at(self, backend: &'a dyn Backend) -> Self {
        Self { backend, ..self }
    }

    /// The same hold under another name.
    pub(crate) fn under(self, name: &'a LockName) -> Self {
        Self { name, ..self }
    }

    /// The same hold in another mode.
    pub(crate) fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn mode(self) -> Mode {
        self.mode
    }

    /// The same hold, as a writer.
    pub(crate) fn writing(self) -> Self {
        self.in_mode(Mode::Write)
    }

    /// The same hold, beside a write hold.
    pub(crate) fn within(self, write: &'a HoldId) -> Self {
        Self { within: Some(write), ..self }
    }

    /// The same hold, asking for `tokens` tokens.
    pub(crate) fn with_tokens(self, tokens: u32) -> Self {
        Self { tokens, ..self }
    }

    /// The same hold, which may be granted later by `number`, the number of its request.
    pub(crate) fn with_number(self, number: u64) -> Self {
        Self { direct_grant: Some(number), ..self }
    }

    /// The same hold, asking for this token or a later one.
    pub(crate) fn proposing(self, token: FencingToken) -> Self {
        Self { least_token: Some(token), ..self }
    }

    /// The same hold, of `count` permits.
    pub(crate) fn taking(self, count: u32) -> Self {
        match self.mode {
            Mode::Permit { limit, plain: true, .. } => {
                self.in_mode(Mode::plain_permits(count, limit))
            }
            Mode::Permit { limit, .. } => self.in_mode(Mode::permits(count, limit)),
            _ => self,
        }
    }

    pub(crate) fn acquire_request(self, lease: Duration) -> AcquireRequest {
        AcquireRequest::new(self.name.clone(), self.hold.clone(), lease)
            .mode(self.mode)
            .queue(self.queue)
            .within(self.within.cloned())
            .tokens(self.tokens)
            .direct_grant(self.direct_grant)
            .least_token(self.least_token)
    }

    pub(crate) fn renew_request(self, lease: Duration) -> RenewRequest {
        RenewRequest::new(self.name.clone(), self.hold.clone(), lease).mode(self.mode)
    }

    pub(crate) fn release_request(self) -> ReleaseRequest {
        ReleaseRequest::new(self.name.clone(), self.hold.clone()).mode(self.mode)
    }

    pub(crate) async fn send(self, request: AcquireRequest) -> AcquireOutcome {
        soon(self.backend.acquire(&request)).await.expect("acquire failed")
    }

    pub(crate) async fn asks(self) -> AcquireOutcome {
        self.send(self.acquire_request(LASTING)).await
    }

    pub(crate) async fn asks_for_count(self, count: u32, lease: Duration) -> AcquireOutcome {
        self.send(self.acquire_request(lease).count(count)).await
    }

    pub(crate) async fn enters(self) -> FencingToken {
        self.enters_for(LASTING).await
    }

    pub(crate) async fn enters_for(self, lease: Duration) -> FencingToken {
        match self.send(self.acquire_request(lease)).await {
            AcquireOutcome::Acquired { token } | AcquireOutcome::Acknowledged { token, .. } => {
                token
            }
            refused => panic!("{:?} should have got the lock, was answered {refused:?}", self.hold),
        }
    }

    /// Shows that the request is refused because of another owner, and returns the remaining lease.
    pub(crate) async fn is_refused(self) -> Duration {
        match self.asks().await {
            AcquireOutcome::Held { remaining: Some(remaining) } => remaining,
            other => {
                panic!(
                    "{:?} should have been refused with the remaining lease, was answered {other:?}",
                    self.hold
                )
            }
        }
    }

    /// Shows that the name is in use as another kind, and that the request certainly had no effect.
    pub(crate) async fn is_of_another_kind(self) {
        let answer = soon(self.backend.acquire(&self.acquire_request(LASTING))).await;
        let error = answer.expect_err("the name is in use as another kind of lock");
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
        assert!(!error.is_outcome_unknown(), "the error must say that there was no effect");
    }

    /// Shows that the request is refused, and gives it a place in the queue that outlasts the test.
    pub(crate) async fn queues(self) -> Duration {
        self.queues_for(LASTING).await
    }

    /// Shows that the request is refused, and gives it a place in the queue for `time`.
    pub(crate) async fn queues_for(self, time: Duration) -> Duration {
        Self { queue: Some(time), ..self }.is_refused().await
    }

    /// Raises the count of a live hold.
    pub(crate) async fn grows_to(self, count: u32, lease: Duration) -> FencingToken {
        match self.asks_for_count(count, lease).await {
            AcquireOutcome::Acquired { token } | AcquireOutcome::Acknowledged { token, .. } => {
                token
            }
            other => panic!("the hold should have grown to {count}, was answered {other:?}"),
        }
    }

    /// Shows that the count of a hold that is gone cannot be raised.
    pub(crate) async fn cannot_grow(self) {
        let outcome = self.asks_for_count(2, LASTING).await;
        assert_eq!(outcome, AcquireOutcome::NotHeld, "a hold that is gone cannot grow");
    }

    async fn renew(self, lease: Duration) -> RenewOutcome {
        let outcomes =
            soon(self.backend.renew(&[self.renew_request(lease)])).await.expect("renew failed");
        let [outcome] = <[RenewOutcome; 1]>::try_from(outcomes).expect("one answer to one request");
        outcome
    }

    pub(crate) async fn renews(self, lease: Duration) {
        let outcome = self.renew(lease).await;
        assert!(
            matches!(outcome, RenewOutcome::Renewed),
            "a live hold was not renewed: {outcome:?}"
        );
    }

    pub(crate) async fn cannot_renew(self) {
        let outcome = self.renew(LASTING).await;
        assert!(
            matches!(outcome, RenewOutcome::NotHeld),
            "a hold that is not there was renewed: {outcome:?}"
        );
    }

    pub(crate) async fn asks_to_release(self, remaining: u32) -> ReleaseOutcome {
        let request = self.release_request().remaining(remaining);
        soon(self.backend.release(&request)).await.expect("release failed")
    }

    pub(crate) async fn releases(self) {
        assert_eq!(
            self.asks_to_release(0).await,
            ReleaseOutcome::Released,
            "a live hold was not released"
        );
    }

    pub(crate) async fn lowers_to(self, count: u32) {
        assert_eq!(
            self.asks_to_release(count).await,
            ReleaseOutcome::StillHeld,
            "the hold should go on"
        );
    }

    pub(crate) async fn cannot_release(self) {
        let outcome = self.asks_to_release(0).await;
        assert_eq!(outcome, ReleaseOutcome::NotHeld, "a hold that is not there was released");
    }

    /// Undoes a request that led to no hold.
    pub(crate) async fn undoes(self) {
        let undo = self.acquire_request(LASTING).undo();
        let outcome = soon(self.backend.release(&undo)).await.expect("release failed");
        assert_eq!(outcome, ReleaseOutcome::NotHeld, "there was nothing to undo");
    }

    pub(crate) async fn subscribes(self) -> Box<dyn Wakeups> {
        self.awaits(Awaited::End).await
    }

    /// Subscribes to refused requests of others.
    pub(crate) async fn awaits_demand(self) -> Box<dyn Wakeups> {
        self.awaits(Awaited::Demand).await
    }

    async fn awaits(self, awaited: Awaited) -> Box<dyn Wakeups> {
        let request = SubscribeRequest::new(self.name.clone(), self.hold.clone()).mode(self.mode);
        let request = request.awaited(awaited);
        soon(self.backend.subscribe(&request)).await.expect("subscribe failed")
    }

    /// Shows that this is the only hold, and returns its count and its remaining lease.
    pub(crate) async fn holds(self) -> (u32, Duration) {
        let state = state(self.backend, self.name).await;
        let [holder] = state.holders() else { panic!("there should be one holder: {state:?}") };
        assert_eq!(holder.owner(), self.hold.owner(), "somebody else holds the lock");
        (holder.hold_count(), state.remaining().expect("a hold has a lease"))
    }

    /// Shows that this hold does not exist now; others may.
    pub(crate) async fn holds_nothing(self) {
        let state = state(self.backend, self.name).await;
        let mut owners = state.holders().iter().map(Holder::owner);
        assert!(
            owners.all(|owner| owner != self.hold.owner()),
            "the hold should be gone: {state:?}"
        );
    }

    /// Shows that this hold exists in its mode, beside possible others, and returns its count.
    pub(crate) async fn is_in(self) -> u32 {
        let state = state(self.backend, self.name).await;
        let is_this = |holder: &&Holder| {
            holder.owner() == self.hold.owner()
                && discriminant(&holder.mode()) == discriminant(&self.mode)
        };
        let holder = state.holders().iter().find(is_this);
        holder.unwrap_or_else(|| panic!("{:?} should be in: {state:?}", self.hold)).hold_count()
    }
}
