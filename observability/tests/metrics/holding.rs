//! `lockcore_hold_seconds`, `lockcore_held`, `lockcore_lost_total`, `lockcore_renewals_total` and
//! `lockcore_deadline_margin_ratio`.

use std::time::Duration;

use lockcore::{BackendErrorKind, Locks, LossReason};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use tokio::time::sleep;

use crate::figures::Figures;

const SECOND: Duration = Duration::from_secs(1);
const HELD: &str = "lockcore_held{mode=exclusive}";
const MARGIN: &str = "lockcore_deadline_margin_ratio{}";

fn held(outcome: &str) -> String {
    format!("lockcore_hold_seconds{{mode=exclusive,outcome={outcome}}}")
}

fn lost(reason: &str) -> String {
    format!("lockcore_lost_total{{reason={reason}}}")
}

fn renewals(figures: &Figures) -> [f64; 3] {
    ["renewed", "gone", "failed"]
        .map(|outcome| figures.sum(&format!("lockcore_renewals_total{{outcome={outcome}}}")))
}

#[test]
fn a_hold_is_counted_from_its_first_guard_to_its_last() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        let lock = locks.lock("a");
        lock.run(async |_| {
            let nested = lock.acquire().await.unwrap();
            figures.settle().await;
            assert_eq!(figures.sum(HELD), 1.0, "two guards are one hold");
            nested.release().await.unwrap();
            sleep(SECOND * 2).await;
            assert_eq!(figures.count(&held("released")), 0);
        })
        .await
        .unwrap();
        figures.settle().await;
        figures.assert_times(&held("released"), &[3.0]);
        drop(lock.acquire().await.unwrap());
        figures.settle().await;
        assert_eq!(figures.count(&held("released")), 2);
        figures.assert_at_rest("all guards are gone");
    });
}

#[test]
fn a_lease_that_ends_is_a_loss_once() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        for looks_before in [true, false] {
            let before = figures.count(&held("lost"));
            let guard = locks.lock("a").lease(SECOND).acquire().await.unwrap();
            // The clock advances, and nothing runs meanwhile.
            tokio::time::advance(SECOND * 2).await;
            if looks_before {
                assert!(!guard.is_held());
            }
            drop(guard);
            figures.settle().await;
            assert_eq!(figures.count(&held("lost")), before + 1, "{looks_before}");
            figures.assert_at_rest("the hold was lost");
        }
        assert_eq!(figures.sum(&lost("lease_ended")), 2.0);
        assert_eq!(figures.count(&held("released")), 0);
    });
}

#[test]
fn a_hold_that_the_store_has_lost_is_gone() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, operator) = (Locks::new(store.clone()), Locks::new(store));
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(operator.lock("a").force_release().await.unwrap());
        assert_eq!(guard.lost().await, LossReason::Gone);
        assert_eq!((figures.sum(&lost("gone")), figures.sum(&lost("lease_ended"))), (1.0, 0.0));
        assert_eq!(renewals(&figures), [0.0, 1.0, 0.0]);
        figures.settle().await;
        assert_eq!(figures.count(&held("lost")), 1);
        assert_eq!(figures.sum(HELD), 0.0, "a guard of a lost hold holds nothing");
        drop(guard);
        figures.settle().await;
        figures.assert_at_rest("the guard is gone as well");
    });
}

#[test]
fn the_margin_falls_before_a_lock_is_lost() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::builder(backend).lease(SECOND * 30).build().unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        sleep(SECOND * 25).await;
        assert_eq!(renewals(&figures), [2.0, 0.0, 0.0]);
        let healthy = figures.values(MARGIN);
        assert!(healthy.iter().all(|margin| (0.6..0.7).contains(margin)), "{healthy:?}");
        faults.every(Op::Renew, Fault::Refuse(BackendErrorKind::Unavailable));
        assert_eq!(guard.lost().await, LossReason::LeaseEnded);
        let margins = figures.values(MARGIN);
        assert!(margins[healthy.len()..].is_sorted_by(|one, next| one >= next), "{margins:?}");
        assert!(margins.last().is_some_and(|margin| *margin < 0.05), "{margins:?}");
        assert!(renewals(&figures)[2] > 5.0, "{:?}", renewals(&figures));
        assert_eq!(figures.sum(&lost("lease_ended")), 1.0);
        figures.settle().await;
        figures.assert_at_rest("the hold was lost");
        drop(guard);
    });
}

/// Few calls fail while a server hangs, so `LockcoreRenewalsFailing` looks for losses as well.
#[test]
fn a_server_that_hangs_until_a_lease_has_ended_is_a_failed_renewal_and_a_loss() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::builder(backend).lease(SECOND * 10).build().unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        faults.every(Op::Renew, Fault::NeverAnswer);
        assert_eq!(guard.lost().await, LossReason::LeaseEnded);
        drop(guard);
        assert!((1.0..5.0).contains(&renewals(&figures)[2]), "{:?}", renewals(&figures));
        assert_eq!(figures.sum(&lost("lease_ended")), 1.0);
    });
}

#[test]
fn a_hold_that_settles_says_nothing_of_the_margin() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        let guard = other.fair_lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(locks.fair_lock("a").acquire());
        sleep(SECOND).await;
        guard.release().await.unwrap();
        // It was granted without a request, for less than its lease.
        let guard = waiter.await.unwrap().unwrap();
        sleep(SECOND).await;
        assert_eq!((renewals(&figures)[0], figures.count(MARGIN)), (1.0, 0));
        sleep(SECOND * 11).await;
        let [margin] = figures.values(MARGIN)[..] else { panic!("not once") };
        assert!((0.6..0.7).contains(&margin), "{margin}");
        assert!(guard.is_held());
    });
}

#[test]
fn closing_ends_every_hold_once() {
    Figures::of(async |figures: Figures| {
        for abandons in [false, true] {
            let before = figures.count(&held("closed"));
            let locks = Locks::new(MemoryBackend::new());
            let kept = locks.lock("a").acquire().await.unwrap();
            let lost = locks.lock("b").lease(SECOND).acquire().await.unwrap();
            drop(locks.lock("c").acquire().await.unwrap());
            sleep(SECOND * 2).await;
            assert!(!lost.is_held());
            match abandons {
                true => locks.abandon(),
                false => locks.close().await.unwrap(),
            }
            assert_eq!(figures.count(&held("closed")), before + 1, "abandoned: {abandons}");
            figures.assert_at_rest("closed");
            drop((kept, lost));
            figures.assert_at_rest("closed, and the guards are gone");
        }
        assert_eq!(figures.sum(&lost("closed")), 2.0);
        assert_eq!(figures.sum(&lost("lease_ended")), 2.0);
    });
}

#[test]
fn closing_ends_the_waiting() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        let _guard = other.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock("a").acquire());
        sleep(SECOND * 2).await;
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 1.0);
        locks.close().await.unwrap();
        waiter.await.unwrap().unwrap_err();
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 0.0);
        assert_eq!(figures.count("lockcore_acquire_seconds{mode=exclusive,outcome=error}"), 1);
    });
}

#[test]
fn a_kept_lock_is_held_by_nobody() {
    Figures::of(async |figures: Figures| {
        let builder = Locks::builder(MemoryBackend::new()).linger(SECOND / 50);
        let locks = builder.build().unwrap();
        drop(locks.lock("a").acquire().await.unwrap());
        drop(locks.lock("a").acquire().await.unwrap());
        // It is kept still, and nothing that is held is closed.
        locks.close().await.unwrap();
        figures.assert_at_rest("closed");
        let handed_over = "lockcore_acquire_seconds{mode=exclusive,outcome=handed_over}";
        assert_eq!(figures.count(handed_over), 1);
        assert_eq!(figures.count(&held("released")), 2);
        assert_eq!(figures.count(&held("closed")), 0);
    });
}
