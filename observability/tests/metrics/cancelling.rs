//! Futures that are dropped at every await leave the gauges as they were.

use std::time::Duration;

use lockcore::Locks;
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::time::sleep;

use crate::figures::Figures;

const SECOND: Duration = Duration::from_secs(1);

/// More awaits than an acquisition and a release have.
const POLLS: usize = 12;

#[test]
fn the_gauges_are_right_wherever_an_acquisition_is_dropped() {
    Figures::of(async |figures: Figures| {
        let mut done = 0;
        for polls in 0..POLLS {
            let backend = Faulty::new(MemoryBackend::new());
            let (faults, store) = (backend.faults(), backend.inside().clone());
            let (locks, other) = (Locks::new(backend), Locks::new(store));
            for op in [Op::Acquire, Op::Release, Op::Subscribe] {
                faults.every(op, Fault::Delay(SECOND / 100));
            }
            let held = other.lock("a").acquire().await.unwrap();
            let freed = tokio::spawn(async {
                sleep(SECOND).await;
                held.release().await
            });
            let lock = locks.lock("a");
            let whole = async { lock.acquire_timeout(SECOND * 5).await?.release().await };
            if let Some(finished) = poll_times(polls, whole).await {
                finished.unwrap();
                done += 1;
            }
            freed.await.unwrap().unwrap();
            sleep(SECOND * 2).await;
            figures.assert_at_rest(&format!("dropped after {polls} polls"));
        }
        assert!((1..POLLS).contains(&done), "some were dropped before the end, not all: {done}");
        let cancelled = "lockcore_acquire_seconds{mode=exclusive,outcome=cancelled}";
        assert!(figures.count(cancelled) > 2, "{}", figures.count(cancelled));
    });
}

#[test]
fn a_fair_waiter_leaves_no_trace_either() {
    Figures::of(async |figures: Figures| {
        let store = MemoryBackend::new();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        for polls in 1..6 {
            let held = other.fair_lock("a").acquire().await.unwrap();
            assert!(poll_times(polls, locks.fair_lock("a").acquire()).await.is_none());
            held.release().await.unwrap();
            sleep(SECOND * 2).await;
            figures.assert_at_rest(&format!("dropped after {polls} polls"));
        }
    });
}
