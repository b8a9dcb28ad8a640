//! Every poll checks the deadline first: the lease may have ended while the host was suspended.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lockcore::{Clock, LockError, Locks, LossReason};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::poll_times;
use tokio::sync::Notify;

use super::{MS, SECOND, clock, within};

/// Longer than any lease, in seconds.
const LONG_SLEEP: u64 = 3600;

fn client(clock: Clock) -> Locks {
    Locks::builder(MemoryBackend::new()).clock(clock).build().unwrap()
}

/// A body that waits and then continues.
#[derive(Default)]
struct Body {
    waits: Notify,
    go: Notify,
    went_on: AtomicBool,
}

impl Body {
    async fn run(&self) {
        self.waits.notify_one();
        self.go.notified().await;
        self.went_on.store(true, Ordering::SeqCst);
    }

    /// Suspends the host for longer than the lease while the body waits, and then wakes the body
    /// before the background task runs.
    async fn sleeps_through<T: std::fmt::Debug>(
        &self,
        run: impl Future<Output = Result<T, LockError>>,
        asleep: &AtomicU64,
    ) {
        let sleeps = async {
            self.waits.notified().await;
            // The background task checks now, and then not for another second.
            tokio::time::sleep(MS).await;
            asleep.store(LONG_SLEEP, Ordering::SeqCst);
            self.go.notify_one();
        };
        let both = async { tokio::join!(run, sleeps).0 };
        let result = within(SECOND, "the end of `run`", both).await;
        assert!(!self.went_on.load(Ordering::SeqCst), "the body went on after the lease");
        assert!(
            matches!(result, Err(LockError::Lost { reason: LossReason::LeaseEnded, .. })),
            "{result:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn run_does_not_poll_its_body_after_a_suspension_that_was_longer_than_the_lease() {
    let ((clock, asleep), body) = (clock(), Body::default());
    let lock = client(clock).lock("a");
    body.sleeps_through(lock.run(async |_| body.run().await), &asleep).await;
}

#[tokio::test(start_paused = true)]
async fn run_boxed_does_not_poll_its_body_after_a_suspension_either() {
    let ((clock, asleep), body) = (clock(), Arc::new(Body::default()));
    let lock = client(clock).lock("a");
    let run = lock.run_boxed({
        let body = body.clone();
        move |_| Box::pin(async move { body.run().await })
    });
    body.sleeps_through(run, &asleep).await;
}

#[tokio::test(start_paused = true)]
async fn run_of_a_multi_lock_does_not_poll_its_body_after_a_suspension_either() {
    let ((clock, asleep), body) = (clock(), Body::default());
    let lock = client(clock).multi_lock(["a", "b"]);
    body.sleeps_through(lock.run(async |_| body.run().await), &asleep).await;
}

/// Polls `watching` once before and once after a suspension, and returns its output.
async fn watches_through<T>(watching: impl Future<Output = T>, asleep: &AtomicU64) -> T {
    let mut watching = pin!(watching);
    assert!(poll_times(1, watching.as_mut()).await.is_none(), "it is held");
    tokio::time::sleep(MS).await;
    asleep.store(LONG_SLEEP, Ordering::SeqCst);
    let told = poll_times(1, watching.as_mut()).await;
    told.expect("the lease has ended, but the future is pending")
}

#[tokio::test(start_paused = true)]
async fn a_pending_lost_is_ready_when_it_is_polled_after_a_suspension() {
    let (clock, asleep) = clock();
    let guard = client(clock).lock("a").acquire().await.unwrap();
    assert_eq!(watches_through(guard.lost(), &asleep).await, LossReason::LeaseEnded);
}

#[tokio::test(start_paused = true)]
async fn a_pending_ended_is_ready_when_it_is_polled_after_a_suspension() {
    let (clock, asleep) = clock();
    let guard = client(clock).lock("a").acquire().await.unwrap();
    let loss = watches_through(guard.ended(), &asleep).await;
    assert_eq!(loss.expect("it was no normal end"), LossReason::LeaseEnded);
}

#[tokio::test(start_paused = true)]
async fn a_pending_lost_of_a_multi_guard_is_ready_when_it_is_polled_after_a_suspension() {
    let (clock, asleep) = clock();
    let guard = client(clock).multi_lock(["a", "b"]).acquire().await.unwrap();
    assert_eq!(watches_through(guard.lost(), &asleep).await, LossReason::LeaseEnded);
}
