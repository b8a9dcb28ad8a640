//! Futures that are dropped: at each await, with each fault of their requests.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockGuard, Owner};
use lockcore_testkit::{Fault, Op, poll_times};
use tokio::time::timeout;

use super::bench::{ALL, AT_ONCE, Bench, LEASE, SECOND, dropped_after_each_poll};

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
