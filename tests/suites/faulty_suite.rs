//! What users see when the backend fails, is slow, loses replies or never answers: the core over
//! [`Faulty`], on a paused clock.

use std::{future::Future, pin::pin, time::Duration};

use lockcore::{
    BackendErrorKind, LockError, LockGuard, LockName, Locks, LossReason, Owner, backend::Backend,
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// The default lease.
const LEASE: Duration = Duration::from_secs(30);

/// The time limit without waiting for a lease: a few attempts and their pauses.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Every fault of a call, and none.
const ALL: [Option<Fault>; 9] = [
    None,
    Some(Fault::Refuse(BackendErrorKind::Connection)),
    Some(Fault::Refuse(BackendErrorKind::Permission)),
    Some(Fault::LostRequest),
    Some(Fault::LostReply),
    Some(Fault::Delay(SECOND)),
    Some(Fault::DelayReply(SECOND)),
    Some(Fault::NeverAnswer),
    Some(Fault::NeverReply),
];

/// A store with two clients, the first with faults.
struct Bench {
    store: MemoryBackend,
    faults: Faults,
    faulty: Locks,
    sound: Locks,
}

impl Bench {
    fn new() -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        Self { faults, faulty: Locks::new(backend), sound: Locks::new(store.clone()), store }
    }

    fn with(op: Op, fault: Option<Fault>) -> Self {
        let bench = Self::new();
        if let Some(fault) = fault {
            bench.faults.next(op, fault);
        }
        bench
    }

    /// Shows that the other client enters within `time`, and that nothing of any lock is left
    /// afterwards.
    async fn is_free_within(&self, time: Duration, what: &str) {
        let start = Instant::now();
        let guard = self.sound.lock("a").acquire_timeout(time).await;
        let guard = guard.unwrap_or_else(|error| panic!("{what}: {error}"));
        let waited = start.elapsed();
        guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        // Delayed requests arrive meanwhile, and must be undone as well.
        tokio::time::sleep(AT_ONCE).await;
        assert_eq!(
            self.store.names_in_use(),
            0,
            "{what}: something is left, although free after {waited:?}"
        );
    }

    async fn stored_count(&self) -> Option<u32> {
        let state = self.store.inspect(&LockName::new("a").unwrap()).await.unwrap();
        state.holders().first().map(lockcore::Holder::hold_count)
    }
}

/// Runs `scenario` on a fresh bench, dropping its future after each number of polls until it
/// completes, and then runs `check`.
async fn dropped_after_each_poll<T>(
    what: &str,
    bench: impl Fn() -> Bench,
    scenario: impl AsyncFn(&Bench) -> T,
    check: impl AsyncFn(&Bench, &str),
) {
    for polls in 0..200 {
        let bench = bench();
        let ended = timeout(5 * SECOND, poll_times(polls, scenario(&bench))).await;
        bench.faults.heal();
        check(&bench, &format!("{what}, dropped after {polls} polls")).await;
        if !matches!(ended, Ok(None)) {
            return;
        }
    }
    panic!("{what}: 200 polls were not enough");
}

async fn took<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}

fn backend_error<T: std::fmt::Debug>(result: Result<T, LockError>) -> BackendErrorKind {
    match result {
        Err(LockError::Backend(error)) => {
            assert_eq!(
                error.lock().map(LockName::as_str),
                Some("a"),
                "the error names the lock: {error}"
            );
            error.kind()
        }
        other => panic!("the backend's error should have come through: {other:?}"),
    }
}

// ---- acquisition

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_reply_was_lost_leaves_no_hold() {
    let bench = Bench::with(Op::Acquire, Some(Fault::LostReply));
    assert_eq!(
        backend_error(bench.faulty.lock("a").try_acquire().await),
        BackendErrorKind::Timeout
    );
    bench.is_free_within(AT_ONCE, "a lost reply").await;
    assert_eq!(bench.faults.calls(Op::Release), 1, "it was undone once");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_reply_was_lost_is_tried_again_under_a_new_identity() {
    let bench = Bench::with(Op::Acquire, Some(Fault::LostReply));
    let (guard, waited) = took(bench.faulty.lock("a").acquire()).await;
    let guard = guard.unwrap();
    assert!(waited < AT_ONCE, "{waited:?}");
    assert_eq!(
        bench.stored_count().await,
        Some(1),
        "the attempt that went unanswered is not counted"
    );
    guard.release().await.unwrap();
    bench.is_free_within(Duration::ZERO, "after the release").await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_certainly_had_no_effect_is_not_undone() {
    let bench = Bench::with(Op::Acquire, Some(Fault::Refuse(BackendErrorKind::OutOfMemory)));
    assert_eq!(
        backend_error(bench.faulty.lock("a").acquire().await),
        BackendErrorKind::OutOfMemory
    );
    assert_eq!(bench.faults.all_calls(), 1, "neither a retry nor a release can help");
    bench.is_free_within(Duration::ZERO, "a refusal").await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_bears_failures_for_as_long_as_it_was_told() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let (result, waited) = took(bench.faulty.lock("a").acquire()).await;
    assert_eq!(backend_error(result), BackendErrorKind::Connection);
    assert!((5 * SECOND..7 * SECOND).contains(&waited), "{waited:?}");
    assert!(
        (5..30).contains(&bench.faults.calls(Op::Acquire)),
        "{}",
        bench.faults.calls(Op::Acquire)
    );
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_enters_when_the_backend_is_back() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::LostRequest);
    let heals = async {
        bench.faults.reached(Op::Acquire, 4).await;
        bench.faults.heal();
    };
    let (guard, ()) = tokio::join!(bench.faulty.lock("a").acquire(), heals);
    guard.unwrap().release().await.unwrap();
    bench.is_free_within(AT_ONCE, "after an outage").await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_for_a_failing_backend_learns_why() {
    let bench = Bench::new();
    bench.faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let (result, waited) = took(bench.faulty.lock("a").acquire_timeout(SECOND)).await;
    assert_eq!(backend_error(result), BackendErrorKind::Unavailable);
    assert_eq!(waited, SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answers_holds_nobody_beyond_his_time() {
    for fault in [Fault::NeverAnswer, Fault::NeverReply] {
        let bench = Bench::with(Op::Acquire, Some(fault));
        let (result, waited) = took(bench.faulty.lock("a").acquire_timeout(2 * SECOND)).await;
        assert!(matches!(result, Err(LockError::Timeout { .. })), "{result:?}");
        assert_eq!(waited, 2 * SECOND);
        bench.is_free_within(AT_ONCE, "a backend that never answers").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_the_lease_is_asked_for_again() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(2 * SECOND)));
    let guard = bench.faulty.lock("a").lease(SECOND).acquire().await.unwrap();
    assert!(guard.is_held() && guard.remaining() > SECOND / 2, "{guard:?}");
    guard.release().await.unwrap();
    bench.is_free_within(AT_ONCE, "a late reply").await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_grant_comes_after_the_lease_fails_and_leaves_nothing() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(2 * SECOND)));
    let result = bench.faulty.lock("a").lease(SECOND).try_acquire().await;
    assert!(
        matches!(&result, Err(LockError::Backend(error)) if error.kind() == BackendErrorKind::Timeout),
        "{result:?}"
    );
    bench.is_free_within(AT_ONCE, "a late reply").await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_counted_from_before_the_request_was_sent() {
    let bench = Bench::with(Op::Acquire, Some(Fault::DelayReply(4 * SECOND)));
    let guard = bench.faulty.lock("a").lease(LEASE).acquire().await.unwrap();
    assert!(guard.remaining() < LEASE - 4 * SECOND, "{:?}", guard.remaining());
    let stored =
        bench.store.inspect(&LockName::new("a").unwrap()).await.unwrap().remaining().unwrap();
    assert!(guard.remaining() < stored, "{:?} is not less than {stored:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn one_subscription_that_fails_is_made_again() {
    for fault in
        [Fault::Refuse(BackendErrorKind::Connection), Fault::LostReply, Fault::Delay(SECOND)]
    {
        let bench = Bench::with(Op::Subscribe, Some(fault));
        let held = bench.sound.lock("a").acquire().await.unwrap();
        let released = async {
            tokio::time::sleep(4 * SECOND).await;
            held.release().await.unwrap();
        };
        let (guard, waited) =
            took(async { tokio::join!(bench.faulty.lock("a").acquire(), released).0 }).await;
        assert!(waited < 5 * SECOND, "{fault:?}: entered after {waited:?}");
        guard.unwrap().release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "a subscription that failed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_its_undo_is_not_renewed_and_ends_with_its_lease() {
    let bench = Bench::with(Op::Acquire, Some(Fault::Straggles(SECOND)));
    assert_eq!(
        backend_error(bench.faulty.lock("a").try_acquire().await),
        BackendErrorKind::Timeout
    );
    bench.faults.reached(Op::Release, 1).await;
    bench.sound.lock("a").acquire_timeout(Duration::ZERO).await.unwrap().release().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(bench.stored_count().await, Some(1), "it has arrived");
    assert_eq!(bench.faults.calls(Op::Renew), 0);
    bench.is_free_within(LEASE + SECOND, "a straggler").await;
}

// ---- wake-ups

/// Lets a waiter at the faulty client lose the wake-up of a release after a second, as `bench`
/// specifies. Returns when the waiter entered.
async fn waits_past_a_lost_wakeup(
    bench: &Bench,
    lease: Duration,
    meanwhile: impl Future,
) -> Duration {
    let held = bench.sound.lock("a").lease(lease).acquire().await.unwrap();
    let released = async {
        tokio::time::sleep(SECOND).await;
        held.release().await.unwrap();
        meanwhile.await;
    };
    let (guard, waited) =
        took(async { tokio::join!(bench.faulty.lock("a").acquire(), released).0 }).await;
    guard.unwrap().release().await.unwrap();
    bench.is_free_within(Duration::ZERO, "a lost wake-up").await;
    waited
}

#[tokio::test(start_paused = true)]
async fn a_lost_wakeup_costs_no_more_than_the_rest_of_the_holders_lease() {
    let bench = Bench::new();
    bench.faults.every(Op::Woken, Fault::LostReply);
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, async {}).await;
    assert!((10 * SECOND..10 * SECOND + SECOND / 10).contains(&waited), "entered after {waited:?}");
    assert!(
        bench.faults.calls(Op::Acquire) <= 3,
        "it does not poll: {}",
        bench.faults.calls(Op::Acquire)
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_wakeup_is_a_wakeup() {
    let bench = Bench::with(Op::Woken, Some(Fault::Delay(2 * SECOND)));
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, async {}).await;
    assert!((3 * SECOND..4 * SECOND).contains(&waited), "entered after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_interruption_wakes_whoever_may_have_missed_a_release() {
    let bench = Bench::new();
    bench.faults.interrupt_subscriptions();
    let mends = async {
        tokio::time::sleep(2 * SECOND).await;
        bench.faults.restore_subscriptions();
    };
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, mends).await;
    assert!((3 * SECOND..3 * SECOND + SECOND / 10).contains(&waited), "entered after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_tasks_of_one_client_make_one_subscription() {
    let bench = Bench::new();
    let held = bench.sound.lock("a").acquire().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let acquire = bench.faulty.lock("a").acquire();
        tasks.spawn(async { acquire.await.unwrap().release().await.unwrap() });
    }
    tokio::time::sleep(4 * SECOND).await;
    assert_eq!(bench.faults.calls(Op::Subscribe), 1);
    assert!(bench.faults.all_calls() <= 8, "{} calls while they wait", bench.faults.all_calls());
    held.release().await.unwrap();
    tasks.join_all().await;
    bench.is_free_within(Duration::ZERO, "after the last waiter").await;
}

// ---- release

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_is_confirmed_by_the_next() {
    let bench = Bench::with(Op::Release, Some(Fault::LostReply));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(bench.faults.calls(Op::Release), 2);
    bench.is_free_within(Duration::ZERO, "a release whose reply was lost").await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_does_not_touch_whoever_came_between() {
    let bench = Bench::with(Op::Release, Some(Fault::LostReply));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    let successor = async {
        bench.faults.reached(Op::Release, 1).await;
        bench.sound.lock("a").acquire().await.unwrap()
    };
    let (released, successor) = tokio::join!(guard.release(), successor);
    released.unwrap();
    assert_eq!(bench.faults.calls(Op::Release), 2, "it was repeated");
    assert_eq!(bench.stored_count().await, Some(1));
    successor.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_long_after_its_repetition_does_not_touch_the_next_hold() {
    let bench = Bench::with(Op::Release, Some(Fault::Straggles(2 * SECOND)));
    let owner = Owner::named("job-17");
    bench.faulty.lock("a").owned_by(&owner).acquire().await.unwrap().release().await.unwrap();
    let next = bench.faulty.lock("a").owned_by(&owner).acquire().await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(bench.stored_count().await, Some(1), "the same owner's next hold was released");
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_goes_on_in_the_background() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::LostRequest);
    assert_eq!(backend_error(guard.release().await), BackendErrorKind::Timeout);
    assert_eq!(bench.faults.calls(Op::Release), 3, "the caller is not kept for ever");
    bench.faults.reached(Op::Release, 6).await;
    bench.faults.heal();
    bench.is_free_within(AT_ONCE, "a release in the background").await;
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_tried_for_longer_than_the_lease() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").lease(LEASE).acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::LostRequest);
    drop(guard);
    bench.is_free_within(LEASE + SECOND, "the lease").await;
    tokio::time::sleep(2 * LEASE).await;
    let calls = bench.faults.calls(Op::Release);
    tokio::time::sleep(10 * LEASE).await;
    assert_eq!(bench.faults.calls(Op::Release), calls, "the release is tried for ever");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_good_says_so_and_ends_with_the_lease() {
    let bench = Bench::with(Op::Release, Some(Fault::Refuse(BackendErrorKind::Permission)));
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    assert_eq!(backend_error(guard.release().await), BackendErrorKind::Permission);
    assert_eq!(bench.faults.calls(Op::Release), 1);
    bench.is_free_within(LEASE + SECOND, "a release that was refused").await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_release_makes_no_call_and_so_cannot_fail() {
    let bench = Bench::new();
    bench.faults.every(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    let lock = bench.faulty.lock("a").owned_by(&Owner::new());
    let outer = lock.acquire().await.unwrap();
    let calls = bench.faults.all_calls();
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(bench.faults.all_calls(), calls, "nesting makes round trips");
    bench.faults.heal();
    outer.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_never_returns_keeps_its_client_no_longer_than_the_lease() {
    for fault in [Fault::NeverAnswer, Fault::NeverReply] {
        let bench = Bench::with(Op::Release, Some(fault));
        drop(bench.faulty.lock("a").acquire().await.unwrap());
        let again = bench.faulty.lock("a").acquire_timeout(2 * LEASE).await;
        again.unwrap_or_else(|error| panic!("{fault:?}: {error}")).release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "after a hung release").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_release_is_not_kept_for_ever_by_a_backend_that_never_answers() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.every(Op::Release, Fault::NeverAnswer);
    let released = timeout(2 * LEASE, guard.release()).await;
    assert!(matches!(released, Ok(Err(LockError::Backend(_)))), "{released:?}");
}

// ---- renewal

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_retried_until_the_deadline_and_then_the_hold_is_lost() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.every(Op::Renew, Fault::Refuse(BackendErrorKind::Connection));
    let (reason, lasted) = took(guard.lost()).await;
    assert_eq!(reason, LossReason::LeaseEnded);
    assert!((LEASE.mul_f64(0.98)..LEASE).contains(&lasted), "lost after {lasted:?}");
    assert!(
        bench.faults.calls(Op::Renew) > 10,
        "{} renewals were tried",
        bench.faults.calls(Op::Renew)
    );
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    bench.is_free_within(AT_ONCE, "a hold that was lost").await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_an_outage_that_is_shorter_than_its_lease() {
    for fault in [Fault::Refuse(BackendErrorKind::Connection), Fault::LostRequest, Fault::LostReply]
    {
        let bench = Bench::new();
        let guard = bench.faulty.lock("a").acquire().await.unwrap();
        bench.faults.every(Op::Renew, fault);
        let mut lost = pin!(guard.lost());
        for _ in 0..4 {
            // It was just renewed: 10 s until the next renewal, and 15 s of failures.
            assert!(timeout(25 * SECOND, lost.as_mut()).await.is_err(), "{fault:?}");
            bench.faults.heal();
            let renewals = bench.faults.calls(Op::Renew);
            bench.faults.reached(Op::Renew, renewals + 1).await;
            bench.faults.every(Op::Renew, fault);
        }
        assert!(guard.is_held());
        bench.faults.heal();
        guard.release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "after the outages").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_nothing_ends_the_hold_at_once() {
    let bench = Bench::new();
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    assert!(bench.sound.lock("a").force_release().await.unwrap());
    let (reason, lasted) = took(guard.lost()).await;
    assert_eq!(reason, LossReason::Gone);
    assert!(lasted <= LEASE / 3 + SECOND, "noticed after {lasted:?}");
    assert_eq!(bench.faults.calls(Op::Renew), 1);
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_never_returns_is_tried_again_in_time() {
    for fault in
        [Fault::NeverAnswer, Fault::NeverReply, Fault::Delay(LEASE), Fault::DelayReply(LEASE)]
    {
        let bench = Bench::with(Op::Renew, Some(fault));
        let guard = bench.faulty.lock("a").acquire().await.unwrap();
        assert!(timeout(4 * LEASE, guard.lost()).await.is_err(), "{fault:?}: the hold was lost");
        guard.release().await.unwrap();
        bench.is_free_within(Duration::ZERO, "after a hung renewal").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_never_returns_delays_no_other() {
    let bench = Bench::with(Op::Renew, Some(Fault::NeverAnswer));
    let _hung = bench.faulty.lock("hung").acquire().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let other = bench.faulty.lock("a").acquire().await.unwrap();
    bench.faults.reached(Op::Renew, 1).await;
    let (second, waited) = took(bench.faults.reached(Op::Renew, 2)).await;
    let () = second;
    assert!(waited <= 5 * SECOND, "the other hold was renewed {waited:?} after the one that hangs");
    assert!(other.remaining() > LEASE - SECOND || timeout(SECOND, other.lost()).await.is_err());
    assert!(timeout(3 * LEASE, other.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_renews_costs_the_hold_before_anybody_else_gets_in() {
    let bench = Bench::new();
    bench.faults.every(Op::Renew, Fault::NeverAnswer);
    let guard = bench.faulty.lock("a").acquire().await.unwrap();
    let successor = async {
        let successor = bench.sound.lock("a").acquire().await.unwrap();
        (guard.is_held(), successor)
    };
    let (reason, (still_believed, successor)) = tokio::join!(guard.lost(), successor);
    assert_eq!(reason, LossReason::LeaseEnded);
    assert!(!still_believed, "two owners believed to be inside");
    assert!(successor.token() > guard.token());
}

#[tokio::test(start_paused = true)]
async fn run_drops_its_body_when_the_backend_is_gone_for_a_lease() {
    let bench = Bench::new();
    bench.faults.every(Op::Renew, Fault::Refuse(BackendErrorKind::Connection));
    let body = async |_: &LockGuard| std::future::pending::<()>().await;
    let (result, lasted) = took(bench.faulty.lock("a").run(body)).await;
    assert!(matches!(result, Err(LockError::Lost { .. })), "{result:?}");
    assert!(lasted < LEASE, "the body went on for {lasted:?}");
    bench.is_free_within(AT_ONCE, "after the loss").await;
}

// ---- the rest

#[tokio::test(start_paused = true)]
async fn errors_of_the_operators_tools_come_through_at_once() {
    let bench = Bench::new();
    bench.faults.next(Op::Inspect, Fault::Refuse(BackendErrorKind::Connection));
    bench.faults.next(Op::ForceRelease, Fault::LostRequest);
    let lock = bench.faulty.lock("a");
    assert_eq!(backend_error(lock.state().await), BackendErrorKind::Connection);
    assert_eq!(backend_error(lock.force_release().await), BackendErrorKind::Timeout);
    assert_eq!(bench.faults.all_calls(), 2, "neither is repeated: the caller decides");
}

#[tokio::test(start_paused = true)]
async fn closing_reports_what_could_not_be_released_and_releases_the_rest() {
    let bench = Bench::new();
    let _guards = [
        bench.faulty.lock("a").acquire().await.unwrap(),
        bench.faulty.lock("b").acquire().await.unwrap(),
    ];
    bench.faults.next(Op::Release, Fault::Refuse(BackendErrorKind::Permission));
    let closed = bench.faulty.close().await;
    assert!(matches!(closed, Err(LockError::Backend(_))), "{closed:?}");
    assert_eq!(bench.store.names_in_use(), 1, "one was refused, the other is released");
}

#[tokio::test(start_paused = true)]
async fn clients_that_are_gone_leave_no_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let bench = Bench::new();
    let held = bench.sound.lock("a").acquire().await.unwrap();
    assert!(bench.faulty.lock("a").acquire_timeout(SECOND).await.is_err());
    held.release().await.unwrap();
    drop(bench.faulty.lock("a").acquire().await.unwrap());
    assert!(tasks() > 0, "the clients work in the background");
    drop(bench);
    tokio::time::sleep(SECOND).await;
    assert_eq!(tasks(), 0);
}

// ---- every await, crossed with everything that can happen to it, and dropped at each

/// How long a hold may outlive the drop of its last future, if `fault` occurred in a release.
fn patience_with_release(fault: Option<Fault>) -> Duration {
    match fault {
        // Nobody knows of the hold, or nothing can be done about it.
        Some(Fault::Refuse(BackendErrorKind::Permission) | Fault::NeverAnswer) => LEASE + SECOND,
        _ => AT_ONCE,
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquisition_leaves_nothing_whatever_happens_to_its_request() {
    for fault in ALL {
        dropped_after_each_poll(
            &format!("acquire with {fault:?}"),
            || Bench::with(Op::Acquire, fault),
            async |bench| drop(bench.faulty.lock("a").acquire().await),
            async |bench, what| bench.is_free_within(AT_ONCE, what).await,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_is_carried_out_whatever_happens_to_its_request() {
    for fault in ALL {
        dropped_after_each_poll(
            &format!("acquire and release with {fault:?}"),
            || Bench::with(Op::Release, fault),
            async |bench| drop(bench.faulty.lock("a").acquire().await.unwrap().release().await),
            async |bench, what| bench.is_free_within(patience_with_release(fault), what).await,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_leaves_nothing_whatever_happens_to_its_requests() {
    for op in [Op::Acquire, Op::Subscribe, Op::Woken] {
        for fault in ALL {
            for good in 0..3 {
                let bench = || {
                    let bench = Bench::new();
                    (0..good).for_each(|_| bench.faults.next_goes_well(op));
                    fault.into_iter().for_each(|fault| bench.faults.next(op, fault));
                    bench
                };
                dropped_after_each_poll(
                    &format!("waiting, with {fault:?} at call {} of {op:?}", good + 1),
                    bench,
                    waits_for_a_holder,
                    async |bench, what| bench.is_free_within(AT_ONCE, what).await,
                )
                .await;
            }
        }
    }
}

/// Waits at the faulty client for a lock that the other client releases after a while.
async fn waits_for_a_holder(bench: &Bench) {
    let held = bench.sound.lock("a").acquire().await.unwrap();
    let released = async {
        tokio::time::sleep(SECOND).await;
        held.release().await.unwrap();
    };
    let (guard, ()) = tokio::join!(bench.faulty.lock("a").acquire(), released);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_nested_growth_leaves_the_count_right_whatever_happens_to_its_request() {
    for fault in ALL {
        for polls in 0..8 {
            let what = format!("growth with {fault:?}, dropped after {polls} polls");
            let bench = Bench::new();
            let lock = bench.faulty.lock("a").owned_by(&Owner::new());
            let outer = lock.clone().lease(LEASE).acquire().await.unwrap();
            fault.into_iter().for_each(|fault| bench.faults.next(Op::Acquire, fault));
            let nested = lock.lease(2 * LEASE).acquire();
            drop(timeout(5 * SECOND, poll_times(polls, nested)).await);
            tokio::time::sleep(AT_ONCE).await;
            assert_eq!(bench.stored_count().await, Some(1), "{what}");
            assert_eq!(outer.hold_count(), 1, "{what}");
            assert!(outer.is_held(), "{what}");
            outer.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
            bench.is_free_within(Duration::ZERO, &what).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_leaves_nothing_whatever_happens_to_its_requests() {
    for op in [Op::Acquire, Op::Release] {
        for fault in ALL {
            let patience = if op == Op::Release { patience_with_release(fault) } else { AT_ONCE };
            dropped_after_each_poll(
                &format!("run, with {fault:?} at {op:?}"),
                || Bench::with(op, fault),
                async |bench| {
                    let lock = bench.faulty.lock("a");
                    let body = async |_: &LockGuard| {
                        tokio::task::yield_now().await;
                        drop(lock.acquire().await);
                    };
                    drop(lock.run(body).await);
                },
                async |bench, what| bench.is_free_within(patience, what).await,
            )
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_close_releases_all_the_same_whatever_happens_to_its_requests() {
    for fault in ALL {
        dropped_after_each_poll(
            &format!("close with {fault:?}"),
            || Bench::with(Op::Release, fault),
            async |bench| {
                let _guard = bench.faulty.lock("a").acquire().await.unwrap();
                drop(bench.faulty.close().await);
            },
            async |bench, what| bench.is_free_within(patience_with_release(fault), what).await,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_can_use_a_name_again_whatever_happened_to_its_last_request() {
    for op in [Op::Acquire, Op::Release, Op::Renew] {
        for fault in ALL {
            let what = format!("{op:?} with {fault:?}");
            let bench = Bench::with(op, fault);
            let used = async {
                let guard = bench.faulty.lock("a").acquire().await?;
                tokio::time::sleep(LEASE / 2).await;
                guard.release().await
            };
            drop(timeout(LEASE, used).await);
            let again = bench.faulty.lock("a").acquire_timeout(2 * LEASE).await;
            again.unwrap_or_else(|error| panic!("{what}: {error}")).release().await.unwrap();
            bench.is_free_within(Duration::ZERO, &what).await;
        }
    }
}
