//! Members that answer later than a majority also have the hold.

use lockcore::{
    BackendErrorKind,
    backend::{AcquireOutcome, AcquireRequest, Backend, RenewOutcome},
};
use lockcore_testkit::{Fault, Op};
use tokio::time::{Instant, sleep};

use crate::{Bench, MS, SECOND, enters, hold, name, release, renewal, request};

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
        sleep(crate::LEASE / 3).await;
        bench.quorum.renew(&[renewal("a:1")]).await.unwrap();
    }
    sleep(LATE).await;
    let state = bench.stores[2].inspect(&name()).await.unwrap();
    assert!(state.remaining() > Some(crate::LEASE - SECOND), "{state:?}");
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
