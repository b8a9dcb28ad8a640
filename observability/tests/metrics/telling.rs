//! When the recorder is told of what happens often.

use std::time::Duration;

use lockcore::{Locks, Owner};
use lockcore_memory::MemoryBackend;
use tokio::time::sleep;

use crate::figures::Figures;

const GRANTED: &str = "lockcore_acquire_seconds{mode=exclusive,outcome=granted}";
const NESTED: &str = "lockcore_acquire_seconds{mode=exclusive,outcome=nested}";
const HELD: &str = "lockcore_held{mode=exclusive}";

#[test]
fn a_figure_is_no_older_than_a_second() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        for number in 1..=3 {
            sleep(Duration::from_secs(20)).await;
            let guard = locks.lock("a").acquire().await.unwrap();
            assert_eq!(figures.sum(HELD), 0.0);
            sleep(Duration::from_millis(1002)).await;
            assert_eq!((figures.sum(HELD), figures.count(GRANTED)), (1.0, number));
            drop(guard);
        }
    });
}

#[test]
fn a_client_that_is_closed_or_dropped_leaves_nothing_untold() {
    Figures::of(async |figures: Figures| {
        let closed = Locks::new(MemoryBackend::new());
        let guard = closed.lock("a").acquire().await.unwrap();
        closed.close().await.unwrap();
        assert_eq!(figures.count(GRANTED), 1);
        drop(guard);
        let dropped = Locks::new(MemoryBackend::new());
        dropped.lock("a").acquire().await.unwrap().release().await.unwrap();
        drop(dropped);
        assert_eq!(figures.count(GRANTED), 2);
        figures.assert_at_rest("all clients are gone");
    });
}

#[test]
fn many_events_are_told_before_the_second_is_over() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::new(MemoryBackend::new());
        let lock = locks.lock("a").owned_by(&Owner::new());
        let _outer = lock.acquire().await.unwrap();
        for _ in 0..9000 {
            drop(lock.acquire().await.unwrap());
        }
        // The clock stands still while the recorder is told.
        sleep(Duration::from_millis(2)).await;
        assert!(figures.count(NESTED) > 8000, "{}", figures.count(NESTED));
    });
}

#[test]
fn without_a_background_task_everything_is_told_at_once() {
    let figures = Figures::default();
    let locks = metrics::with_local_recorder(&figures, || Locks::new(MemoryBackend::new()));
    let lock = locks.lock("a").lease(Duration::from_secs(60));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&figures, || {
        let guard = runtime().block_on(lock.acquire()).unwrap();
        // Its runtime is gone, and with it the background task.
        drop(guard);
        assert_eq!((figures.count(GRANTED), figures.count(HELD)), (1, 0));
        figures.assert_at_rest("the guard is gone");
    });
}
