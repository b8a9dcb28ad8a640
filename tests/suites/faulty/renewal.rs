//! Renewals.

use std::{pin::pin, time::Duration};

use lockcore::{BackendErrorKind, LockError, LockGuard, LossReason};
use lockcore_testkit::{Fault, Op};
use tokio::time::timeout;

use super::bench::{AT_ONCE, Bench, LEASE, SECOND, took};

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
