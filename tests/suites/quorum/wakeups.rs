//! The wake-ups of all members are one subscription.

use lockcore::{
    BackendErrorKind, Locks,
    backend::{Backend, SubscribeRequest, Wakeup},
};
use lockcore_testkit::{Fault, Op, RedisServer};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    Bench, MEMBER_TIMEOUT, MS, SECOND, enters, hold, name, release, request,
    servers::{quorum, servers},
    waiting::{soon, until},
};

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

/// A store may well take requests while it takes no subscriptions.
#[tokio::test(start_paused = true)]
async fn a_failed_subscription_keeps_no_member_out() {
    let bench = Bench::new(3);
    bench.faults[2].every(Op::Subscribe, Fault::Refuse(BackendErrorKind::Connection));
    enters(&bench.other(), "b:1").await;
    let locks = Locks::new(bench.quorum.clone());
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    for number in 0..31 {
        sleep(SECOND).await;
        let guard = locks.lock(format!("x:{number}")).acquire().await.unwrap();
        guard.release().await.unwrap();
        bench.other().renew(&[crate::renewal("b:1")]).await.unwrap();
    }
    bench.faults[1].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let entering = timeout(SECOND, locks.lock("y").acquire()).await;
    entering.expect("it is kept out").unwrap().release().await.unwrap();
    waiting.abort();
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
    // Without records: the calls are counted.
    let holder = Locks::builder(bench.other()).description(None).build().unwrap();
    let guard = holder.lock("a").acquire().await.unwrap();
    let waiter = Locks::builder(bench.quorum.clone()).description(None).build().unwrap();
    let lock = waiter.lock("a");
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

/// Two requests of one client split the members, and each undoes its part. Each waits for the
/// other's part.
#[tokio::test(start_paused = true)]
async fn what_another_asker_of_the_client_undoes_wakes() {
    let bench = Bench::new(3);
    enters(&bench.stores[2], "dead").await;
    let mut wakeups = bench.quorum.subscribe(&subscription()).await.unwrap();
    let is_refused = async |id: &str| {
        let outcome = bench.quorum.acquire(&request(id)).await.unwrap();
        assert!(outcome.token().is_none(), "{outcome:?}");
    };
    // The waiter has only the second member, and the other request the first.
    enters(&bench.stores[0], "t:1").await;
    is_refused("w:1").await;
    timeout(SECOND, wakeups.woken()).await.expect_err("that was its own undoing");
    bench.stores[0].release(&release("t:1")).await.unwrap();
    enters(&bench.stores[1], "w:1").await;
    is_refused("t:1").await;
    timeout(SECOND, wakeups.woken()).await.expect("the first member is free");
}

/// The number of clients subscribed to the lock at each server.
pub(crate) async fn subscribers(servers: &[RedisServer]) -> Vec<usize> {
    let mut subscribers = Vec::new();
    for server in servers {
        let channel = "redisson_lock__channel:{a}";
        let (_, count): (String, usize) = server.query(&["PUBSUB", "NUMSUB", channel]).await;
        subscribers.push(count);
    }
    subscribers
}

/// The number of commands that the clients of locks have sent to all servers.
pub(crate) async fn commands(servers: &[RedisServer]) -> u64 {
    let mut commands = 0;
    for server in servers {
        commands += server.client_commands().await + server.calls_of("restore").await;
    }
    commands
}

/// A thousand waiters of four clients, for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    const CLIENTS: usize = 4;
    const WAITERS: usize = 250;
    const MEMBERS: u64 = 3;
    // Each connection for wake-ups is checked every five seconds, and the holder renews.
    const KEEPING: u64 = MEMBERS * (3 * CLIENTS as u64 + 2);
    let servers = servers::<{ MEMBERS as usize }>();
    let holder = Locks::new(quorum(&servers, SECOND).await);
    let guard = holder.lock("a").acquire().await.unwrap();
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        let locks = Locks::new(quorum(&servers, SECOND).await);
        for _ in 0..WAITERS {
            let lock = locks.lock("a");
            waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        clients.push(locks);
    }
    let all_wait = async || {
        let subscribers = subscribers(&servers).await;
        subscribers.iter().all(|count| *count == CLIENTS)
    };
    until("all clients to wait", all_wait).await;
    // The initial requests are over.
    sleep(2 * SECOND).await;
    let before = commands(&servers).await;
    sleep(10 * SECOND).await;
    let spent = commands(&servers).await - before;
    assert!(spent <= 100 + KEEPING, "{spent} commands in 10 s");
    until("all clients to be waiting still", all_wait).await;
    guard.release().await.unwrap();
    while let Some(waiter) = soon("everybody's turn", waiting.join_next()).await {
        waiter.unwrap();
    }
}
