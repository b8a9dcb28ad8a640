//! Members that answer later than a majority also have the hold.

use lockcore::{
    BackendErrorKind, Locks,
    backend::{AcquireOutcome, AcquireRequest, Backend, RenewOutcome},
};
use lockcore_testkit::{Fault, Op};
use tokio::time::{Instant, sleep, timeout};

use crate::{Bench, LEASE, MS, SECOND, enters, hold, name, owner_at, release, renewal, request};

/// Longer than a majority waits for the other members.
const LATE: std::time::Duration = MS.saturating_mul(50);

fn owned_by(id: &str) -> Option<String> {
    Some(id.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_counts_from_then_on() {
    for round in 0..3 {
        let (bench, id) = (Bench::new(3), format!("a:{round}"));
        bench.faults[2].next(Op::Acquire, Fault::Delay(LATE));
        let start = Instant::now();
        enters(&bench.quorum, &id).await;
        assert!(start.elapsed() < LATE, "nobody waits for it");
        sleep(LATE).await;
        assert_eq!(bench.owners().await[2], owned_by(&id));
        // The loss of another member is tolerated.
        bench.faults[round % 2].next(Op::Renew, Fault::Refuse(BackendErrorKind::Connection));
        let renewed = bench.quorum.renew(&[renewal(&id)]).await.unwrap();
        assert!(matches!(renewed[..], [RenewOutcome::Renewed]), "{renewed:?}");
        bench.quorum.release(&release(&id)).await.unwrap();
        assert!(bench.is_free_everywhere().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_does_not_come_after_the_release() {
    for given_back_after in [0, 1, 49, 51] {
        let bench = Bench::new(3);
        bench.faults[2].next(Op::Acquire, Fault::Delay(LATE));
        enters(&bench.quorum, "a:1").await;
        sleep(MS * given_back_after).await;
        bench.quorum.release(&release("a:1")).await.unwrap();
        sleep(SECOND).await;
        assert!(bench.is_free_everywhere().await, "after {given_back_after} ms");
    }
}

/// The undo of an abandoned request may arrive at any time.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_given_up_never_counts() {
    let bench = Bench::new(3);
    bench.faults[2].next(Op::Acquire, Fault::LostReply);
    enters(&bench.quorum, "a:1").await;
    sleep(SECOND).await;
    bench.faults[1].every(Op::Renew, Fault::Refuse(BackendErrorKind::Unavailable));
    let renewed = bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    assert!(matches!(renewed[..], [RenewOutcome::Failed(_)]), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_is_not_given_up() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.faults[2].every(Op::Renew, Fault::Delay(LATE));
    for _ in 0..5 {
        sleep(LEASE / 3).await;
        bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    }
    sleep(LATE).await;
    let state = bench.stores[2].inspect(&name()).await.unwrap();
    assert!(state.remaining() > Some(LEASE - SECOND), "{state:?}");
}

/// One hold is on the members that answer, and the other one needs the silent member.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_renewal_is_undecided_does_not_keep_others_waiting() {
    let bench = Bench::new(3);
    let names = ["x", "y"].map(|name| lockcore::LockName::new(name).unwrap());
    for (name, missing) in names.iter().zip([1, 2]) {
        bench.faults[missing].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
        let request = AcquireRequest::new(name.clone(), hold("a:1"), SECOND);
        bench.quorum.acquire(&request).await.unwrap();
    }
    bench.faults[2].every(Op::Renew, Fault::LostRequest);
    let renewals =
        names.map(|name| lockcore::backend::RenewRequest::new(name, hold("a:1"), SECOND));
    let start = Instant::now();
    let renewed = bench.quorum.renew(&renewals).await.unwrap();
    assert!(start.elapsed() < SECOND / 3, "lockcore gives up then");
    use RenewOutcome::{Failed, Renewed};
    assert!(matches!(renewed[..], [Failed(_), Renewed]), "{renewed:?}");
}

/// The rest of an old request at one member must not keep its waiter out of the others.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_doubt_is_not_shut_out() {
    let bench = Bench::new(3);
    for store in &bench.stores[..2] {
        enters(store, "dead").await;
    }
    bench.faults[2].next(Op::Acquire, Fault::LostRequest);
    let refused = bench.quorum.acquire(&request("a:1")).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    bench.stores[1].release(&release("dead")).await.unwrap();
    let refused = bench.quorum.acquire(&request("a:1")).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "not at once: {refused:?}");
    sleep(6 * SECOND).await;
    // Others enter with the last two members.
    let error = bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error:?}");
    enters(&bench.quorum, "a:2").await;
}

/// The caller is told that something may be left, so that it undoes it.
#[tokio::test(start_paused = true)]
async fn a_refusal_whose_undoing_failed_is_an_error() {
    let bench = Bench::new(3);
    for store in &bench.stores[..2] {
        enters(store, "b:1").await;
    }
    bench.faults[2].next(Op::Release, Fault::Refuse(BackendErrorKind::Connection));
    let error = bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(error.is_retryable() && error.is_outcome_unknown(), "{error:?}");
    bench.quorum.release(&request("a:1").undo()).await.unwrap();
    assert_eq!(bench.owners().await[2], None);
}

#[tokio::test(start_paused = true)]
async fn the_part_of_a_hold_that_is_no_more_was_not_held() {
    let bench = Bench::new(3);
    enters(&bench.stores[1], "dead").await;
    assert!(!bench.quorum.force_release(&name()).await.unwrap());
    assert!(bench.is_free_everywhere().await);
    enters(&bench.quorum, "a:1").await;
    bench.stores[0].force_release(&name()).await.unwrap();
    assert!(bench.quorum.force_release(&name()).await.unwrap());
}

/// A forced release ends whatever hold it meets, which may be the next one.
#[tokio::test(start_paused = true)]
async fn a_forced_release_is_over_when_it_is_answered() {
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    bench.faults[2].next(Op::ForceRelease, Fault::Delay(LATE));
    assert!(bench.quorum.force_release(&name()).await.unwrap());
    enters(&bench.other(), "b:1").await;
    sleep(SECOND).await;
    assert_eq!(bench.owners().await, [(); 3].map(|()| owned_by("b:1")));
}

/// A waiter keeps its hold id when it is refused.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_refused_gets_its_hold_on_a_late_member_too() {
    let slow = [0, 1, 24, 26, 100, 2_000].map(|released_after| (25 * MS, released_after));
    // Three answers in a row take longer than one may take.
    let slower = [0, 100, 199, 201, 2_000].map(|released_after| (400 * MS, released_after));
    for (delay, released_after) in slow.into_iter().chain(slower) {
        let bench = Bench::new(3);
        for op in [Op::Acquire, Op::Release] {
            bench.faults[2].every(op, Fault::Delay(delay));
        }
        enters(&bench.other(), "b:1").await;
        let locks = Locks::new(bench.quorum.clone());
        // From now on, nobody waits for the late member.
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
        let lock = locks.lock("a");
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        bench.faults[0].reached(Op::Acquire, 2).await;
        sleep(MS * released_after).await;
        bench.other().release(&release("b:1")).await.unwrap();
        let guard = timeout(SECOND, waiting).await.expect("it was not woken").unwrap();
        sleep(4 * delay).await;
        let owner = owner_at(&bench.stores[2]).await;
        assert!(owner.is_some(), "after {released_after} ms, the late member has no hold");
        // Now the late member is needed.
        bench.faults[0].every(Op::Renew, Fault::Refuse(BackendErrorKind::Connection));
        sleep(2 * LEASE).await;
        assert!(guard.is_held(), "after {released_after} ms, the late member does not count");
        guard.release().await.unwrap();
        sleep(4 * delay).await;
        assert_eq!(owner_at(&bench.stores[2]).await, None, "after {released_after} ms");
    }
}

/// What a late member grants to a refused request is given back, unless it is asked for again.
#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_nothing_at_a_late_member() {
    for fault in [Fault::Delay(LATE), Fault::DelayReply(LATE), Fault::Delay(SECOND)] {
        let bench = Bench::new(3);
        for store in &bench.stores[..2] {
            enters(store, "b:1").await;
        }
        bench.faults[2].every(Op::Acquire, fault);
        for _ in 0..3 {
            let refused = bench.quorum.acquire(&request("a:1")).await.unwrap();
            assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
        }
        sleep(2 * SECOND).await;
        assert_eq!(owner_at(&bench.stores[2]).await, None, "{fault:?}");
    }
}

/// A late member that the holder could not reach is free, and what it grants is given back. That is
/// no reason to ask again.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_wake_itself_with_what_it_gives_back() {
    let bench = Bench::new(3);
    for store in &bench.stores[..2] {
        enters(store, "b:1").await;
    }
    for op in [Op::Acquire, Op::Release] {
        bench.faults[2].every(op, Fault::Delay(25 * MS));
    }
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (quorum, faults) = crate::client(&bench.stores);
            for op in [Op::Acquire, Op::Release] {
                faults[2].every(op, Fault::Delay(25 * MS));
            }
            let lock = Locks::new(quorum).lock("a");
            (tokio::spawn(async move { lock.acquire().await }), faults)
        })
        .collect();
    sleep(8 * SECOND).await;
    for (waiting, faults) in &waiters {
        let asked = faults[0].calls(Op::Acquire);
        assert!((2..=12).contains(&asked), "asked {asked} times");
        waiting.abort();
    }
}

/// One member has the part of a dead client, and another one is always a little late.
#[tokio::test(start_paused = true)]
async fn a_free_lock_is_granted_in_spite_of_a_stale_part_and_a_late_member() {
    let bench = Bench::new(3);
    enters(&bench.stores[1], "dead").await;
    for op in [Op::Acquire, Op::Release] {
        bench.faults[2].every(op, Fault::Delay(25 * MS));
    }
    let locks = Locks::new(bench.quorum.clone());
    let busy = tokio::spawn({
        let locks = locks.clone();
        async move {
            for number in 0.. {
                let guard = locks.lock(format!("other:{number}")).acquire().await.unwrap();
                guard.release().await.unwrap();
                sleep(50 * MS).await;
            }
        }
    });
    sleep(SECOND).await;
    for round in 0..5 {
        let entering = timeout(2 * SECOND, locks.lock("a").acquire()).await;
        let guard = entering.unwrap_or_else(|_| panic!("round {round}: it is kept out")).unwrap();
        guard.release().await.unwrap();
    }
    busy.abort();
}

/// Members do not answer a request for another name.
async fn leaves_unanswered(bench: &Bench, members: &[usize]) {
    for member in members {
        bench.faults[*member].next(Op::Acquire, Fault::LostRequest);
    }
    let other = lockcore::LockName::new("x").unwrap();
    bench.quorum.acquire(&AcquireRequest::new(other, hold("x:1"), LEASE)).await.unwrap();
}

/// A waiter does not wake itself, and hears of a wake-up by somebody else, also at late members.
async fn waits_quietly_and_hears(bench: &Bench) {
    let lock = Locks::new(bench.quorum.clone()).lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(4 * SECOND).await;
    let asked = bench.faults[0].calls(Op::Acquire);
    assert!(asked <= 6, "it has asked {asked} times");
    assert!(!waiting.is_finished());
    enters(&bench.other(), "b:1").await;
    bench.other().release(&release("b:1")).await.unwrap();
    let guard = timeout(SECOND, waiting).await.expect("it sleeps").unwrap();
    guard.release().await.unwrap();
}

/// The late member's answer comes after the refusal, and with it the lock is free.
#[tokio::test(start_paused = true)]
async fn a_late_grant_that_makes_up_a_majority_is_a_reason_to_ask_again() {
    let bench = Bench::new(3);
    let locks = Locks::new(bench.quorum.clone());
    enters(&bench.stores[0], "dead").await;
    enters(&bench.stores[1], "b:1").await;
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(2 * SECOND).await;
    // This client has had no answer to its last request there.
    leaves_unanswered(&bench, &[2]).await;
    bench.faults[2].next(Op::Acquire, Fault::Delay(100 * MS));
    bench.stores[1].release(&release("b:1")).await.unwrap();
    let guard = timeout(SECOND, waiting).await.expect("it sleeps").unwrap();
    guard.release().await.unwrap();
}

/// The late member's answers come long after it has done what they say.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_wake_itself_with_a_late_member_that_it_needs() {
    let bench = Bench::new(3);
    enters(&bench.stores[1], "dead").await;
    // This client has had no answer to its last request there, and does not wait for the next one.
    leaves_unanswered(&bench, &[2]).await;
    for op in [Op::Acquire, Op::Release] {
        bench.faults[2].every(op, Fault::DelayReply(300 * MS));
    }
    waits_quietly_and_hears(&bench).await;
}

/// Each of two late members is needed, and neither is enough.
#[tokio::test(start_paused = true)]
async fn a_waiter_hears_of_a_release_at_two_late_members_that_it_needs() {
    let bench = Bench::new(5);
    for stale in [1, 4] {
        enters(&bench.stores[stale], "dead").await;
    }
    leaves_unanswered(&bench, &[2, 3]).await;
    for late in [2, 3] {
        for op in [Op::Acquire, Op::Release] {
            bench.faults[late].every(op, Fault::DelayReply(300 * MS));
        }
    }
    waits_quietly_and_hears(&bench).await;
}

/// Nobody waits for a late member that could not change the answer.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_majority_comes_at_once() {
    let bench = Bench::new(3);
    enters(&bench.other(), "b:1").await;
    bench.faults[2].every(Op::Acquire, Fault::NeverAnswer);
    for attempt in 0..100 {
        let start = Instant::now();
        let refused = bench.quorum.acquire(&request(&format!("a:{attempt}"))).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
        assert!(start.elapsed() <= 12 * MS, "attempt {attempt}: {:?}", start.elapsed());
        sleep(100 * MS).await;
    }
}

/// A member that was stopped while a waiter asked counts for it again later.
#[tokio::test(start_paused = true)]
async fn a_waiter_gets_its_hold_on_a_member_that_has_come_back_meanwhile() {
    let bench = Bench::new(3);
    let holder = Locks::new(bench.other());
    let held = holder.lock("a").acquire().await.unwrap();
    for op in [Op::Acquire, Op::Release, Op::Renew] {
        bench.faults[2].every(op, Fault::NeverAnswer);
    }
    let lock = Locks::new(bench.quorum.clone()).lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(60 * SECOND).await;
    let asked = bench.faults[0].calls(Op::Acquire);
    assert!(asked <= 10, "it has asked {asked} times while the member was away");
    bench.faults[2].heal();
    sleep(40 * SECOND).await;
    held.release().await.unwrap();
    let guard = timeout(SECOND, waiting).await.expect("it was not woken").unwrap();
    sleep(100 * MS).await;
    assert!(owner_at(&bench.stores[2]).await.is_some(), "the member that was away has no hold");
    guard.release().await.unwrap();
}
