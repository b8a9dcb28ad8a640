//! Findings of an audit of the core's driver. Each test is named after the fixed behaviour.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use lockcore::{
    BackendError, Clock, LockError, LockGuard, Locks, LossReason, Mode, MultiLock, Owner,
    WaitOutcome,
    backend::{AcquireOutcome, AcquireRequest, Wakeup, Wakeups, async_trait},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    clients::{SECOND, assert_all_free},
    hooked::{Hooked, Hooks},
};

const MS: Duration = Duration::from_millis(1);

/// How long the core waits for a future that is kept but not polled.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time limit for cleaning up after a timeout.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

const SLACK: Duration = Duration::from_millis(100);

/// A store, and a client with faults.
fn faulty() -> (MemoryBackend, Faults, Locks) {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    (store, backend.faults(), Locks::new(backend))
}

async fn took<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}

/// A clock whose host can be suspended for some seconds.
fn clock_with_suspension() -> (Clock, Arc<AtomicU64>) {
    let asleep = Arc::new(AtomicU64::new(0));
    let read = asleep.clone();
    (Clock::with_suspension(move || Duration::from_secs(read.load(Ordering::SeqCst))), asleep)
}

/// Runs `test` on its own thread, and fails if it does not end: a test that blocks its thread
/// cannot be stopped from within.
fn must_end(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    ended.recv_timeout(10 * SECOND).expect("it neither blocks its thread nor panics");
}

/// Runs `future` on a runtime of this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Some oddities of a backend.
#[derive(Debug, Default)]
struct Peculiar {
    /// A client that is abandoned while a reader is refused.
    abandons: OnceLock<Locks>,
    /// The number of the next releases and subscriptions that panic.
    panics: AtomicU64,
}

impl Peculiar {
    /// A backend with oddities, and the store inside it.
    fn backend() -> (MemoryBackend, Arc<Self>, Hooked<Self>) {
        let (store, peculiar) = (MemoryBackend::new(), Arc::<Self>::default());
        let backend = Hooked::new(store.clone(), peculiar.clone());
        (store, peculiar, backend)
    }

    async fn panic_if_due(&self) {
        tokio::task::yield_now().await;
        let due = |left: u64| left.checked_sub(1);
        let is_due = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, due).is_ok();
        assert!(!is_due, "a panic on purpose");
    }
}

/// Wake-ups that never come: those of a fair waiter whose turn never comes.
#[derive(Debug)]
struct Silence;

#[async_trait]
impl Wakeups for Silence {
    async fn woken(&mut self) -> Wakeup {
        std::future::pending().await
    }
}

/// Wake-ups that are always ready.
#[derive(Debug)]
struct Chatter;

#[async_trait]
impl Wakeups for Chatter {
    async fn woken(&mut self) -> Wakeup {
        Wakeup::Changed
    }
}

#[async_trait]
impl Hooks for Peculiar {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let locks = self.abandons.get().filter(|_| request.mode == Mode::Read)?;
        locks.abandon();
        Some(Ok(AcquireOutcome::Held { remaining: None }))
    }

    async fn release(&self) {
        self.panic_if_due().await;
    }

    async fn subscribe(&self, mode: Option<Mode>) -> Option<Box<dyn Wakeups>> {
        let Some(mode) = mode else { return Some(Box::new(Chatter)) };
        self.panic_if_due().await;
        match mode {
            Mode::Fair => Some(Box::new(Silence)),
            _ => None,
        }
    }
}

// ---- waiting

/// A fair waiter that left passed its subscription, which only reports its own turn, to the other
/// waiters.
#[tokio::test(start_paused = true)]
async fn a_fair_waiter_that_leaves_keeps_its_subscription_to_itself() {
    let (store, _, backend) = Peculiar::backend();
    let backend = Faulty::new(backend);
    let faults = backend.faults();
    let locks = Locks::new(backend);
    let held = Locks::new(store.clone()).lock("a").acquire().await.unwrap();
    let fair = locks.fair_lock("a");
    let fair = tokio::spawn(async move { fair.acquire().await });
    sleep(SLACK).await;
    faults.next(Op::Acquire, Fault::DelayReply(SLACK));
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(SLACK / 2).await;
    fair.abort();
    sleep(SECOND).await;
    held.release().await.unwrap();
    let (guard, waited) = took(waiting).await;
    assert!(guard.unwrap().is_ok());
    assert!(waited < SLACK, "entered after {waited:?}");
    sleep(SLACK).await;
    assert_all_free(&store).await;
}

/// Two tasks of `locks`: the first has a hold that may be handed over, and the second, an
/// acquisition of `second`, sleeps until then.
async fn holder_and_heir(
    locks: &Locks,
    second: impl Future<Output = Result<LockGuard, LockError>> + Send + 'static,
) -> (LockGuard, JoinHandle<Result<LockGuard, LockError>>) {
    let before = locks.lock("a").acquire().await.unwrap();
    let first = tokio::spawn(locks.lock("a").acquire());
    sleep(MS).await;
    let second = tokio::spawn(second);
    sleep(MS).await;
    before.release().await.unwrap();
    (first.await.unwrap().unwrap(), second)
}

/// The next task slept until the hold was handed over to it, and learned nothing of a release that
/// was started instead and then never polled.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_only_kept_keeps_an_heir_for_five_seconds_at_most() {
    for fixed in [false, true] {
        let (_, faults, locks) = faulty();
        let lock = if fixed { locks.lock("a").lease(SECOND) } else { locks.lock("a") };
        let (guard, heir) = holder_and_heir(&locks, lock.acquire()).await;
        if !fixed {
            // So that it cannot be handed over.
            let longer = locks.lock("a").owned_by(guard.owner()).lease(60 * SECOND);
            drop(longer.acquire().await.unwrap());
            sleep(MS).await;
        }
        faults.next(Op::Release, Fault::DelayReply(SLACK));
        let mut kept = pin!(guard.release());
        assert!(poll_times(1, kept.as_mut()).await.is_none(), "it waits for the reply");
        let (next, waited) = took(timeout(60 * SECOND, heir)).await;
        assert!(next.expect("it enters").unwrap().is_ok());
        assert!(waited <= PATIENCE + SLACK, "entered after {waited:?}");
    }
}

/// The next task kept sleeping, although the extended hold could no longer be handed over: it
/// received no wake-ups from other clients.
#[tokio::test(start_paused = true)]
async fn an_heir_listens_when_the_hold_is_extended() {
    let (store, _, locks) = faulty();
    let (guard, heir) = holder_and_heir(&locks, locks.lock("a").acquire()).await;
    guard.extend(60 * SECOND).await.unwrap();
    sleep(SECOND).await;
    assert!(Locks::new(store).lock("a").force_release().await.unwrap());
    let (next, waited) = took(heir).await;
    assert!(next.unwrap().is_ok());
    assert!(waited < SLACK, "entered after {waited:?}");
}

/// The undo of an unpolled request was still pending when the waiter asked again with the same
/// hold, and revoked the new grant.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_left_alone_asks_again_as_another_hold() {
    for is_fair in [false, true] {
        let (store, faults, locks) = faulty();
        let other = Locks::new(store.clone());
        let held = other.lock("a").acquire().await.unwrap();
        let lock = if is_fair { locks.fair_lock("a") } else { locks.lock("a") };
        faults.next(Op::Acquire, Fault::DelayReply(SECOND));
        let mut waiting = pin!(lock.acquire());
        assert!(poll_times(1, waiting.as_mut()).await.is_none());
        faults.every(Op::Release, Fault::LostRequest);
        // It is undone after six seconds.
        sleep(7 * SECOND).await;
        assert!(faults.calls(Op::Release) > 0);
        held.release().await.unwrap();
        let guard = waiting.await.unwrap();
        faults.heal();
        sleep(3 * SECOND).await;
        assert!(guard.is_held());
        assert!(other.lock("a").state().await.unwrap().is_held(), "fair: {is_fair}");
    }
}

/// A second request of the same owner waited forever for the first one, which was not polled.
#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_looks_at_keeps_its_own_owner_for_six_seconds_at_most() {
    let (_, faults, locks) = faulty();
    let lock = locks.fair_lock("a").owned_by(&Owner::new());
    faults.next(Op::Acquire, Fault::NeverAnswer);
    let mut kept = pin!(lock.acquire());
    assert!(poll_times(1, kept.as_mut()).await.is_none());
    let (next, waited) = took(timeout(60 * SECOND, lock.acquire())).await;
    assert!(next.expect("it enters").is_ok());
    assert!(waited <= 7 * SECOND, "entered after {waited:?}");
}

/// The undo of a fair waiter's last request was abandoned when the lease of its first request would
/// have ended.
#[tokio::test(start_paused = true)]
async fn the_last_request_of_a_fair_waiter_is_undone_however_long_it_has_waited() {
    let (store, faults, locks) = faulty();
    let held = Locks::new(store.clone()).lock("a").acquire().await.unwrap();
    let fair = locks.fair_lock("a");
    let waiting = tokio::spawn(async move { fair.acquire().await });
    sleep(60 * SECOND).await;
    faults.every(Op::Acquire, Fault::NeverReply);
    held.release().await.unwrap();
    sleep(SLACK).await;
    faults.next(Op::Release, Fault::LostRequest);
    waiting.abort();
    sleep(3 * SECOND).await;
    assert_all_free(&store).await;
}

/// A reader beside its own write hold kept asking after the client was closed.
#[test]
fn a_reader_beside_its_write_hold_asks_no_more_when_its_client_is_closed() {
    must_end(|| {
        block_on(async {
            let (_, peculiar, backend) = Peculiar::backend();
            let locks = Locks::new(backend);
            let (lock, owner) = (locks.rw_lock("a"), Owner::new());
            let _write = lock.write().owned_by(&owner).acquire().await.unwrap();
            peculiar.abandons.set(locks).unwrap();
            let read = lock.read().owned_by(&owner).acquire().await;
            assert!(matches!(read, Err(LockError::Closed { .. })), "{read:?}");
        });
    });
}

/// A panicking subscription was passed on to the next head, which panicked as well, and so on.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_subscription_is_the_panic_of_one_waiter() {
    let (store, peculiar, backend) = Peculiar::backend();
    let locks = Locks::new(backend);
    let held = Locks::new(store).lock("a").acquire().await.unwrap();
    peculiar.panics.store(1, Ordering::SeqCst);
    let waiting = [(); 3].map(|()| tokio::spawn(locks.lock("a").acquire()));
    sleep(SECOND).await;
    held.release().await.unwrap();
    let [first, second, third] = waiting;
    assert!(first.await.unwrap_err().is_panic());
    assert!(second.await.unwrap().is_ok());
    assert!(third.await.unwrap().is_ok());
}

// ---- ends of holds

/// A loss that nobody had asked about was forgotten with the guard: a watcher created before the
/// drop and polled after it learned nothing.
#[tokio::test(start_paused = true)]
async fn a_loss_is_told_to_who_asked_before_the_guard_was_dropped() {
    let locks = Locks::new(MemoryBackend::new());
    let ended = locks.lock("a").lease(SLACK).acquire().await.unwrap();
    let closed = locks.lock("b").acquire().await.unwrap();
    sleep(SECOND).await;
    locks.close().await.unwrap();
    for (guard, reason) in [(ended, LossReason::LeaseEnded), (closed, LossReason::Closed)] {
        let (lost, end) = (guard.lost(), guard.ended());
        drop(guard);
        assert_eq!(timeout(SECOND, lost).await.expect("it is told"), reason);
        assert_eq!(end.await.expect("it was lost"), reason);
    }
}

/// A loss noticed only by the release itself was reported to watchers as a release.
#[tokio::test(start_paused = true)]
async fn a_loss_that_the_last_guard_notices_is_told_to_who_watches() {
    let (clock, asleep) = clock_with_suspension();
    let locks = Locks::builder(MemoryBackend::new()).clock(clock).build().unwrap();
    let guard = locks.lock("laptop").acquire().await.unwrap();
    let (lost, ended) = (tokio::spawn(guard.lost()), tokio::spawn(guard.ended()));
    tokio::task::yield_now().await;
    asleep.store(3600, Ordering::SeqCst);
    let released = guard.release().await;
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    let lost = timeout(SECOND, lost).await.expect("it is told").unwrap();
    assert_eq!(lost, LossReason::LeaseEnded);
    assert!(ended.await.unwrap().is_some());
}

/// `close()` ignored an acquisition that had timed out and was still cleaning up.
#[tokio::test(start_paused = true)]
async fn close_waits_for_a_time_out_that_is_leaving() {
    let (store, faults, locks) = faulty();
    faults.next(Op::Acquire, Fault::NeverReply);
    faults.every(Op::Release, Fault::Delay(SLACK));
    let acquire = tokio::spawn(locks.lock("a").acquire_timeout(50 * MS));
    sleep(60 * MS).await;
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "the hold is left behind");
    assert!(acquire.await.unwrap().is_err());
}

/// The release of a dropped guard was forgotten when the backend panicked.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_again_after_a_panic() {
    let (store, peculiar, backend) = Peculiar::backend();
    let locks = Locks::new(backend);
    let guard = locks.lock("a").acquire().await.unwrap();
    peculiar.panics.store(2, Ordering::SeqCst);
    drop(guard);
    sleep(SECOND).await;
    assert_all_free(&store).await;
}

/// Once the runtime that had renewed the hold was gone, nobody renewed it for a nested guard on
/// another runtime.
#[test]
fn a_nested_guard_is_renewed_on_the_runtime_that_is_left() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let (locks, owner) = (Locks::new(MemoryBackend::new()), Owner::new());
    let lock = locks.lock("a").owned_by(&owner);
    let other = runtime();
    let _outer = runtime().block_on(lock.acquire()).unwrap();
    other.block_on(async {
        let nested = lock.acquire().await.unwrap();
        sleep(60 * SECOND).await;
        assert!(nested.is_held());
    });
}

// ---- several locks

/// The timeout applied neither to the attempts nor to returning the acquired locks.
#[tokio::test(start_paused = true)]
async fn a_time_out_of_several_locks_ends_although_the_backend_is_silent() {
    for well in 0..3 {
        let (store, faults, locks) = faulty();
        (0..well).for_each(|_| faults.next_goes_well(Op::Acquire));
        faults.every(Op::Acquire, Fault::NeverReply);
        faults.every(Op::Release, Fault::NeverAnswer);
        let all = locks.multi_lock(["a", "b", "c"]);
        let (acquired, waited) = took(all.acquire_timeout(200 * MS)).await;
        assert!(acquired.is_err());
        assert!(waited <= 200 * MS + LEAVE_WITHIN + SLACK, "{well}: answered after {waited:?}");
        faults.heal();
        sleep(12 * SECOND).await;
        assert_all_free(&store).await;
    }
}

/// A lock that was lost while the others were tried was returned as held.
#[tokio::test(start_paused = true)]
async fn an_attempt_at_several_locks_has_all_of_them_or_none() {
    let (store, faults, locks) = faulty();
    let all = MultiLock::of([locks.lock("a").lease(SLACK), locks.lock("b")]);
    faults.next_goes_well(Op::Acquire);
    faults.next(Op::Acquire, Fault::Delay(2 * SLACK));
    let tried = all.try_acquire().await.unwrap();
    assert!(tried.is_none_or(|guard| guard.is_held()), "one is lost");
    assert_all_free(&store).await;
}

// ---- conditions

/// A notification that came at the last moment was lost if the wait was dropped before it learned
/// of the notification.
#[tokio::test(start_paused = true)]
async fn a_time_out_that_is_dropped_passes_a_notification_of_the_last_moment_on() {
    let (store, faults, locks) = faulty();
    let other = Locks::new(store.clone());
    let (lock, notifier) = (locks.lock("a"), other.lock("a"));
    faults.every(Op::Woken, Fault::LostRequest);
    faults.next(Op::Leave, Fault::Delay(10 * MS));
    let guard = lock.acquire().await.unwrap();
    let start = Instant::now();
    let mut first = Box::pin(lock.condition("c").wait_timeout(guard, SLACK));
    assert!(timeout(10 * MS, &mut first).await.is_err());
    let guard = notifier.acquire().await.unwrap();
    let second = tokio::spawn(notifier.condition("c").wait_timeout(guard, 60 * SECOND));
    sleep(10 * MS).await;
    let guard = notifier.acquire().await.unwrap();
    assert!(notifier.condition("c").notify_one(&guard).await.unwrap());
    drop(guard);
    // It is leaving by then.
    assert!(timeout_at(start + SLACK + 5 * MS, &mut first).await.is_err());
    // Now it has left, and was told that it had been notified.
    sleep(SLACK).await;
    drop(first);
    let (woken, waited) = took(second).await;
    let (guard, outcome) = woken.unwrap().unwrap();
    assert_eq!(outcome, WaitOutcome::Notified);
    assert!(waited < SECOND, "notified after {waited:?}");
    drop(guard);
    assert_all_free(&store).await;
}

/// A condition whose wake-ups are always ready blocked its thread, so that no timeout fired.
#[test]
fn a_wait_whose_wake_ups_are_always_ready_lets_others_run() {
    must_end(|| {
        block_on(async {
            let lock = Locks::new(Peculiar::backend().2).lock("a");
            let guard = lock.acquire().await.unwrap();
            let waited = lock.condition("c").wait_timeout(guard, SLACK).await;
            assert_eq!(waited.unwrap().1, WaitOutcome::TimedOut);
        });
    });
}

// ---- wakers, which may do anything

/// A waker that owns a value, and drops it when it is woken or dropped.
struct Holding<T>(Mutex<Option<T>>);

impl<T> Holding<T> {
    fn new(held: Option<T>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(held)))
    }
}

impl<T: Send + 'static> Wake for Holding<T> {
    fn wake(self: Arc<Self>) {
        let held = self.0.lock().unwrap().take();
        drop(held);
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// An acquisition of a lock that is not free, polled with `waker`.
fn waiting(locks: &Locks, waker: &Waker) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(locks.lock("a").acquire());
    assert!(acquiring.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    acquiring
}

/// Wakers were dropped while the lane was locked, and an executor may drop a task with its last
/// waker: if that task had another acquisition of the same name, this deadlocked.
#[test]
fn a_waker_may_be_the_last_to_hold_another_acquisition() {
    must_end(|| {
        block_on(async {
            let store = MemoryBackend::new();
            let locks = Locks::new(store.clone());
            let _held = Locks::new(store).lock("a").acquire().await.unwrap();
            // It is the head, or behind the head; its waker is replaced, or dropped with it.
            for (is_head, is_replaced) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let head = (!is_head).then(|| waiting(&locks, Waker::noop()));
                let other = waiting(&locks, Waker::noop());
                let mut one: Acquiring = Box::pin(locks.lock("a").acquire());
                let waker = Waker::from(Holding::new(Some(other)));
                assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                drop(waker);
                if is_replaced {
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(one.as_mut().poll(&mut context).is_pending());
                }
                drop((one, head));
            }
        });
    });
}

/// A release that could not be sent was dropped while the channel to the background task was
/// locked: a task woken by that drop deadlocked if it dropped a guard.
#[test]
fn a_waker_may_drop_a_guard_when_the_runtime_is_gone() {
    must_end(|| {
        let locks = Locks::new(MemoryBackend::new());
        let holding = Holding::new(None);
        let (guard, other, waiting) = block_on(async {
            let guard = locks.lock("a").acquire().await.unwrap();
            let other = locks.lock("b").acquire().await.unwrap();
            (guard, other, waiting(&locks, &holding.clone().into()))
        });
        // Not before, because the end of the runtime wakes as well.
        *holding.0.lock().unwrap() = Some(other);
        drop(guard);
        drop(waiting);
    });
}
