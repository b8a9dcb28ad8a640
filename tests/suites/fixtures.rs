//! A fixture is dropped after its case.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicUsize, Ordering},
};

use lockcore::LockName;
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fixture, run_case, run_case_paused};

/// The number of fixtures that each test has dropped.
static DROPPED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

struct Watched<const TEST: usize>;

impl<const TEST: usize> Fixture for Watched<TEST> {
    type Backend = MemoryBackend;

    async fn set_up() -> Self {
        Self
    }

    async fn client(&self) -> MemoryBackend {
        MemoryBackend::new()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        Vec::new()
    }
}

impl<const TEST: usize> Drop for Watched<TEST> {
    fn drop(&mut self) {
        DROPPED[TEST].fetch_add(1, Ordering::SeqCst);
    }
}

fn dropped(test: usize) -> usize {
    DROPPED[test].load(Ordering::SeqCst)
}

#[test]
fn a_fixture_is_dropped_after_a_case_that_passes() {
    run_case::<Watched<0>>(async |_| assert_eq!(dropped(0), 0));
    assert_eq!(dropped(0), 1);
    run_case_paused::<Watched<0>>(async |_| assert_eq!(dropped(0), 1));
    assert_eq!(dropped(0), 2);
}

#[test]
fn a_fixture_is_dropped_after_a_case_that_panics() {
    let fails = async |_: &Watched<1>| {
        resume_unwind(Box::new(()));
    };
    assert!(catch_unwind(AssertUnwindSafe(|| run_case(fails))).is_err());
    assert_eq!(dropped(1), 1);
    assert!(catch_unwind(AssertUnwindSafe(|| run_case_paused(fails))).is_err());
    assert_eq!(dropped(1), 2);
}
