//! `lockcore_backend_seconds`.

use std::time::Duration;

use lockcore::{BackendErrorKind, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::time::sleep;

use crate::figures::Figures;

const SECOND: Duration = Duration::from_secs(1);

fn call(operation: &str, outcome: &str) -> String {
    format!("lockcore_backend_seconds{{operation={operation},outcome={outcome}}}")
}

#[test]
fn every_operation_and_every_answer_has_its_figures() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let (faults, store) = (backend.faults(), backend.inside().clone());
        let (locks, other) = (Locks::new(backend), Locks::new(store));
        for op in [Op::Acquire, Op::Release, Op::Renew, Op::Subscribe, Op::Inspect] {
            faults.every(op, Fault::Delay(SECOND / 1000));
        }
        faults.every(Op::ForceRelease, Fault::Delay(SECOND / 1000));
        let counts = |operation, outcome| figures.count(&call(operation, outcome));
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        figures.settle().await;
        assert_eq!((counts("acquire", "ok"), counts("release", "ok")), (1, 1));

        let guard = locks.lock("a").acquire().await.unwrap();
        sleep(SECOND * 12).await;
        assert_eq!(counts("renew", "ok"), 1);
        locks.lock("a").state().await.unwrap();
        locks.lock("b").force_release().await.unwrap();
        figures.settle().await;
        assert_eq!(counts("inspect", "ok"), 1);
        assert_eq!(counts("force_release", "ok"), 1);

        other.lock("a").force_release().await.unwrap();
        guard.release().await.unwrap_err();
        figures.settle().await;
        assert_eq!(counts("release", "not_held"), 1);

        let guard = other.lock("a").acquire().await.unwrap();
        locks.lock("a").acquire_timeout(SECOND).await.unwrap_err();
        figures.settle().await;
        assert!(counts("acquire", "refused") > 0);
        assert_eq!(counts("subscribe", "ok"), 1);
        drop(guard);

        faults.next(Op::Acquire, Fault::Refuse(BackendErrorKind::Auth));
        locks.lock("c").acquire().await.unwrap_err();
        figures.settle().await;
        assert_eq!(counts("acquire", "error"), 1);
    });
}

#[test]
fn an_answer_takes_as_long_as_it_takes() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::new(backend);
        faults.next(Op::Acquire, Fault::DelayReply(SECOND * 2));
        let guard = locks.lock("a").acquire().await.unwrap();
        figures.settle().await;
        figures.assert_times(&call("acquire", "ok"), &[2.0]);
        let granted = "lockcore_acquire_seconds{mode=exclusive,outcome=granted}";
        figures.assert_times(granted, &[2.0]);
        assert_eq!(figures.sum("lockcore_waiting{mode=exclusive}"), 0.0, "it only asked");
        guard.release().await.unwrap();
    });
}

#[test]
fn what_needs_no_answer_is_not_measured() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        figures.settle().await;
        let is_measured = |key: &String| key.contains("backend") && figures.count(key) > 0;
        assert_eq!(figures.keys().into_iter().find(is_measured), None);
    });
}

#[test]
fn a_call_that_is_given_up_was_not_answered() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::new(backend);
        faults.next(Op::Acquire, Fault::NeverAnswer);
        assert!(poll_times(1, locks.lock("a").acquire()).await.is_none());
        figures.settle().await;
        assert_eq!(figures.count(&call("acquire", "unanswered")), 1);
        // A renewal without an answer is given up when the next one is due.
        let guard = locks.lock("b").acquire().await.unwrap();
        faults.next(Op::Renew, Fault::NeverAnswer);
        sleep(SECOND * 25).await;
        figures.assert_times(&call("renew", "unanswered"), &[10.0]);
        assert!(guard.is_held());
    });
}
