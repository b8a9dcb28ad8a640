//! [`Faulty`]: a backend that fails on demand.

mod directory;
mod signals;

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, Conditions, Directory, Latches,
        Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeup, Wakeups, async_trait,
    },
};
use tokio::sync::watch;

/// A backend with faults that a test chooses, call by call. Without faults it behaves like the
/// backend inside.
///
/// The faults are set through its [`Faults`], which all its clones share. Every call is counted, so
/// that a test can also show that a call is not made.
///
/// # Examples
/// ```
/// use lockcore::{BackendErrorKind, Locks};
/// use lockcore_memory::MemoryBackend;
/// use lockcore_testkit::{Fault, Faulty, Op};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockcore::LockError> {
/// let backend = Faulty::new(MemoryBackend::new());
/// let faults = backend.faults();
/// let locks = Locks::new(backend);
///
/// faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Auth));
/// assert!(locks.lock("a").acquire().await.is_err());
///
/// let guard = locks.lock("a").acquire().await?;
/// assert_eq!(faults.calls(Op::Acquire), 2);
/// # drop(guard); Ok(()) }
/// ```
#[derive(Debug)]
pub struct Faulty<B> {
    backend: Arc<B>,
    faults: Faults,
}

/// The calls that can have faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// [`Backend::acquire`].
    Acquire,
    /// [`Backend::renew`].
    Renew,
    /// [`Backend::release`].
    Release,
    /// [`Backend::force_release`].
    ForceRelease,
    /// [`Backend::inspect`].
    Inspect,
    /// [`Backend::subscribe`], and the subscriptions of latches and conditions.
    Subscribe,
    /// [`Backend::resize`].
    Resize,
    /// [`Backend::raise_token`].
    RaiseToken,
    /// [`Latches::set_count`].
    SetCount,
    /// [`Latches::count_down`].
    CountDown,
    /// [`Latches::count`].
    Count,
    /// [`Latches::open`].
    Open,
    /// [`Conditions::join`].
    Join,
    /// [`Conditions::stay`].
    Stay,
    /// [`Conditions::leave`].
    Leave,
    /// [`Conditions::notify`].
    Notify,
    /// [`Directory::names`].
    Names,
    /// [`Directory::put_client`].
    PutClient,
    /// [`Directory::remove_client`].
    RemoveClient,
    /// [`Directory::clients`].
    Clients,
    /// [`Directory::storage`].
    Storage,
    /// [`Wakeups::woken`]. It is counted, and takes its fault, when a wake-up arrives: see
    /// [`Fault`].
    Woken,
}

/// The fault of one call.
///
/// At a wake-up, [`Delay`](Self::Delay) and [`DelayReply`](Self::DelayReply) delay it, and every
/// other fault loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An error of this kind that is known to have had no effect.
    Refuse(BackendErrorKind),
    /// The request is lost on its way: no effect, and a timeout that leaves the outcome unknown.
    LostRequest,
    /// The request is carried out and the reply lost: an effect, and a timeout that leaves the
    /// outcome unknown.
    LostReply,
    /// The request arrives late.
    Delay(Duration),
    /// The request is carried out at once and the reply comes late.
    DelayReply(Duration),
    /// The request is lost, and never answered.
    NeverAnswer,
    /// The request is carried out, and never answered.
    NeverReply,
    /// The request arrives long after its client has stopped waiting: a timeout at once, and the
    /// effect after this time, whatever has happened since.
    Straggles(Duration),
}

/// The faults and the calls of a [`Faulty`]. Clones share them.
#[derive(Clone, Debug)]
pub struct Faults {
    script: Arc<Mutex<Script>>,
    /// Counts interruptions, and says whether the subscriptions are interrupted now.
    line: Arc<watch::Sender<Line>>,
    /// Notifies [`reached`](Self::reached) and [`ended`](Self::ended) of every call and every end.
    changed: Arc<watch::Sender<()>>,
}

#[derive(Debug, Default)]
struct Script {
    /// `None` is a call without a fault.
    next: HashMap<Op, VecDeque<Option<Fault>>>,
    every: HashMap<Op, Fault>,
    calls: HashMap<Op, usize>,
    ended: HashMap<Op, usize>,
}

fn count(counts: &HashMap<Op, usize>, op: Op) -> usize {
    counts.get(&op).copied().unwrap_or(0)
}

/// Counts a call as ended when dropped.
struct EndOnDrop<'a> {
    faults: &'a Faults,
    op: Op,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        *self.faults.script().ended.entry(self.op).or_default() += 1;
        self.faults.changed.send_replace(());
    }
}

/// The connection that delivers wake-ups.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    cut: bool,
    restored: u64,
}

impl<B> Faulty<B> {
    /// Wraps `backend`, without faults at first.
    pub fn new(backend: B) -> Self {
        Self { backend: Arc::new(backend), faults: Faults::new() }
    }

    /// The faults of this backend.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The backend inside.
    #[must_use]
    pub fn inside(&self) -> &B {
        &self.backend
    }

    /// Makes one call, with its next fault if there is one. `effect` calls the backend inside.
    async fn call<T, E>(&self, op: Op, effect: impl FnOnce(Arc<B>) -> E) -> Result<T, BackendError>
    where
        T: Send + 'static,
        E: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let fault = self.faults.due(op);
        let _ended = EndOnDrop { faults: &self.faults, op };
        let effect = effect(self.backend.clone());
        match fault {
            None => effect.await,
            Some(Fault::Refuse(kind)) => {
                Err(BackendError::new(kind, format!("{op:?} was refused on purpose")).not_applied())
            }
            Some(Fault::LostRequest) => Err(no_answer(op)),
            Some(Fault::LostReply) => effect.await.and(Err(no_answer(op))),
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                effect.await
            }
            Some(Fault::DelayReply(time)) => {
                let answer = effect.await;
                tokio::time::sleep(time).await;
                answer
            }
            Some(Fault::NeverAnswer) => pending().await,
            Some(Fault::NeverReply) => {
                effect.await?;
                pending().await
            }
            Some(Fault::Straggles(time)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    effect.await
                });
                Err(no_answer(op))
            }
        }
    }
}

impl<B> Faulty<B> {
    /// Makes `wakeups` arrive over the connection that can be interrupted.
    fn over_the_line(&self, wakeups: Box<dyn Wakeups>) -> Box<dyn Wakeups> {
        let (faults, mut line) = (self.faults.clone(), self.faults.line.subscribe());
        let restored = line.borrow_and_update().restored;
        Box::new(FaultyWakeups { wakeups, faults, line, restored, late: None })
    }
}

impl<B> Clone for Faulty<B> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), faults: self.faults.clone() }
    }
}

/// The error of a call whose outcome is unknown.
fn no_answer(op: Op) -> BackendError {
    BackendError::new(
        BackendErrorKind::Timeout,
        format!("{op:?} was left without an answer on purpose"),
    )
}

impl Faults {
    fn new() -> Self {
        Self {
            script: Arc::default(),
            line: Arc::new(watch::Sender::default()),
            changed: Arc::new(watch::Sender::default()),
        }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault for the next call of `op`. Faults queue up: a second one is for the call after
    /// that.
    pub fn next(&self, op: Op, fault: Fault) {
        self.script().next.entry(op).or_default().push_back(Some(fault));
    }

    /// Adds a success for the next call of `op` that has nothing queued yet.
    pub fn next_goes_well(&self, op: Op) {
        self.script().next.entry(op).or_default().push_back(None);
    }

    /// Makes every call of `op` fail until [`heal`](Self::heal), except those that
    /// [`next`](Self::next) was used for.
    pub fn every(&self, op: Op, fault: Fault) {
        self.script().every.insert(op, fault);
    }

    /// Removes all faults that have not occurred yet. Interrupted subscriptions stay interrupted.
    pub fn heal(&self) {
        let mut script = self.script();
        script.next.clear();
        script.every.clear();
    }

    /// The number of calls of `op` so far, with a fault or without.
    #[must_use]
    pub fn calls(&self, op: Op) -> usize {
        count(&self.script().calls, op)
    }

    /// The number of calls of any kind so far, without wake-ups.
    #[must_use]
    pub fn all_calls(&self) -> usize {
        let script = self.script();
        script.calls.iter().filter(|(op, _)| **op != Op::Woken).map(|(_, calls)| calls).sum()
    }

    /// Completes when there have been at least `calls` calls of `op`.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn reached(&self, op: Op, calls: usize) {
        self.until(|script| count(&script.calls, op) >= calls).await;
    }

    /// Completes when at least `calls` calls of `op` have ended: they were answered, or their
    /// callers dropped them. The effect of a call may come later ([`Fault::Straggles`]) or never.
    /// [`Op::Woken`] has no end.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn ended(&self, op: Op, calls: usize) {
        self.until(|script| count(&script.ended, op) >= calls).await;
    }

    async fn until(&self, condition: impl Fn(&Script) -> bool) {
        let mut changed = self.changed.subscribe();
        // `self` contains the sender, so it cannot be closed.
        let _ = changed.wait_for(|()| condition(&self.script())).await;
    }

    /// Interrupts all current and future subscriptions: no wake-up arrives, and those in the
    /// meantime are lost.
    pub fn interrupt_subscriptions(&self) {
        self.line.send_modify(|line| line.cut = true);
    }

    /// Restores the subscriptions. Each of them is woken, since it may have missed something.
    pub fn restore_subscriptions(&self) {
        self.line.send_modify(|line| {
            line.cut = false;
            line.restored += 1;
        });
    }

    /// Counts a call, and takes its fault.
    fn due(&self, op: Op) -> Option<Fault> {
        let mut script = self.script();
        *script.calls.entry(op).or_default() += 1;
        let scripted = script.next.get_mut(&op).and_then(VecDeque::pop_front);
        let fault = scripted.unwrap_or_else(|| script.every.get(&op).copied());
        drop(script);
        self.changed.send_replace(());
        fault
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a call that is not passed on would have no faults")]
impl<B: Backend> Backend for Faulty<B> {
    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn limits(&self) -> Limits {
        self.backend.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.backend.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        let request = request.clone();
        self.call(Op::Acquire, |backend| async move { backend.acquire(&request).await }).await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let holds = holds.to_vec();
        self.call(Op::Renew, |backend| async move { backend.renew(&holds).await }).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        let request = request.clone();
        self.call(Op::Release, |backend| async move { backend.release(&request).await }).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let name = name.clone();
        self.call(Op::ForceRelease, |backend| async move { backend.force_release(&name).await })
            .await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let name = name.clone();
        self.call(Op::Inspect, |backend| async move { backend.inspect(&name).await }).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let request = request.clone();
        let wakeups = self
            .call(Op::Subscribe, |backend| async move { backend.subscribe(&request).await })
            .await?;
        Ok(self.over_the_line(wakeups))
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        let request = request.clone();
        self.call(Op::Resize, |backend| async move { backend.resize(&request).await }).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        let name = name.clone();
        self.call(Op::RaiseToken, |backend| async move { backend.raise_token(&name, token).await })
            .await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.backend.latches().is_some().then_some(self as &dyn Latches)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        self.backend.conditions().is_some().then_some(self as &dyn Conditions)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.backend.directory().is_some().then_some(self as &dyn Directory)
    }
}

/// Wake-ups that may be late or lost.
#[derive(Debug)]
struct FaultyWakeups {
    wakeups: Box<dyn Wakeups>,
    faults: Faults,
    line: watch::Receiver<Line>,
    /// The last interruption that this subscription has noticed.
    restored: u64,
    /// A delayed wake-up, and when it arrives. Kept here, so that a dropped wait does not lose it.
    late: Option<(tokio::time::Instant, Wakeup)>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a call that is not passed on would have no faults")]
impl Wakeups for FaultyWakeups {
    async fn woken(&mut self) -> Wakeup {
        loop {
            if let Some((late, wakeup)) = self.late {
                tokio::time::sleep_until(late).await;
                self.late = None;
                return wakeup;
            }
            let wakeup = tokio::select! {
                biased;
                () = restored(&mut self.line, self.restored) => {
                    self.restored = self.line.borrow_and_update().restored;
                    return Wakeup::Changed;
                }
                wakeup = self.wakeups.woken() => wakeup,
            };
            if self.line.borrow().cut {
                continue;
            }
            match self.faults.due(Op::Woken) {
                None => return wakeup,
                Some(Fault::Delay(time) | Fault::DelayReply(time)) => {
                    self.late = Some((tokio::time::Instant::now() + time, wakeup));
                }
                Some(_) => {}
            }
        }
    }
}

/// Completes when the connection has been restored after `heard`.
async fn restored(line: &mut watch::Receiver<Line>, heard: u64) {
    if line.wait_for(|line| line.restored > heard).await.is_err() {
        pending().await
    }
}
