//! `lockcore_acquire_seconds`, `lockcore_waiting` and `lockcore_wakeups_total`.

use std::time::Duration;

use lockcore::{BackendErrorKind, LockError, Locks, Mode, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::time::sleep;

use crate::figures::Figures;

const SECOND: Duration = Duration::from_secs(1);

fn acquired(mode: &str, outcome: &str) -> String {
    format!("lockcore_acquire_seconds{{mode={mode},outcome={outcome}}}")
}

#[test]
fn a_free_lock_is_granted_and_its_owner_nests() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        let lock = locks.lock("a").owned_by(&Owner::new());
        let outer = lock.acquire().await.unwrap();
        figures.settle().await;
        assert_eq!(figures.values(&acquired("exclusive", "granted")), [0.0]);
        let inner = lock.acquire_timeout(SECOND).await.unwrap();
        figures.settle().await;
        assert_eq!(figures.values(&acquired("exclusive", "nested")), [0.0]);
        drop(inner);
        // A nested acquisition that needs a longer lease.
        let longer = lock.clone().lease(SECOND * 3600).acquire().await.unwrap();
        drop((longer, outer));
        figures.settle().await;
        assert_eq!(figures.count(&acquired("exclusive", "nested")), 2);
        assert_eq!(figures.count(&acquired("exclusive", "granted")), 1);
    });
}

#[test]
fn a_nested_acquisition_takes_as_long_as_the_backend() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::new(backend);
        let lock = locks.lock("a").owned_by(&Owner::new());
        let _outer = lock.acquire().await.unwrap();
        for operation in [Op::Acquire, Op::Renew] {
            faults.every(operation, Fault::Delay(SECOND * 2));
        }
        let _inner = lock.clone().lease(SECOND * 3600).acquire().await.unwrap();
        let longer = lock.clone().lease(SECOND * 7200).acquire();
        tokio::time::timeout(SECOND, longer).await.unwrap_err();
        figures.settle().await;
        figures.assert_times(&acquired("exclusive", "nested"), &[2.0]);
        figures.assert_times(&acquired("exclusive", "cancelled"), &[1.0]);
    });
}

#[test]
fn each_mode_has_its_own_figures() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        drop(locks.fair_lock("fair").acquire().await.unwrap());
        locks.rw_lock("rw").write().acquire().await.unwrap().release().await.unwrap();
        locks.rw_lock("rw").read().acquire().await.unwrap().release().await.unwrap();
        drop(locks.semaphore("permits", 3).acquire().await.unwrap());
        figures.settle().await;
        for mode in ["fair", "write", "read", "permit"] {
            assert_eq!(figures.count(&acquired(mode, "granted")), 1, "{mode}");
        }
        let keys = figures.keys();
        let unused = keys.iter().find(|key| key.contains("exclusive"));
        assert_eq!(unused, None, "a mode that is not used has no metrics");
    });
}

#[test]
fn a_reader_inside_its_own_write_lock_is_granted() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        let (owner, lock) = (Owner::new(), locks.rw_lock("rw"));
        let write = lock.write().owned_by(&owner).acquire().await.unwrap();
        let read = lock.read().owned_by(&owner).acquire().await.unwrap();
        assert_eq!(read.mode(), Mode::Read);
        figures.settle().await;
        assert_eq!(figures.count(&acquired("read", "granted")), 1);
        assert_eq!(figures.sum("lockcore_held{mode=read}"), 1.0);
        drop((write, read));
        figures.settle().await;
        figures.assert_at_rest("both guards are gone");
    });
}

#[test]
fn a_task_that_waits_is_counted_until_the_lock_is_handed_over() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        let guard = locks.lock("a").acquire().await.unwrap();
        let [first, second] = [(); 2].map(|()| tokio::spawn(locks.lock("a").acquire()));
        sleep(SECOND * 2).await;
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 2.0);
        drop(guard);
        // It asks for several tokens, because of the other waiter.
        drop(first.await.unwrap().unwrap());
        let guard = second.await.unwrap().unwrap();
        figures.settle().await;
        assert_eq!(figures.count(&acquired("exclusive", "granted")), 2);
        figures.assert_times(&acquired("exclusive", "handed_over"), &[2.0]);
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 0.0);
        assert_eq!(figures.sum("lockcore_held{mode=exclusive}"), 1.0, "not two");
        drop(guard);
        figures.settle().await;
        figures.assert_at_rest("the last guard is gone");
    });
}

#[test]
fn an_attempt_is_refused_and_a_time_out_is_one() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        let _guard = other.lock("a").acquire().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        figures.settle().await;
        assert_eq!(figures.count(&acquired("exclusive", "refused")), 1);
        let error = locks.lock("a").acquire_timeout(SECOND * 2).await.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        figures.settle().await;
        figures.assert_times(&acquired("exclusive", "timeout"), &[2.0]);
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 0.0);
    });
}

#[test]
fn an_error_is_one() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::new(backend);
        faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Auth));
        locks.lock("a").acquire().await.unwrap_err();
        figures.settle().await;
        assert_eq!(figures.count(&acquired("exclusive", "error")), 1);
        figures.assert_at_rest("the acquisition failed");
    });
}

#[test]
fn a_waiter_that_is_dropped_is_cancelled() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        let guard = other.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock("a").acquire());
        sleep(SECOND * 2).await;
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 1.0);
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        figures.settle().await;
        figures.assert_times(&acquired("exclusive", "cancelled"), &[2.0]);
        drop(guard);
        figures.settle().await;
        figures.assert_at_rest("the waiter was dropped");
        // An acquisition that was never polled has not begun.
        assert!(poll_times(0, locks.lock("a").acquire()).await.is_none());
        figures.settle().await;
        assert_eq!(figures.count(&acquired("exclusive", "cancelled")), 1);
    });
}

#[test]
fn a_wake_up_is_useful_if_the_lock_was_free() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let [holder, one, two] = [(); 3].map(|()| Locks::new(store.clone()));
        let guard = holder.lock("a").acquire().await.unwrap();
        let first = tokio::spawn(one.lock("a").acquire());
        sleep(SECOND).await;
        let second = tokio::spawn(two.lock("a").acquire());
        sleep(SECOND).await;
        guard.release().await.unwrap();
        // One of the two gets it, and the other one was woken in vain.
        sleep(SECOND).await;
        assert_eq!(figures.sum("lockcore_wakeups_total{outcome=useful}"), 1.0);
        assert_eq!(figures.sum("lockcore_wakeups_total{outcome=spurious}"), 1.0);
        let (first, second) =
            tokio::join!(async { first.await.unwrap().unwrap().release().await }, async {
                second.await.unwrap().unwrap().release().await
            },);
        first.and(second).unwrap();
        assert_eq!(figures.sum("lockcore_wakeups_total{outcome=useful}"), 2.0);
        figures.settle().await;
        figures.assert_at_rest("both had it");
    });
}
