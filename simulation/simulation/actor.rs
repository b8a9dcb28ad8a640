//! [`Actor`]: a task that carries out its part of the plan, and checks the answers.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use lockcore::{
    Lock, LockError, LockGuard, Locks, LossReason, MultiGuard, MultiLock, Owner, WaitOutcome,
};
use lockcore_testkit::poll_times;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    beliefs::{Believed, BelievedAll},
    noise::now_or_never,
    plan::{How, Leave, Member, PlannedHold, PlannedStep, TaskPlan, Whose},
    world::World,
};

/// The time limit for reporting a loss.
const SOON: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) number: usize,
    pub(crate) client: usize,
    pub(crate) locks: Locks,
    pub(crate) world: Arc<World>,
}

type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Actor {
    pub(crate) async fn carry_out(self, plan: TaskPlan) {
        for (idle, step) in plan.steps {
            sleep(idle).await;
            self.note(format_args!("begins {step:?}"));
            self.step(step).await;
        }
        self.note(format_args!("is done"));
    }

    fn note(&self, what: fmt::Arguments<'_>) {
        self.world.trace.event(format_args!("t{} {what}", self.number));
    }

    fn violation(&self, what: fmt::Arguments<'_>) {
        self.world.trace.violation(format!("t{} {what}", self.number));
    }

    async fn step(&self, step: PlannedStep) {
        match step {
            PlannedStep::Hold(hold) => self.hold(hold).await,
            PlannedStep::Multi { members, how, during, leave } => {
                self.multi(members, how, during, leave).await
            }
            PlannedStep::Downgrade { during } => self.downgrade(during).await,
            PlannedStep::SetLatch(count) => {
                self.result("set_count", self.locks.latch("l").set_count(count).await)
            }
            PlannedStep::CountDown => {
                self.world.items.count_down();
                self.result("count_down", self.locks.latch("l").count_down().await);
            }
            PlannedStep::AwaitLatch(patience) => self.await_latch(patience).await,
            PlannedStep::Produce { all } => self.produce(all).await,
            PlannedStep::Consume { patience, polls } => self.consume(patience, polls).await,
            PlannedStep::State(name) => self.result("state", self.locks.lock(name).state().await),
            PlannedStep::Resize(permits) => {
                self.result("resize", self.locks.semaphore("s", permits).resize(permits).await);
            }
        }
    }

    /// Records an answer, and reports an error without a cause as a violation.
    fn result<T: fmt::Debug>(&self, what: &str, result: Result<T, LockError>) {
        match &result {
            Err(error)
                if self.world.facts.healthy && !matches!(error, LockError::AlreadySet { .. }) =>
            {
                self.violation(format_args!("{what} failed without a cause: {error}"));
            }
            _ => self.note(format_args!("{what} -> {}", brief(&result))),
        }
    }

    fn lock(&self, member: Member) -> Lock {
        match member {
            Member::Lock(name) => self.locks.lock(name),
            Member::Fair(name) => self.locks.fair_lock(name),
            Member::Read => self.locks.rw_lock("r").read(),
            Member::Write => self.locks.rw_lock("r").write(),
            Member::Permits(count) => {
                self.locks.semaphore("s", self.world.facts.permits).permits(count)
            }
        }
    }

    fn hold(&self, hold: PlannedHold) -> Boxed<'_> {
        Box::pin(async move {
            let mut lock = self.lock(hold.lock);
            if let Whose::Named(number) = hold.whose {
                lock = lock.owned_by(&Owner::named(format!("job-{number}")));
            }
            if let Some(lease) = hold.lease {
                lock = lock.lease(lease);
            }
            let past = self.world.beliefs.past(hold.lock.name());
            if let How::Run = hold.how {
                return self.run(lock, &hold, past).await;
            }
            if let Some(guard) = self.acquire(&lock, &hold).await {
                let owner = guard.owner().clone();
                let believed = self.enter(guard, past);
                owner.scope(self.inside(&hold, &believed)).await;
                self.leave(believed, hold.leave).await;
            }
        })
    }

    async fn acquire(&self, lock: &Lock, hold: &PlannedHold) -> Option<LockGuard> {
        let start = Instant::now();
        let waiting = self.world.waits.begin(hold.lock.name(), self.client);
        let acquired = match hold.how {
            How::Try => lock.try_acquire().await,
            How::Timeout(patience) => lock.acquire_timeout(patience).await.map(Some),
            How::Polls(polls) => poll_times(polls, lock.acquire()).await.transpose(),
            How::Until(patience) => timeout(patience, lock.acquire()).await.ok().transpose(),
            How::Acquire | How::Run => lock.acquire().await.map(Some),
        };
        drop(waiting);
        self.check_closed("an acquisition", start, &acquired);
        self.check_answer(hold, &acquired, start);
        acquired.ok().flatten()
    }

    fn check_answer(
        &self,
        hold: &PlannedHold,
        acquired: &Result<Option<LockGuard>, LockError>,
        start: Instant,
    ) {
        let answer = acquired.as_ref().map(|guard| guard.as_ref().map(LockGuard::token));
        self.note(format_args!("{:?} {:?} -> {}", hold.how, hold.lock, brief(&answer)));
        let may_fail = match acquired {
            Ok(_) => true,
            Err(LockError::Timeout { .. }) => matches!(hold.how, How::Timeout(_)),
            Err(LockError::Upgrade { .. }) => hold.lock == Member::Write,
            Err(LockError::Lost { .. }) => !self.world.is_undisturbed() || hold.lease.is_some(),
            Err(_) => !self.world.facts.healthy,
        };
        if !may_fail && let Err(error) = acquired {
            // A nested acquisition of a hold whose lease has ended gets this error.
            let is_lost = matches!(error, LockError::Lost { .. });
            if !(is_lost && Owner::current().is_some()) {
                self.violation(format_args!(
                    "{:?} of {:?} failed without a cause: {error}",
                    hold.how, hold.lock
                ));
            }
        }
        let patience = match hold.how {
            How::Timeout(patience) | How::Until(patience) => patience,
            How::Try => Duration::ZERO,
            _ => return,
        };
        let took = start.elapsed();
        if self.world.facts.healthy && took > patience + self.world.latency() {
            self.violation(format_args!("{:?} of {:?} took {took:?}", hold.how, hold.lock));
        }
    }

    fn enter(&self, guard: LockGuard, past: u64) -> Believed {
        self.world.beliefs.enter(self.client, guard, past)
    }

    /// Waiters are told at once that the client is closed, and so are later callers.
    fn check_closed<T>(&self, what: &str, start: Instant, answer: &Result<T, LockError>) {
        let Some(closed) = self.world.closed_at(self.client) else { return };
        let was_told = matches!(answer, Err(LockError::Closed { .. }));
        let is_late = closed < start || self.world.facts.is_prompt && closed.elapsed() > SOON;
        // A call that is refused before it does anything is not answered by the client.
        let is_refused = matches!(answer, Err(LockError::Upgrade { .. } | LockError::Lost { .. }));
        if is_late && !was_told && !is_refused {
            self.violation(format_args!(
                "{what} went on for {:?} after its client was closed",
                closed.elapsed()
            ));
        }
    }

    /// Holds the lock, and carries out the steps inside.
    async fn inside(&self, hold: &PlannedHold, believed: &Believed) {
        self.check_count(believed);
        for _ in 0..hold.turns {
            tokio::task::yield_now().await;
        }
        self.keep(believed, hold.during / 2).await;
        for inner in &hold.inner {
            if inner.lock.name() != "z" {
                self.hold(inner.clone()).await;
                self.check_count(believed);
            }
        }
        self.keep(believed, hold.during / 2).await;
    }

    /// A watcher since `start` is told of a loss at once.
    fn check_told(&self, believed: &Believed, start: Instant) {
        let lost_for = believed.lost_for().min(start.elapsed());
        if self.world.facts.is_prompt && lost_for > SOON {
            self.violation(format_args!("nobody was told for {lost_for:?} of a loss"));
        }
    }

    /// Checks that there are as many guards as were given out, where nobody else can have some.
    fn check_count(&self, believed: &Believed) {
        let guards = believed.guards();
        let count = believed.look(LockGuard::hold_count) as usize;
        if count < guards || count > guards && self.world.facts.counts_are_exact {
            self.violation(format_args!("a hold with {guards} guards counts {count}"));
        }
    }

    /// Keeps a guard for a while, and checks that a loss is reported.
    async fn keep(&self, believed: &Believed, during: Duration) {
        let start = Instant::now();
        let (lost, left) = believed.look(|guard| (guard.lost(), guard.remaining()));
        match timeout(during, lost).await {
            Ok(reason) => {
                self.note(format_args!("has lost a hold: {reason}"));
                self.check_told(believed, start);
                if believed.look(LockGuard::is_held) {
                    self.violation(format_args!("a hold that was lost ({reason}) is held"));
                }
                if reason == LossReason::Gone && self.world.is_undisturbed() {
                    self.violation(format_args!(
                        "a hold is gone without a cause, with {left:?} left"
                    ));
                }
            }
            Err(_) => {
                let held = believed.look(LockGuard::is_held);
                let lost = believed.look(LockGuard::lost);
                self.check_told(believed, start);
                if !held && now_or_never(lost).await.is_none() {
                    self.violation(format_args!("a hold is lost, which `lost()` does not tell"));
                }
            }
        }
        self.world.beliefs.check();
    }

    async fn leave(&self, believed: Believed, leave: Leave) {
        let guard = believed.leave();
        let in_time = guard.remaining() > self.world.latency();
        match leave {
            Leave::Release => {
                let released = guard.release().await;
                self.note(format_args!("release -> {}", brief(&released)));
                if self.world.is_undisturbed() && in_time && released.is_err() {
                    self.violation(format_args!("a release failed without a cause: {released:?}"));
                }
            }
            Leave::Drop => drop(guard),
            Leave::Polls(polls) => {
                poll_times(polls, guard.release()).await;
            }
            Leave::Elsewhere(later) => {
                tokio::spawn(async move {
                    sleep(later).await;
                    drop(guard);
                });
            }
        }
    }

    async fn run(&self, lock: Lock, hold: &PlannedHold, past: u64) {
        let waiting = self.world.waits.begin(hold.lock.name(), self.client);
        // `run` keeps the guard: the belief is in another one of the same owner.
        let ran = lock.run(async |guard| {
            drop(waiting);
            let again = lock.clone().owned_by(guard.owner()).acquire();
            if matches!(hold.lock, Member::Permits(_)) {
                sleep(hold.during).await;
            } else if let Ok(again) = again.await {
                let believed = self.enter(again, past);
                self.inside(hold, &believed).await;
            }
        });
        let ran = ran.await;
        self.note(format_args!("run -> {}", brief(&ran)));
        let may_fail = match &ran {
            Err(LockError::Lost { .. }) => {
                hold.lease.is_some() || !self.world.is_undisturbed() || Owner::current().is_some()
            }
            Err(LockError::Upgrade { .. }) => hold.lock == Member::Write,
            Err(_) => false,
            Ok(()) => true,
        };
        if self.world.facts.healthy && !may_fail {
            self.violation(format_args!("run failed without a cause: {ran:?}"));
        }
    }

    async fn multi(&self, members: Vec<Member>, how: How, during: Duration, leave: Leave) {
        let lock = MultiLock::of(members.iter().map(|member| self.lock(*member)));
        let start = Instant::now();
        let guard = match how {
            How::Try => lock.try_acquire().await,
            How::Timeout(patience) => lock.acquire_timeout(patience).await.map(Some),
            How::Polls(polls) => poll_times(polls, lock.acquire()).await.transpose(),
            How::Until(patience) => timeout(patience, lock.acquire()).await.ok().transpose(),
            How::Acquire | How::Run => lock.acquire().await.map(Some),
        };
        // It takes more than one poll to learn that.
        if !matches!(how, How::Polls(_)) {
            self.check_closed("an acquisition of several", start, &guard);
        }
        match guard {
            Ok(Some(guard)) => {
                self.note(format_args!("{how:?} {members:?} -> all"));
                if guard.tokens().count() != members.len() {
                    self.violation(format_args!("{members:?} are held as {guard:?}"));
                }
                let believed = self.world.beliefs.enter_all(self.client, guard);
                self.keep_all(&believed, during).await;
                let guard = believed.leave();
                if matches!(leave, Leave::Release) {
                    let in_time = guard.remaining() > self.world.latency();
                    let tokens: Vec<_> =
                        guard.tokens().map(|(name, token)| (name.to_owned(), token)).collect();
                    let released = guard.release().await;
                    self.note(format_args!("release of all -> {}", brief(&released)));
                    if self.world.is_undisturbed() && in_time {
                        if released.is_err() {
                            self.violation(format_args!(
                                "a multi-lock was not released: {released:?}"
                            ));
                        }
                        let stored = |(name, token): &&(String, _)| {
                            self.world.truth.has_grant(name, u64::from(*token))
                        };
                        if let Some((name, _)) = tokens.iter().find(stored) {
                            self.violation(format_args!("{name} of a multi-lock was not released"));
                        }
                    }
                }
            }
            Ok(None) => self.note(format_args!("{how:?} {members:?} -> none")),
            Err(LockError::Timeout { .. }) if matches!(how, How::Timeout(_)) => {}
            Err(error) if self.world.facts.healthy => {
                self.violation(format_args!(
                    "{how:?} of {members:?} failed without a cause: {error}"
                ));
            }
            Err(error) => self.note(format_args!("{how:?} {members:?} -> {error}")),
        }
    }

    /// Keeps several holds for a while, and checks that the loss of one is reported.
    async fn keep_all(&self, believed: &BelievedAll, during: Duration) {
        let told = timeout(during, believed.look(MultiGuard::lost)).await;
        let (held, lost) = believed.look(|guard| (guard.is_held(), guard.lost()));
        match told {
            Ok(error) if held => {
                self.violation(format_args!("holds of which one was lost ({error}) are held"))
            }
            Ok(error) => self.note(format_args!("has lost one of several: {error}")),
            Err(_) if !held && now_or_never(lost).await.is_none() => {
                self.violation(format_args!(
                    "one of several holds is lost, which `lost()` does not tell"
                ));
            }
            Err(_) => {}
        }
        self.world.beliefs.check();
    }

    /// A writer that continues as a reader, with no other writer in between.
    async fn downgrade(&self, during: Duration) {
        let owner = Owner::new();
        let [read, write] =
            [Member::Read, Member::Write].map(|side| self.lock(side).owned_by(&owner));
        let past = self.world.beliefs.past("r");
        let Ok(writing) = write.acquire().await else { return };
        let writing = self.enter(writing, past);
        self.keep(&writing, during / 2).await;
        let read = read.acquire().await;
        self.note(format_args!("downgrade -> {}", brief(&read.as_ref().map(LockGuard::token))));
        match read {
            Ok(reading) => {
                let reading = self.enter(reading, past);
                self.leave(writing, Leave::Release).await;
                self.keep(&reading, during / 2).await;
                self.leave(reading, Leave::Release).await;
            }
            Err(error) => {
                if self.world.facts.healthy {
                    self.violation(format_args!("a writer could not read: {error}"));
                }
                self.leave(writing, Leave::Drop).await;
            }
        }
    }

    async fn await_latch(&self, patience: Duration) {
        let start = Instant::now();
        let waited = self.locks.latch("l").wait_timeout(patience).await;
        self.note(format_args!("latch -> {}", brief(&waited)));
        let open_for = self.world.truth.latch_open_for(start);
        self.check_closed("a wait for a latch", start, &waited);
        match waited {
            Ok(()) => {
                if self.world.truth.latch_closed_since(start) {
                    self.violation(format_args!("somebody has passed a latch that was never open"));
                }
            }
            Err(LockError::LatchTimeout { .. }) => {
                if self.world.is_calm_since(start) && open_for > self.world.latency() {
                    self.violation(format_args!(
                        "nobody was woken at a latch that is open for {open_for:?}"
                    ));
                }
            }
            Err(error) => self.result::<()>("latch", Err(error)),
        }
    }

    /// Produces one item, and notifies. A failure is repaired.
    async fn produce(&self, all: bool) {
        let lock = self.locks.lock("c");
        let filled = lock.condition("filled");
        let mut owed = true;
        loop {
            if let Ok(guard) = lock.acquire().await {
                if std::mem::take(&mut owed) {
                    self.world.items.put();
                }
                let notified = if all {
                    filled.notify_all(&guard).await
                } else {
                    filled.notify_one(&guard).await.map(u32::from)
                };
                self.note(format_args!("notify -> {}", brief(&notified)));
                self.result("notify", notified.as_ref().map(|_| ()).map_err(LockError::clone));
                drop(guard);
                if notified.is_ok() {
                    return;
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Takes one item, and waits for it with a condition. A failed or dropped attempt is repeated.
    async fn consume(&self, patience: Option<Duration>, mut polls: Option<usize>) {
        loop {
            let attempt = self.consume_once(patience);
            let (taken, away) = match polls.take() {
                // A cancelled consumer is away for longer than others may wait for the item that it
                // was notified of.
                Some(polls) => (poll_times(polls, attempt).await.unwrap_or(false), 2000),
                None => (attempt.await, 20),
            };
            if taken {
                return;
            }
            sleep(Duration::from_millis(away)).await;
        }
    }

    async fn consume_once(&self, patience: Option<Duration>) -> bool {
        let lock = self.locks.lock("c");
        let filled = lock.condition("filled");
        let Ok(mut guard) = lock.acquire().await else { return false };
        while !self.world.items.take() {
            self.note(format_args!("waits for an item"));
            let waiting = self.world.items.wait();
            let waited = match patience {
                None => filled.wait(guard).await.map(|guard| (guard, WaitOutcome::Notified)),
                Some(patience) => filled.wait_timeout(guard, patience).await,
            };
            drop(waiting);
            self.note(format_args!(
                "wait -> {}",
                brief(&waited.as_ref().map(|(guard, _)| guard.token()))
            ));
            if waited.as_ref().is_ok_and(|(_, outcome)| *outcome == WaitOutcome::Notified)
                && self.world.items.notified() > self.world.truth.notified()
                && self.world.facts.notifications_are_exact
            {
                self.violation(format_args!("more waits have ended than were notified"));
            }
            match waited {
                Ok((again, _)) => guard = again,
                Err(error) => {
                    self.result::<()>("wait", Err(error.into()));
                    return false;
                }
            }
        }
        self.note(format_args!("has taken an item"));
        drop(guard);
        true
    }
}

/// An answer for the trace, with the text of errors.
fn brief<T: fmt::Debug, E: fmt::Display>(result: &Result<T, E>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    }
}
