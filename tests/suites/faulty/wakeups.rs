//! Wake-ups that are late or lost.

use std::{future::Future, time::Duration};

use lockcore_testkit::{Fault, Op};

use super::bench::{Bench, SECOND, took};

/// Lets a waiter at the faulty client lose the wake-up of a release after a second, as `bench`
/// specifies. Returns when the waiter entered.
async fn waits_past_a_lost_wakeup(
    bench: &Bench,
    lease: Duration,
    meanwhile: impl Future,
) -> Duration {
    let held = bench.sound.lock("a").lease(lease).acquire().await.unwrap();
    let released = async {
        tokio::time::sleep(SECOND).await;
        held.release().await.unwrap();
        meanwhile.await;
    };
    let (guard, waited) =
        took(async { tokio::join!(bench.faulty.lock("a").acquire(), released).0 }).await;
    guard.unwrap().release().await.unwrap();
    bench.is_free_within(Duration::ZERO, "a lost wake-up").await;
    waited
}

#[tokio::test(start_paused = true)]
async fn a_lost_wakeup_costs_no_more_than_the_rest_of_the_holders_lease() {
    let bench = Bench::new();
    bench.faults.every(Op::Woken, Fault::LostReply);
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, async {}).await;
    assert!((10 * SECOND..10 * SECOND + SECOND / 10).contains(&waited), "entered after {waited:?}");
    assert!(
        bench.faults.calls(Op::Acquire) <= 3,
        "it does not poll: {}",
        bench.faults.calls(Op::Acquire)
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_wakeup_is_a_wakeup() {
    let bench = Bench::with(Op::Woken, Some(Fault::Delay(2 * SECOND)));
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, async {}).await;
    assert!((3 * SECOND..4 * SECOND).contains(&waited), "entered after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_interruption_wakes_whoever_may_have_missed_a_release() {
    let bench = Bench::new();
    bench.faults.interrupt_subscriptions();
    let mends = async {
        tokio::time::sleep(2 * SECOND).await;
        bench.faults.restore_subscriptions();
    };
    let waited = waits_past_a_lost_wakeup(&bench, 10 * SECOND, mends).await;
    assert!((3 * SECOND..3 * SECOND + SECOND / 10).contains(&waited), "entered after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_tasks_of_one_client_make_one_subscription() {
    let bench = Bench::new();
    let held = bench.sound.lock("a").acquire().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let acquire = bench.faulty.lock("a").acquire();
        tasks.spawn(async { acquire.await.unwrap().release().await.unwrap() });
    }
    tokio::time::sleep(4 * SECOND).await;
    assert_eq!(bench.faults.calls(Op::Subscribe), 1);
    assert!(bench.faults.all_calls() <= 8, "{} calls while they wait", bench.faults.all_calls());
    held.release().await.unwrap();
    tasks.join_all().await;
    bench.is_free_within(Duration::ZERO, "after the last waiter").await;
}
