//! Findings of a review, and suspicions that it refuted. On the memory backend, with a paused
//! clock.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, BackendErrorKind, Clock, FencingToken, LockError, LockName, LockState, Locks,
    LossReason, Owner,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, Conditions, Directory, Latches,
        Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResizeOutcome,
        ResizeRequest, SubscribeRequest, Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::hooked::{Hooked, Hooks};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How long the core waits for a future that is kept but not polled.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum delay of timers, which tick in milliseconds.
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

// ---- waiting

/// While its subscription failed, a waiter slept through the end of the lease: it only paused
/// before the next attempt to subscribe.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_subscriptions_fail_enters_when_the_lease_ends() {
    let (store, faults, locks) = faulty();
    let _held = Locks::new(store).lock("a").lease(300 * MS).acquire().await.unwrap();
    faults.every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    let (guard, waited) = took(locks.lock("a").acquire()).await;
    assert!(guard.is_ok(), "{guard:?}");
    assert!((300 * MS..300 * MS + SLACK).contains(&waited), "entered after {waited:?}");
}

/// The same with a slow subscription: the end of the lease was not awaited beside it.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_subscription_is_slow_enters_when_the_lease_ends() {
    let (store, faults, locks) = faulty();
    let _held = Locks::new(store).lock("a").lease(300 * MS).acquire().await.unwrap();
    faults.next(Op::Subscribe, Fault::Delay(3 * SECOND));
    let (guard, waited) = took(locks.lock("a").acquire()).await;
    assert!(guard.is_ok(), "{guard:?}");
    assert!((300 * MS..300 * MS + SLACK).contains(&waited), "entered after {waited:?}");
}

/// Each waiter of a name retried the failing backend from scratch when its turn came: the eighth
/// failed after eight times `retry_for`.
#[tokio::test(start_paused = true)]
async fn the_waiters_of_one_name_give_up_a_dead_backend_together() {
    let backend = Faulty::new(MemoryBackend::new());
    backend.faults().every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let locks = Locks::builder(backend).retry_for(300 * MS).build().unwrap();
    let start = Instant::now();
    let mut waiters = JoinSet::new();
    for _ in 0..8 {
        let lock = locks.lock("a");
        waiters.spawn(async move { (lock.acquire().await, start.elapsed()) });
    }
    let failures = waiters.join_all().await;
    for (result, _) in &failures {
        assert!(matches!(result, Err(LockError::Backend(_))), "{result:?}");
    }
    let last = failures.iter().map(|(_, after)| *after).max().unwrap();
    assert!((300 * MS..SECOND).contains(&last), "the last one failed after {last:?}");
}

/// The second of two heads that gave up together dropped the subscription that the first had left
/// to it.
#[tokio::test(start_paused = true)]
async fn heads_that_give_up_together_leave_their_subscription_to_the_next() {
    let (store, faults, locks) = faulty();
    let held = Locks::new(store).lock("a").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let lock = locks.lock("a");
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        sleep(MS).await;
    }
    assert_eq!(faults.calls(Op::Subscribe), 1, "only the head subscribes");
    waiters[0].abort();
    waiters[1].abort();
    sleep(SLACK).await;
    assert_eq!(faults.calls(Op::Subscribe), 1, "the third one subscribed again");
    held.release().await.unwrap();
    let (guard, waited) = took(waiters.pop().unwrap()).await;
    assert!(guard.unwrap().is_ok() && waited < SLACK, "woken after {waited:?}");
}

/// A store where everything is held forever.
#[derive(Debug)]
struct HeldForEver(MemoryBackend);

#[async_trait]
impl Backend for HeldForEver {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.0.intact_for()
    }

    async fn acquire(&self, _: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        Ok(AcquireOutcome::Held { remaining: Some(Duration::MAX) })
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.0.renew(holds).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        self.0.release(request).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.0.force_release(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        self.0.inspect(name).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        Backend::subscribe(&self.0, request).await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        self.0.resize(request).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        self.0.raise_token(name, token).await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.0.latches()
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        self.0.conditions()
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.0.directory()
    }
}

/// The millisecond after the end of the lease was added without an overflow check: a panic.
#[tokio::test(start_paused = true)]
async fn a_lease_without_an_end_in_the_bounds_of_time_is_waited_for_like_any_other() {
    let locks = Locks::new(HeldForEver(MemoryBackend::new()));
    let (result, waited) = took(locks.lock("a").acquire_timeout(SECOND)).await;
    assert!(matches!(result, Err(LockError::Timeout { .. })), "{result:?}");
    assert!((SECOND..SECOND + SLACK).contains(&waited), "gave up after {waited:?}");
}

/// The greatest values of all options. Only the test above failed, but the next overflow would show
/// here.
#[tokio::test(start_paused = true)]
async fn the_greatest_options_work_like_others() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let store = MemoryBackend::new();
    let locks = Locks::builder(store.clone()).lease(YEAR).retry_for(Duration::MAX).build().unwrap();
    let guard = locks.lock("a").acquire_timeout(Duration::MAX).await.unwrap();
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire_timeout(Duration::MAX).await });
    sleep(SLACK).await;
    guard.release().await.unwrap();
    let guard = timeout(SECOND, waiting).await.expect("it is woken").unwrap().unwrap();
    drop(guard);
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "something is left");
}

// ---- giving back

/// A client that forced a lock condemned whatever hold it had when the reply came, even one granted
/// after the force.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_granted_after_a_force_release_survives_its_late_reply() {
    let (store, faults, locks) = faulty();
    let other = Locks::new(store.clone());
    let _stuck = other.lock("a").acquire().await.unwrap();
    faults.next(Op::ForceRelease, Fault::DelayReply(SECOND));
    let operator = tokio::spawn({
        let lock = locks.lock("a");
        async move { lock.force_release().await }
    });
    sleep(MS).await;
    let next = locks.lock("a").acquire_timeout(SECOND / 2).await.unwrap();
    assert!(operator.await.unwrap().unwrap(), "there was a hold to force");
    assert!(next.is_held(), "declared lost");
    assert!(other.lock("a").state().await.unwrap().is_held(), "it is there at the backend");
    drop(next);
    sleep(SLACK).await;
    assert_eq!(store.names_in_use(), 0, "it was not released at the backend");
}

/// `close()` returned before a cancelled acquisition was undone: the runtime ended, and the hold
/// stayed for its lease.
#[tokio::test(start_paused = true)]
async fn close_waits_until_the_acquisitions_that_it_cuts_off_are_undone() {
    let (store, faults, locks) = faulty();
    faults.next(Op::Acquire, Fault::DelayReply(SECOND));
    faults.every(Op::Release, Fault::Delay(20 * MS));
    let lock = locks.lock("a");
    let cut_off = tokio::spawn(async move { lock.acquire().await });
    sleep(MS).await;
    assert_eq!(store.names_in_use(), 1, "granted, but the reply is on its way");
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "the hold is left behind");
    let cut_off = cut_off.await.unwrap();
    assert!(matches!(cut_off, Err(LockError::Closed { .. })), "{cut_off:?}");
}

/// A growth whose reply was lost may have made the lease at the backend longer than this client
/// knew; the release was abandoned when the shorter one was over.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_for_as_long_as_the_backend_may_have_the_hold() {
    let (store, faults, locks) = faulty();
    let lock = locks.lock("a").owned_by(&Owner::new());
    let outer = lock.clone().lease(200 * MS).acquire().await.unwrap();
    faults.next(Op::Acquire, Fault::LostReply);
    let grown = lock.lease(3600 * SECOND).try_acquire().await;
    assert!(matches!(grown, Err(LockError::Backend(_))), "{grown:?}");
    assert_eq!(outer.lost().await, LossReason::LeaseEnded);
    for _ in 0..2 {
        faults.next(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    }
    drop(outer);
    sleep(SECOND).await;
    assert_eq!(store.names_in_use(), 0, "held for an hour, and nobody tries to release it");
}

/// The next acquisition of the client waited forever for a release that was started and then never
/// polled. The wait is now limited.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_begun_and_then_only_kept_keeps_the_next_for_five_seconds_at_most() {
    let (_, faults, locks) = faulty();
    let guard = locks.lock("a").acquire().await.unwrap();
    faults.next(Op::Release, Fault::DelayReply(SLACK));
    let mut kept = pin!(guard.release());
    assert!(poll_times(1, kept.as_mut()).await.is_none(), "it waits for the reply");
    let (next, waited) = took(locks.lock("a").acquire_timeout(10 * SECOND)).await;
    assert!(next.is_ok(), "{next:?}");
    assert!(waited <= PATIENCE + SLACK, "entered after {waited:?}");
}

/// The releases of a client run on the runtime that was used first. While that one exists but is
/// not driven, the client's own acquisitions waited forever for a guard that was dropped elsewhere.
/// The wait is now limited.
#[test]
fn a_background_on_an_idle_runtime_keeps_the_next_for_five_seconds_at_most() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let (idle, busy) = (runtime(), runtime());
    let locks = Locks::new(MemoryBackend::new());
    idle.block_on(async {
        locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    });
    busy.block_on(async {
        drop(locks.lock("a").lease(SECOND / 2).acquire().await.unwrap());
        let (next, waited) = took(locks.lock("a").acquire_timeout(10 * SECOND)).await;
        assert!(next.is_ok(), "although even the lease has ended: {next:?}");
        assert!(waited <= PATIENCE + SLACK, "entered after {waited:?}");
    });
}

// ---- renewing

/// Every job of the background task delays its check for a suspension of the host by another
/// second; a task that awaits this signal must not depend on that.
#[tokio::test(start_paused = true)]
async fn a_busy_client_notices_as_soon_as_an_idle_one_that_its_host_slept() {
    for busy in [false, true] {
        let asleep = Arc::new(AtomicU64::new(0));
        let clock = Clock::with_suspension({
            let asleep = asleep.clone();
            move || Duration::from_secs(asleep.load(Ordering::SeqCst))
        });
        let locks = Locks::builder(MemoryBackend::new()).clock(clock).build().unwrap();
        let guard = locks.lock("laptop").acquire().await.unwrap();
        let mut work = JoinSet::new();
        let other = locks.lock("other");
        if busy {
            work.spawn(async move {
                loop {
                    drop(other.try_acquire().await);
                    sleep(300 * MS).await;
                }
            });
        }
        let lost = tokio::spawn(guard.lost());
        sleep(SECOND / 2).await;
        asleep.store(3600, Ordering::SeqCst);
        let (reason, noticed) = took(timeout(5 * SECOND, lost)).await;
        let reason =
            reason.unwrap_or_else(|_| panic!("busy: {busy}, not noticed within {noticed:?}"));
        assert_eq!(reason.unwrap(), LossReason::LeaseEnded, "busy: {busy}");
        assert!(noticed <= SECOND + SLACK, "busy: {busy}, noticed after {noticed:?}");
    }
}

/// Counts empty renewals.
#[derive(Debug, Default)]
struct CountsEmpty {
    empty: AtomicU64,
}

impl Hooks for CountsEmpty {
    fn renew(&self, holds: &[RenewRequest]) {
        if holds.is_empty() {
            self.empty.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A guard that was dropped between the order to renew it and its first poll left an empty renewal,
/// which was sent.
#[tokio::test(start_paused = true)]
async fn a_guard_that_goes_when_its_renewal_is_due_leaves_no_empty_renewal() {
    let counts = Arc::<CountsEmpty>::default();
    let backend = Hooked::new(MemoryBackend::new(), counts.clone());
    let clock = Clock::with_suspension(|| Duration::ZERO);
    let locks = Locks::builder(backend).lease(150 * MS).clock(clock).build().unwrap();
    let task = tokio::spawn(async move {
        // Due after 50 ms: the background task sleeps until then, and does so even after this hold
        // is released.
        let first = locks.lock("first").acquire().await.unwrap();
        sleep(3 * MS).await;
        // Due 3 ms later, hence renewed at the same time. The background task wakes up first, since
        // it went to sleep first.
        let second = locks.lock("second").acquire().await.unwrap();
        first.release().await.unwrap();
        sleep(47 * MS).await;
        drop(second);
        sleep(SECOND).await;
    });
    task.await.unwrap();
    assert_eq!(counts.empty.load(Ordering::SeqCst), 0, "renewals of nothing");
}

// ---- fair locks and multi-locks

/// A named owner that took one name first with `lock` and then with `fair_lock` took over from
/// itself, and the inner release freed the outer hold.
#[tokio::test(start_paused = true)]
async fn one_owner_nests_in_the_other_mode() {
    let store = MemoryBackend::new();
    let (one, other) = (Locks::new(store.clone()), Locks::new(store));
    for owner in [Owner::named("job"), Owner::new()] {
        for (outer, inner) in
            [(one.lock("a"), one.fair_lock("a")), (one.fair_lock("a"), one.lock("a"))]
        {
            let outer = outer.owned_by(&owner).acquire().await.unwrap();
            let inner = timeout(SECOND, inner.owned_by(&owner).acquire()).await;
            let inner = inner.expect("it does not wait for itself").unwrap();
            assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
            inner.release().await.unwrap();
            assert!(
                other.lock("a").try_acquire().await.unwrap().is_none(),
                "the outer hold goes on"
            );
            outer.release().await.unwrap();
        }
    }
}

/// A multi-lock failed with the first error, however soon that would have passed.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_bears_what_a_single_lock_bears() {
    let (_, faults, locks) = faulty();
    faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let guard = locks.multi_lock(["a", "b"]).acquire().await.unwrap();
    assert_eq!(guard.tokens().count(), 2);
    guard.release().await.unwrap();
}

/// Waiters failed when only their subscriptions did, although the backend answered every attempt.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_cannot_listen_goes_on_asking() {
    let (store, faults, locks) = faulty();
    let held = Locks::new(store).lock("a").acquire().await.unwrap();
    faults.every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(60 * SECOND).await;
    assert!(!waiting.is_finished(), "longer than failures are borne");
    assert!(faults.calls(Op::Acquire) < 150, "{} calls in a minute", faults.calls(Op::Acquire));
    held.release().await.unwrap();
    let (guard, waited) = took(waiting).await;
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(waited <= 2 * SECOND, "{waited:?}");
}

/// The undo of a fair wait gave up when the requested lease would have ended, and left the place in
/// the queue.
#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_is_given_up_however_short_the_lease() {
    let (store, faults, locks) = faulty();
    let other = Locks::new(store);
    let held = other.fair_lock("a").acquire().await.unwrap();
    faults.next(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    faults.next(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    let waited = timeout(100 * MS, locks.fair_lock("a").lease(10 * MS).acquire()).await;
    assert!(waited.is_err(), "it is held");
    sleep(300 * MS).await;
    held.release().await.unwrap();
    let (next, waited) = took(other.fair_lock("a").acquire()).await;
    next.unwrap().release().await.unwrap();
    assert!(waited < SECOND, "{waited:?}");
}

/// A waiter that asked between a release and the next entry was told how long the next waiter's
/// place was kept, and slept that long although the hold ended much earlier.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_another_one_learns_that_its_hold_is_a_short_one() {
    for is_fair in [true, false] {
        let (store, faults, locks) = faulty();
        let other = Locks::new(store);
        let (held, short, next) = match is_fair {
            true => (other.fair_lock("a"), locks.fair_lock("a"), other.fair_lock("a")),
            // A waiting writer keeps new readers out.
            false => {
                (other.rw_lock("a").read(), locks.rw_lock("a").write(), other.rw_lock("a").read())
            }
        };
        let held = held.acquire().await.unwrap();
        let short = tokio::spawn(short.lease(100 * MS).acquire());
        sleep(50 * MS).await;
        let next = tokio::spawn(next.owned_by(&Owner::new()).acquire());
        sleep(50 * MS).await;
        faults.next(Op::Acquire, Fault::Delay(50 * MS));
        held.release().await.unwrap();
        let short = short.await.unwrap().unwrap();
        let (next, waited) = took(next).await;
        next.unwrap().unwrap().release().await.unwrap();
        assert!(waited < 200 * MS, "{waited:?}");
        drop(short);
    }
}

/// An attempt that does not want to wait came while a writer of its client was asking, and waited
/// for the writer's whole hold.
#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_want_to_wait_gives_up_behind_a_writer_of_its_client() {
    let (store, faults, locks) = faulty();
    let held = Locks::new(store).rw_lock("a").write().acquire().await.unwrap();
    let writers = [(); 2].map(|()| tokio::spawn(locks.rw_lock("a").write().acquire()));
    sleep(50 * MS).await;
    faults.next(Op::Acquire, Fault::Delay(50 * MS));
    held.release().await.unwrap();
    sleep(10 * MS).await;
    let (tried, waited) = took(locks.rw_lock("a").read().try_acquire()).await;
    assert!(tried.unwrap().is_none(), "a writer is in");
    assert!(waited < 100 * MS, "{waited:?}");
    for writer in writers {
        writer.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// Each at its own time, they sent 100 commands in 10 s for 100 names; at the same time, a backend
/// can answer them together.
#[tokio::test(start_paused = true)]
async fn all_who_wait_in_a_client_ask_again_at_the_same_moments() {
    const NAMES: usize = 20;
    let store = MemoryBackend::new();
    let holder = Locks::new(store.clone());
    let backend = Faulty::new(store);
    let faults = backend.faults();
    let (locks, start) = (Locks::new(backend), Instant::now());
    let (mut guards, mut waiting) = (Vec::new(), JoinSet::new());
    for number in 0..NAMES {
        let name = format!("held-{number}");
        guards.push(holder.lock(&name).acquire().await.unwrap());
        waiting.spawn(locks.lock(&name).acquire());
        sleep(130 * MS).await;
    }
    let asked = faults.calls(Op::Acquire);
    assert_eq!(asked, 2 * NAMES, "before they listen, and after");
    for (round, seconds) in [(1, 10), (2, 20)] {
        sleep_until(start + seconds * SECOND - 10 * MS).await;
        assert_eq!(faults.calls(Op::Acquire), asked + (round - 1) * NAMES);
        sleep_until(start + seconds * SECOND + 10 * MS).await;
        assert_eq!(faults.calls(Op::Acquire), asked + round * NAMES);
    }
    drop(guards);
    let had = waiting.join_all().await;
    assert!(had.iter().all(Result::is_ok));
}

/// Records the expected remaining times, and answers with them, as the contract allows.
#[derive(Debug, Default)]
struct Expecting(Mutex<Vec<Option<Duration>>>);

#[async_trait]
impl Hooks for Expecting {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        self.0.lock().unwrap().push(request.held_for);
        let remaining = request.held_for?;
        Some(Ok(AcquireOutcome::Held { remaining: Some(remaining) }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_tells_what_it_knows_and_comes_at_the_end_of_the_lease() {
    let (store, expecting) = (MemoryBackend::new(), Arc::new(Expecting::default()));
    let (holder, locks) =
        (Locks::new(store.clone()), Locks::new(Hooked::new(store, expecting.clone())));
    let start = Instant::now();
    let held = holder.lock("a").lease(35 * SECOND).acquire().await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let waited = start.elapsed();
    assert!((35 * SECOND..35 * SECOND + 10 * MS).contains(&waited), "{waited:?}");
    let expected = std::mem::take(&mut *expecting.0.lock().unwrap());
    let [None, None, Some(first), Some(second), Some(third), None] = expected[..] else {
        panic!("before and after it listens, every 10 s, and in the end: {expected:?}")
    };
    for (left, seconds) in [(first, 25), (second, 15), (third, 5)] {
        assert!(left.abs_diff(seconds * SECOND) < 10 * MS, "{expected:?}");
    }
    drop(held);

    // Requests that do not want to wait state no expectation, and neither does a waiter that was
    // woken.
    let waiting = tokio::spawn(holder.lock("a").acquire());
    sleep(SECOND).await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let held = waiting.await.unwrap().unwrap();
    let waiting = tokio::spawn(locks.lock("a").acquire());
    sleep(8 * SECOND).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let expected = expecting.0.lock().unwrap().clone();
    assert_eq!(expected.iter().filter(|held_for| held_for.is_some()).count(), 1, "{expected:?}");
    assert_eq!(expected.last(), Some(&None));
}

/// A backend that looks only whether the lock is held would keep an owner out of its own hold.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_name_tells_nothing() {
    let (store, expecting) = (MemoryBackend::new(), Arc::new(Expecting::default()));
    let (holder, locks) =
        (Locks::new(store.clone()), Locks::new(Hooked::new(store, expecting.clone())));
    let held = holder.lock("a").lease(35 * SECOND).acquire().await.unwrap();
    let lock = locks.lock("a").owned_by(&Owner::named("job-17"));
    drop(lock.acquire().await.unwrap());
    let expected = std::mem::take(&mut *expecting.0.lock().unwrap());
    assert_eq!(expected[..], [None; 6], "before and after it listens, every 10 s, and in the end");
    drop(held);
}
