//! The wake-ups of all members are one subscription.

use lockcore::{
    BackendErrorKind, Locks,
    backend::{Backend, SubscribeRequest, Wakeup},
};
use lockcore_testkit::{Fault, Op};
use tokio::time::{Instant, sleep, timeout};

use crate::{Bench, MEMBER_TIMEOUT, MS, SECOND, enters, hold, name, release, request};

fn subscription() -> SubscribeRequest {
    SubscribeRequest::new(name(), hold("w:1"))
}

#[tokio::test(start_paused = true)]
async fn a_majority_wakes_at_once_and_a_minority_a_little_later() {
    let bench = Bench::new(5);
    enters(&bench.quorum, "a:1").await;
    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    bench.quorum.release(&release("a:1")).await.unwrap();
    let start = Instant::now();
    assert_eq!(wakeups.woken().await, Wakeup::Changed);
    assert!(start.elapsed() < MS, "{:?}", start.elapsed());

    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    enters(&bench.stores[3], "b:1").await;
    bench.stores[3].release(&release("b:1")).await.unwrap();
    let start = Instant::now();
    timeout(SECOND, wakeups.woken()).await.unwrap();
    assert!(start.elapsed() <= 50 * MS, "{:?}", start.elapsed());
    assert!(timeout(SECOND, wakeups.woken()).await.is_err(), "it was told twice");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_while_it_gathers_loses_nothing() {
    let bench = Bench::new(3);
    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    enters(&bench.stores[0], "b:1").await;
    bench.stores[0].release(&release("b:1")).await.unwrap();
    assert!(timeout(MS, wakeups.woken()).await.is_err());
    timeout(SECOND, wakeups.woken()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_majority_of_subscriptions_is_enough_and_the_others_follow() {
    let bench = Bench::new(3);
    bench.faults[1].every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    let start = Instant::now();
    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    assert!(start.elapsed() <= 20 * MS, "{:?}", start.elapsed());
    assert!(timeout(SECOND, wakeups.woken()).await.is_err(), "nothing has happened");
    let (failing, well) =
        (bench.faults[1].calls(Op::Subscribe), bench.faults[0].calls(Op::Subscribe));
    assert!((2..=8).contains(&failing), "tried {failing} times");
    assert_eq!(well, 1, "the others are left alone");
    bench.faults[1].heal();
    timeout(2 * SECOND, wakeups.woken()).await.expect("something may have been missed");
    enters(&bench.stores[1], "b:1").await;
    bench.stores[1].release(&release("b:1")).await.unwrap();
    timeout(SECOND, wakeups.woken()).await.expect("it is subscribed there again");
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_of_subscriptions_there_is_an_error_in_time() {
    let bench = Bench::new(3);
    bench.faults[1].every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    bench.faults[2].every(Op::Subscribe, Fault::NeverAnswer);
    let start = Instant::now();
    let error = bench.quorum.subscribe(&subscription()).await.expect_err("two are missing");
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
    assert!(start.elapsed() <= MEMBER_TIMEOUT + 20 * MS, "{:?}", start.elapsed());
    assert_eq!(bench.stores[0].names_in_use(), 0, "the subscription of the first is left");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_subscription_is_gone_at_every_member() {
    let bench = Bench::new(3);
    let wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    let in_use =
        |bench: &Bench| bench.stores.iter().map(|store| store.names_in_use()).sum::<usize>();
    assert_eq!(in_use(&bench), 3);
    drop(wakeups);
    assert_eq!(in_use(&bench), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_costs_no_requests_while_nothing_happens() {
    let bench = Bench::new(3);
    let holder = Locks::new(bench.other());
    let guard = holder.lock("a").acquire().await.unwrap();
    let lock = Locks::new(bench.quorum.clone()).lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    bench.faults[0].reached(Op::Acquire, 2).await;
    sleep(100 * MS).await;
    let before: Vec<_> = bench.faults.iter().map(|faults| faults.all_calls()).collect();
    sleep(9 * SECOND).await;
    for (faults, before) in bench.faults.iter().zip(before) {
        assert!(faults.all_calls() <= before + 1, "{} calls", faults.all_calls() - before);
    }
    let start = Instant::now();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() <= 50 * MS, "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

/// Two askers of one client split the members, and each undoes its part. The part of one is what
/// the other one waits for.
#[tokio::test(start_paused = true)]
async fn what_another_asker_of_the_client_undoes_wakes() {
    let bench = Bench::new(3);
    enters(&bench.stores[2], "dead").await;
    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    let is_refused = async |id: &str| {
        let outcome = bench.quorum.acquire(&request(id)).await.unwrap();
        assert!(outcome.token().is_none(), "{outcome:?}");
    };
    // The waiter has the second member only, and the other one the first.
    enters(&bench.stores[0], "t:1").await;
    is_refused("w:1").await;
    timeout(SECOND, wakeups.woken()).await.expect_err("that was its own undoing");
    bench.stores[0].release(&release("t:1")).await.unwrap();
    enters(&bench.stores[1], "w:1").await;
    is_refused("t:1").await;
    timeout(SECOND, wakeups.woken()).await.expect("the first member is free");
}
