//! Members that fail, are late, lose replies or never answer.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lockcore::{
    BackendError, BackendErrorKind, LockError, Locks, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome, RenewOutcome, RenewRequest,
        Wakeup, Wakeups, async_trait,
    },
};
use lockcore_memory::MemoryBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::{Fault, Op, poll_times};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Bench, LEASE, MEMBER_TIMEOUT, MS, SECOND, enters,
    hooked::{Hooked, Hooks},
    name, owner_at, release, renewal, request,
};

/// Every fault of the request to one member.
const ALL: [Fault; 8] = [
    Fault::Refuse(BackendErrorKind::Connection),
    Fault::Refuse(BackendErrorKind::Permission),
    Fault::LostRequest,
    Fault::LostReply,
    Fault::Delay(SECOND),
    Fault::DelayReply(SECOND),
    Fault::NeverAnswer,
    Fault::NeverReply,
];

#[tokio::test(start_paused = true)]
async fn one_of_three_may_fail_in_any_way_and_in_every_request() {
    for fault in ALL {
        let bench = Bench::new(3);
        for op in [Op::Acquire, Op::Renew, Op::Release, Op::Subscribe, Op::Inspect, Op::RaiseToken]
        {
            bench.faults[1].every(op, fault);
        }
        let locks = Locks::new(bench.quorum.clone());
        let start = Instant::now();
        let mut last = None;
        for _ in 0..10 {
            let guard = locks.lock("a").acquire().await.unwrap();
            assert!(Some(guard.token()) > last, "{fault:?}: the tokens do not rise");
            last = Some(guard.token());
            assert!(locks.lock("a").state().await.unwrap().is_held(), "{fault:?}");
            sleep(LEASE).await;
            assert!(guard.is_held(), "{fault:?}: the hold was not renewed");
            guard.release().await.unwrap();
        }
        let waited = start.elapsed() - 10 * LEASE;
        assert!(waited < SECOND, "{fault:?}: the majority waited for {waited:?}");
    }
}

/// The backend of a member, which may panic at every request about holds.
#[derive(Debug)]
struct Panics {
    panics: bool,
    asked: Arc<AtomicUsize>,
    /// The next subscription panics when it is asked for a wake-up, before it returns a future.
    at_once: AtomicBool,
}

impl Panics {
    fn panic(&self) {
        assert!(!self.panics, "the member panics on purpose");
    }
}

#[async_trait]
impl Hooks for Panics {
    async fn acquire(&self, _: &AcquireRequest) -> Option<Result<AcquireOutcome, BackendError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.panic();
        None
    }

    fn renew(&self, _: &[RenewRequest]) {
        self.panic();
    }

    async fn release(&self) {
        self.panic();
    }

    async fn subscribe(&self, _: Option<Mode>) -> Option<Box<dyn Wakeups>> {
        let at_once = self.at_once.fetch_not(Ordering::SeqCst);
        self.panics.then(|| Box::new(PanickingWakeups { at_once }) as _)
    }
}

#[derive(Debug)]
struct PanickingWakeups {
    /// A call panics before it returns a future, instead of the future.
    at_once: bool,
}

impl Wakeups for PanickingWakeups {
    fn woken<'a, 'b>(&'a mut self) -> Pin<Box<dyn Future<Output = Wakeup> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        assert!(!self.at_once, "the wake-ups panic on purpose");
        Box::pin(async { panic!("the wake-ups panic on purpose") })
    }
}

/// A quorum of members that panic or do not, and the number of acquisitions that they were asked
/// for.
fn panicking<const N: usize>(members: [bool; N]) -> (Quorum, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let member = |panics| {
        let panics = Panics { panics, asked: asked.clone(), at_once: AtomicBool::new(true) };
        Hooked::new(MemoryBackend::new(), Arc::new(panics))
    };
    (Quorum::new(members.map(member)).unwrap(), asked)
}

/// A member that panics is one that fails. The others keep the lock.
#[tokio::test(start_paused = true)]
async fn one_of_three_may_panic_in_every_request() {
    let (quorum, asked) = panicking([false, true, false]);
    let (locks, others) = (Locks::new(quorum.clone()), Locks::new(quorum));
    for _ in 0..3 {
        let guard = locks.lock("a").acquire().await.unwrap();
        let waiter = others.lock("a");
        let waiting = tokio::spawn(async move { waiter.acquire().await });
        sleep(LEASE).await;
        assert!(guard.is_held(), "it was not renewed");
        // Each of the three members, whenever the waiter has subscribed again.
        let asked = asked.swap(0, Ordering::SeqCst);
        assert!(asked <= 3 * 50, "they were asked {asked} times");
        guard.release().await.unwrap();
        let next = timeout(SECOND, waiting).await.unwrap().unwrap();
        next.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_panics_is_a_clear_error() {
    let (quorum, _) = panicking([true, false, true]);
    let error = quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error:?}");
    let text = error.to_string();
    for part in ["store 1: its backend panicked", "store 3: its backend panicked"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_the_error_is_clear_and_comes_in_time() {
    let bench = Bench::new(3);
    bench.faults[0].every(Op::Acquire, Fault::NeverAnswer);
    bench.faults[2].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let start = Instant::now();
    let error = bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(start.elapsed() < MEMBER_TIMEOUT + 100 * MS, "{:?}", start.elapsed());
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error:?}");
    let text = error.to_string();
    for part in ["2 of the 3 stores", "store 1: no answer within", "store 3: Acquire was refused"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    assert!(!text.contains("store 2"), "{text}");
    assert_eq!(bench.owners().await, [None, None, None], "the grant of one member is undone");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_undone_everywhere_had_certainly_no_effect() {
    let bench = Bench::new(3);
    for member in [0, 1] {
        bench.faults[member].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    }
    let error = bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
    assert_eq!(error.kind(), BackendErrorKind::Connection);
    assert_eq!(bench.faults[2].calls(Op::Release), 1);
    assert!(bench.is_free_everywhere().await);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_no_retry_can_help_is_passed_on_if_a_majority_has_it() {
    let bench = Bench::new(3);
    bench.faults[0].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Permission));
    enters(&bench.quorum, "a:1").await;
    bench.faults[1].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Permission));
    let error = bench.quorum.acquire(&request("a:2")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_a_majority_fails_within_the_patience_of_its_user_and_recovers() {
    let bench = Bench::new(5);
    for faults in &bench.faults[..3] {
        faults.every(Op::Acquire, Fault::NeverAnswer);
    }
    let locks = Locks::builder(bench.quorum.clone()).retry_for(3 * SECOND).build().unwrap();
    let start = Instant::now();
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error:?}");
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    bench.faults[0].heal();
    let guard = timeout(2 * SECOND, locks.lock("a").acquire()).await.unwrap().unwrap();
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    assert!(bench.is_free_everywhere().await);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_on_all_members_that_are_a_little_late() {
    let bench = Bench::new(3);
    bench.faults[0].next(Op::Acquire, Fault::Delay(5 * MS));
    let start = Instant::now();
    enters(&bench.quorum, "a:1").await;
    assert!(start.elapsed() < 10 * MS);
    assert_eq!(bench.owners().await, vec![Some("a:1".to_owned()); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_late_is_waited_for_once_a_second_and_not_for_long() {
    let bench = Bench::new(3);
    for op in [Op::Acquire, Op::Release] {
        bench.faults[2].every(op, Fault::NeverAnswer);
    }
    let start = Instant::now();
    for number in 0..100 {
        enters(&bench.quorum, &format!("a:{number}")).await;
        bench.quorum.release(&release(&format!("a:{number}"))).await.unwrap();
    }
    let waited = start.elapsed();
    assert!(waited <= 400 * MS, "{waited:?} for 100 pairs");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_lost_when_more_than_a_minority_says_so_and_not_before() {
    let bench = Bench::new(5);
    enters(&bench.quorum, "a:1").await;
    for member in 0..2 {
        bench.stores[member].force_release(&name()).await.unwrap();
    }
    let outcomes = bench.quorum.renew(&[renewal("a:1"), renewal("a:2")]).await.unwrap();
    assert!(
        matches!(outcomes.as_slice(), [RenewOutcome::Renewed, RenewOutcome::NotHeld]),
        "{outcomes:?}"
    );
    bench.faults[2].next(Op::Renew, Fault::NeverAnswer);
    let outcomes = bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    let [RenewOutcome::Failed(error)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("store 1: it does not have the hold"), "{error}");
    bench.stores[2].force_release(&name()).await.unwrap();
    let outcomes = bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    assert!(matches!(outcomes.as_slice(), [RenewOutcome::NotHeld]), "{outcomes:?}");
}

/// Nobody asks for a hold that is lost any more, so nobody else would free what is left of it.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_lost_hold_keeps_nobody_out() {
    for op in [Op::Renew, Op::Acquire] {
        let bench = Bench::new(3);
        bench.faults[2].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
        enters(&bench.quorum, "a:1").await;
        bench.stores[1].force_release(&name()).await.unwrap();
        match op {
            Op::Renew => {
                let renewed = bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
                assert!(matches!(renewed[..], [RenewOutcome::NotHeld]), "{renewed:?}");
            }
            _ => {
                let grown = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
                assert_eq!(grown, AcquireOutcome::NotHeld);
            }
        }
        let free = async {
            while owner_at(&bench.stores[0]).await.is_some() {
                sleep(MS).await
            }
        };
        timeout(SECOND, free).await.expect("its last part stays");
        let (other, faults) = crate::client(&bench.stores);
        faults[1].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
        enters(&other, "b:1").await;
        sleep(SECOND).await;
        assert_eq!(owner_at(&bench.stores[0]).await.as_deref(), Some("b:1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_renewals_is_one_request_to_each_member() {
    let bench = Bench::new(3);
    let holds: Vec<_> = (0..100).map(|number| renewal(&format!("a:{number}"))).collect();
    bench.quorum.renew(&holds).await.unwrap();
    assert_eq!(bench.calls(Op::Renew), 3);
}

#[tokio::test(start_paused = true)]
async fn a_release_needs_a_majority_and_says_whether_there_was_a_hold() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.stores[0].force_release(&name()).await.unwrap();
    let outcome = bench.quorum.release(&release("a:1")).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::Released, "a majority had it");
    assert_eq!(bench.quorum.release(&release("a:1")).await.unwrap(), ReleaseOutcome::NotHeld);

    enters(&bench.quorum, "a:2").await;
    for member in [0, 1] {
        bench.stores[member].force_release(&name()).await.unwrap();
    }
    let outcome = bench.quorum.release(&release("a:2")).await.unwrap();
    assert_eq!(outcome, ReleaseOutcome::NotHeld, "no majority had it");
    assert!(bench.is_free_everywhere().await, "what is left of it is released");

    enters(&bench.quorum, "a:3").await;
    for member in [0, 1] {
        bench.faults[member].next(Op::Release, Fault::LostReply);
    }
    let error = bench.quorum.release(&release("a:3")).await.unwrap_err();
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error:?}");
    bench.quorum.release(&release("a:3")).await.unwrap();
    assert!(bench.is_free_everywhere().await);
}

/// A member answers the renewal before it grants the hold.
#[tokio::test(start_paused = true)]
async fn what_came_after_its_renewal_is_cleared_with_a_lost_hold() {
    let bench = Bench::new(3);
    bench.faults[2].next(Op::Acquire, Fault::Delay(50 * MS));
    enters(&bench.quorum, "a:1").await;
    for member in [0, 1] {
        bench.stores[member].force_release(&name()).await.unwrap();
        bench.faults[member].next(Op::Renew, Fault::DelayReply(100 * MS));
    }
    let renewed = bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    assert!(matches!(renewed[..], [RenewOutcome::NotHeld]), "{renewed:?}");
    sleep(SECOND).await;
    assert!(bench.is_free_everywhere().await);
}

#[tokio::test(start_paused = true)]
async fn a_nested_hold_that_cannot_grow_names_each_member_without_it() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.stores[1].force_release(&name()).await.unwrap();
    bench.faults[2].every(Op::Acquire, Fault::LostRequest);
    let error = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap_err();
    let text = error.message();
    assert!(text.contains("2 did not answer as needed"), "{text}");
    assert!(text.contains("store 2: it does not have the hold"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_nested_hold_grows_and_shrinks_by_majority() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.faults[0].next(Op::Acquire, Fault::LostRequest);
    let grown = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
    assert!(grown.token().is_some(), "{grown:?}");
    let state = bench.quorum.inspect(&name()).await.unwrap();
    assert_eq!(state.holders()[0].hold_count(), 2, "as most have it");

    let lowered = bench.quorum.release(&release("a:1").remaining(1)).await.unwrap();
    assert_eq!(lowered, ReleaseOutcome::StillHeld);
    assert_eq!(bench.quorum.inspect(&name()).await.unwrap().holders()[0].hold_count(), 1);

    for member in [0, 1] {
        bench.stores[member].force_release(&name()).await.unwrap();
    }
    let gone = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
    assert_eq!(gone, AcquireOutcome::NotHeld);
    for member in [0, 1] {
        enters(&bench.stores[member], "b:1").await;
    }
    let gone = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
    assert!(matches!(gone, AcquireOutcome::Held { remaining: Some(_) }), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn the_state_is_that_of_a_majority() {
    let bench = Bench::new(3);
    enters(&bench.stores[0], "stray").await;
    assert!(!bench.quorum.inspect(&name()).await.unwrap().is_held(), "one member has a stray hold");
    enters(&bench.stores[1], "a:1").await;
    enters(&bench.stores[2], "a:1").await;
    assert_eq!(bench.quorum.inspect(&name()).await.unwrap().holders()[0].owner(), "a:1");
    bench.faults[1].every(Op::Inspect, Fault::NeverAnswer);
    let state = bench.quorum.inspect(&name()).await.unwrap();
    assert!(state.is_held(), "a member that is silent may have what another has");
    bench.faults[2].every(Op::Inspect, Fault::NeverAnswer);
    assert!(bench.quorum.inspect(&name()).await.unwrap_err().is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_reaches_every_member_that_answers() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.faults[0].next(Op::ForceRelease, Fault::LostRequest);
    assert!(bench.quorum.force_release(&name()).await.unwrap());
    assert_eq!(bench.owners().await, [Some("a:1".to_owned()), None, None]);
    enters(&bench.other(), "b:1").await;
}

/// The undo of an old request may reach a member after a newer request of the same hold.
#[tokio::test(start_paused = true)]
async fn a_grant_does_not_count_where_an_old_request_may_still_end_it() {
    let bench = Bench::new(3);
    enters(&bench.stores[0], "b:1").await;
    enters(&bench.stores[1], "b:1").await;
    // The third member grants it, and both the reply and the undo stay on their way.
    bench.faults[2].next(Op::Acquire, Fault::NeverReply);
    bench.faults[2].next(Op::Release, Fault::Straggles(SECOND));
    let refused = bench.quorum.acquire(&request("a:1")).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    // There would now be a majority with the third member, which is about to lose the hold.
    bench.stores[0].force_release(&name()).await.unwrap();
    bench.faults[1].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let refused = bench.quorum.acquire(&request("a:1")).await;
    let error = refused.expect_err("only one grant is certain");
    assert!(error.is_retryable() && error.is_outcome_unknown(), "another hold is to be asked for");
    assert!(error.to_string().contains("store 3: an earlier request"), "{error}");
    bench.quorum.release(&release("a:1")).await.unwrap();
    enters(&bench.quorum, "a:2").await;
    sleep(2 * SECOND).await;
    assert_eq!(owner_at(&bench.stores[2]).await.as_deref(), Some("a:2"));
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_at_any_await_is_undone_by_its_release() {
    for polls in 0..50 {
        let bench = Bench::new(3);
        bench.faults[1].next(Op::Acquire, Fault::Delay(3 * MS));
        bench.faults[2].next(Op::Acquire, Fault::DelayReply(5 * MS));
        let answer = poll_times(polls, bench.quorum.acquire(&request("a:1"))).await;
        bench.quorum.release(&release("a:1")).await.unwrap();
        sleep(SECOND).await;
        assert!(bench.is_free_everywhere().await, "after {polls} polls");
        if answer.is_some() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_without_a_majority_is_undone() {
    let bench = Bench::new(3);
    let named = |id| lockcore::backend::HoldId::named("job", id);
    let ask = |id| AcquireRequest::new(name(), named(id), LEASE);
    let first = bench.quorum.acquire(&ask("c:1")).await.unwrap().token().unwrap();
    for member in [0, 1] {
        bench.faults[member].next(Op::Acquire, Fault::LostRequest);
    }
    bench.quorum.acquire(&ask("c:2")).await.unwrap_err();
    let renewal = RenewRequest::new(name(), named("c:1"), LEASE);
    let renewed = bench.quorum.renew(&[renewal]).await.unwrap();
    assert!(matches!(renewed.as_slice(), [RenewOutcome::Renewed]), "{renewed:?}");
    let second = bench.quorum.acquire(&ask("c:3")).await.unwrap().token().unwrap();
    assert!(second > first);
    assert!(bench.quorum.acquire(&request("d:1")).await.unwrap().token().is_none());
}
