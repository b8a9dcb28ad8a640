//! The fair lock on Redis: first come, first served, across clients.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockcore::{
    LockError, Locks, Mode,
    backend::{Backend, SubscribeRequest},
};
use lockcore_testkit::{RedisServer, poll_times};

use crate::{
    steps::{LEASE, enters, hold, refused_for, releases, request},
    support::{assert_nothing_left, builder, connect, locks, soon, until},
};

const QUEUE: &str = "redisson_lock_queue:{fair}";

/// Waits until the queue has `count` waiters.
async fn queued(server: &RedisServer, count: i64) {
    until("a place in the queue", || async {
        server.query::<i64>(&["LLEN", QUEUE]).await == count
    })
    .await;
}

#[tokio::test]
async fn eight_waiters_of_leases_that_nobody_releases_enter_in_exact_order() {
    let server = RedisServer::start();
    let clients = [locks(&server).await, locks(&server).await];
    let lease = Duration::from_millis(300);
    let held = clients[0].fair_lock("fair").acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (lock, order) = (clients[number % 2].fair_lock("fair").lease(lease), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push((number, guard.token()));
            // Nobody releases: the next waiter enters when the lease ends.
            guard.lost().await;
            std::mem::forget(guard);
        }));
        queued(&server, number as i64 + 1).await;
    }
    held.release().await.unwrap();
    for task in tasks {
        soon("each turn", task).await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert!(order.iter().map(|(number, _)| *number).eq(0..8), "{order:?}");
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "{order:?}");
}

#[tokio::test]
async fn cancelled_and_crashed_waiters_keep_the_others_no_longer_than_their_time() {
    let server = RedisServer::start();
    let queue_timeout = Duration::from_secs(3);
    let clients = [
        builder(&server).await.queue_timeout(queue_timeout).build().unwrap(),
        builder(&server).await.queue_timeout(queue_timeout).build().unwrap(),
    ];
    let held = clients[0].fair_lock("fair").acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    let mut doomed = None;
    for number in 0..6_usize {
        if number == 1 {
            // A process that is killed while it waits: its runtime ends without any clean-up.
            let url = server.url();
            let (sender, killed) = tokio::sync::oneshot::channel::<()>();
            doomed = Some((
                sender,
                std::thread::spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async move {
                        let backend = lockcore_redis::RedisBackend::connect(url).await.unwrap();
                        let locks = Locks::builder(backend).queue_timeout(queue_timeout).build().unwrap();
                        tokio::select! {
                            _ = killed => {}
                            _ = async { std::mem::forget(locks.fair_lock("fair").acquire().await) } => {}
                        }
                        // Its connections are closed with the runtime; the undo is never sent.
                    });
                    runtime.shutdown_background();
                }),
            ));
        } else {
            let (lock, order) = (clients[number % 2].fair_lock("fair"), order.clone());
            tasks.push((
                number,
                tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    order.lock().unwrap().push(number);
                    guard.release().await.unwrap();
                }),
            ));
        }
        queued(&server, number as i64 + 1).await;
    }
    // The waiter at place 3 gives up, and leaves the queue at once.
    let given_up = tasks.remove(2);
    assert_eq!(given_up.0, 3);
    given_up.1.abort();
    queued(&server, 5).await;
    let (sender, thread) = doomed.unwrap();
    sender.send(()).unwrap();
    tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();

    let start = Instant::now();
    held.release().await.unwrap();
    for (_, task) in tasks {
        soon("each turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 2, 4, 5]);
    assert!(start.elapsed() < queue_timeout + Duration::from_secs(2), "{:?}", start.elapsed());
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_release_wakes_the_first_in_the_queue_alone() {
    let server = RedisServer::start();
    let (holder, first, second) =
        (locks(&server).await, locks(&server).await, locks(&server).await);
    let held = holder.fair_lock("fair").acquire().await.unwrap();
    let wait = |locks: &Locks| {
        let lock = locks.fair_lock("fair");
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let one = wait(&first);
    queued(&server, 1).await;
    let two = wait(&second);
    queued(&server, 2).await;
    // One each, and that of the lock.
    until("both subscriptions", || async { server.channels().await.len() == 3 }).await;
    assert!(
        first.fair_lock("fair").try_acquire().await.unwrap().is_none(),
        "nobody overtakes by trying"
    );

    let start = Instant::now();
    held.release().await.unwrap();
    let guard = soon("the first", one).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "by the message: {:?}", start.elapsed());
    assert!(!two.is_finished());
    let nested = first.fair_lock("fair").owned_by(guard.owner()).acquire().await.unwrap();
    assert_eq!(nested.hold_count(), 2);
    nested.release().await.unwrap();
    guard.release().await.unwrap();
    soon("the second", two).await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

/// Without the message, the waiter would ask again after 20 s.
#[tokio::test]
async fn a_waiter_hears_of_the_end_of_a_hold_that_did_not_queue() {
    let server = RedisServer::start();
    let wait = |locks: &Locks| tokio::spawn(locks.fair_lock("fair").acquire());
    let slow = builder(&server).await.queue_timeout(Duration::from_secs(60));
    let (one, other) = (slow.build().unwrap(), locks(&server).await);
    let keeper = Locks::builder(connect(&server).await).linger(Duration::from_millis(100));
    let keeper = keeper.hand_over(Duration::from_secs(10)).build().unwrap();
    for way in ["released", "released by Redisson", "kept", "here"] {
        let holder = match way {
            "kept" => &keeper,
            "here" => &one,
            _ => &other,
        };
        let held = holder.lock("fair").acquire().await.unwrap();
        let waiting = wait(&one);
        queued(&server, 1).await;
        until("its subscriptions", || async { server.channels().await.len() >= 2 }).await;
        let start = Instant::now();
        match way {
            "released by Redisson" => {
                let release = "redis.call('del', KEYS[1]) redis.call('publish', ARGV[1], '0')";
                let channel = "redisson_lock__channel:{fair}";
                let _: () = server.query(&["EVAL", release, "1", "fair", channel]).await;
                drop(held);
            }
            _ => held.release().await.unwrap(),
        }
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{way}: {:?}", start.elapsed());
        guard.release().await.unwrap();
        until("the last unsubscription", || async { server.channels().await.is_empty() }).await;
    }
    assert_nothing_left(&server).await;
}

/// The release of a fair hold tells the first of its turn. The others need not look.
#[tokio::test]
async fn a_release_of_a_fair_hold_wakes_the_first_and_that_of_another_hold_wakes_all() {
    let server = RedisServer::start();
    let (backend, mut waiting) = (connect(&server).await, Vec::new());
    for mode in [Mode::Fair, Mode::Exclusive] {
        let held = request("fair", &hold("h:1"), mode);
        enters(&backend, &held).await;
        for id in ["w:1", "w:2", "w:3"] {
            let waiter = request("fair", &hold(id), Mode::Fair).queue(Some(LEASE));
            refused_for(&backend, &waiter).await;
            let subscribe = SubscribeRequest::new(waiter.name, waiter.hold).mode(Mode::Fair);
            waiting.push(backend.subscribe(&subscribe).await.unwrap());
        }
        let aside = SubscribeRequest::new(held.name.clone(), hold("x:1"));
        let mut aside = backend.subscribe(&aside).await.unwrap();
        releases(&backend, &held).await;
        soon("the message for all", aside.woken()).await;
        for (turn, mut woken) in waiting.drain(..).enumerate() {
            let is_woken = poll_times(1, woken.woken()).await.is_some();
            assert_eq!(is_woken, turn == 0 || mode == Mode::Exclusive, "{mode}, {turn}");
        }
        for id in ["w:1", "w:2", "w:3"] {
            releases(&backend, &request("fair", &hold(id), Mode::Fair)).await;
        }
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn the_queue_is_written_as_redisson_writes_it() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let held = locks.fair_lock("fair").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.fair_lock("fair");
        async move { lock.acquire().await.unwrap() }
    });
    queued(&server, 1).await;
    let queue: Vec<String> = server.query(&["LRANGE", QUEUE, "0", "-1"]).await;
    let times: Vec<(String, f64)> =
        server.query(&["ZRANGE", "redisson_lock_timeout:{fair}", "0", "-1", "WITHSCORES"]).await;
    assert_eq!(times[0].0, queue[0]);
    let (seconds, _): (f64, f64) = server.query(&["TIME"]).await;
    assert!(
        (times[0].1 / 1000.0 - seconds - 5.0).abs() < 2.5,
        "epoch milliseconds, five seconds ahead"
    );
    let channel = format!("redisson_lock__channel:{{fair}}:{}", queue[0]);
    until("its own channel", || async { server.channels().await.contains(&channel) }).await;
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_waiter_of_redisson_is_let_in_first_and_told() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let held = locks.fair_lock("fair").acquire().await.unwrap();
    // An entry of Redisson in the queue: its own owner and a time five minutes ahead.
    let foreigner = "8743c9c0-0795-4907-87fd-6c719a6b4586:44";
    let (seconds, _): (i64, i64) = server.query(&["TIME"]).await;
    let _: i64 = server.query(&["RPUSH", QUEUE, foreigner]).await;
    let time = ((seconds + 300) * 1000).to_string();
    let _: i64 = server.query(&["ZADD", "redisson_lock_timeout:{fair}", &time, foreigner]).await;
    let mut waiting = Box::pin(locks.fair_lock("fair").acquire());
    let early = tokio::time::timeout(Duration::from_millis(200), waiting.as_mut()).await;
    assert!(early.is_err());
    held.release().await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), waiting.as_mut()).await;
    assert!(early.is_err(), "Redisson's waiter is first");
    // It enters, and subtracts its five minutes from all waiters behind it; then it leaves.
    let enter = "redis.call('lpop', KEYS[2]) redis.call('zrem', KEYS[3], ARGV[1]) \
                 for _, owner in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do redis.call('zincrby', KEYS[3], -300000, owner) end \
                 redis.call('hset', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], 300) return 1";
    let entered: i64 = server
        .query(&["EVAL", enter, "3", "fair", QUEUE, "redisson_lock_timeout:{fair}", foreigner])
        .await;
    assert_eq!(entered, 1);
    soon("our turn", waiting).await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_timed_out_waiter_leaves_no_place() {
    let server = RedisServer::start();
    let locks = Locks::new(connect(&server).await);
    let held = locks.fair_lock("fair").acquire().await.unwrap();
    let error =
        locks.fair_lock("fair").acquire_timeout(Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    queued(&server, 0).await;
    held.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_waiter_that_inherits_a_subscription_is_called_by_its_own_name() {
    let server = RedisServer::start();
    let holder = locks(&server).await;
    let waiters = builder(&server).await.queue_timeout(Duration::from_secs(60)).build().unwrap();
    let held = holder.fair_lock("fair").acquire().await.unwrap();
    // Two waiters of one owner: the first listens, and then gives up.
    let lock = waiters.fair_lock("fair").owned_by(&lockcore::Owner::new());
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    let first = wait();
    until("the first to listen", || async { server.channels().await.len() == 2 }).await;
    let second = wait();
    tokio::task::yield_now().await;
    first.abort();
    let called = || async {
        let queue: Vec<String> = server.query(&["LRANGE", QUEUE, "0", "-1"]).await;
        let mut channels = server.channels().await;
        channels.sort_unstable();
        let of_lock = "redisson_lock__channel:{fair}".to_owned();
        queue.len() == 1 && channels == [of_lock.clone(), format!("{of_lock}:{}", queue[0])]
    };
    until("the second to listen where it is called", called).await;
    let start = Instant::now();
    held.release().await.unwrap();
    soon("the second", second).await.unwrap().unwrap().release().await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "woken, not by its timer: {:?}",
        start.elapsed()
    );
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_spoilt_queue_fails_no_release() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.fair_lock("fair").acquire().await.unwrap();
    let _: String = server.query(&["SET", QUEUE, "spoilt"]).await;
    guard.release().await.unwrap();
    let guard = locks.lock("fair").acquire().await.unwrap();
    assert!(locks.lock("fair").force_release().await.unwrap());
    assert!(!guard.is_held(), "and the holder knows");
}

#[tokio::test]
async fn a_queue_that_was_deleted_is_made_again() {
    let server = RedisServer::start();
    let holder = locks(&server).await;
    let waiter = builder(&server).await.queue_timeout(Duration::from_millis(600)).build().unwrap();
    let held = holder.fair_lock("fair").acquire().await.unwrap();
    let lock = waiter.fair_lock("fair");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(&server, 1).await;
    let _: i64 = server.query(&["DEL", QUEUE]).await;
    queued(&server, 1).await;
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn those_who_wait_are_reported_in_their_order() {
    let server = RedisServer::start();
    let clients = [locks(&server).await, locks(&server).await];
    let held = clients[0].fair_lock("fair").acquire().await.unwrap();
    assert!(clients[1].fair_lock("fair").state().await.unwrap().waiters().is_empty());
    let mut waiting = Vec::new();
    for number in 0..4 {
        waiting.push(tokio::spawn(clients[number % 2].fair_lock("fair").acquire()));
        queued(&server, number as i64 + 1).await;
    }
    let state = clients[1].fair_lock("fair").state().await.unwrap();
    assert_eq!(state.holders()[0].owner(), held.wire_owner());
    assert_eq!(state.waiters().len(), 4);
    held.release().await.unwrap();
    for (waiter, reported) in waiting.into_iter().zip(state.waiters()) {
        let guard = soon("its turn", waiter).await.unwrap().unwrap();
        assert_eq!(guard.wire_owner(), reported);
        guard.release().await.unwrap();
    }
    assert!(clients[0].fair_lock("fair").state().await.unwrap().waiters().is_empty());
}

/// The next waiter had been told of the previous hold, and slept until it asked again to keep its
/// place.
#[tokio::test]
async fn the_next_one_learns_that_the_hold_before_him_is_a_short_one() {
    let server = RedisServer::start();
    // A waiter that hears nothing asks again after a third of it.
    let patient =
        async || builder(&server).await.queue_timeout(Duration::from_secs(30)).build().unwrap();
    let clients = [patient().await, patient().await];
    let held = clients[0].fair_lock("fair").acquire().await.unwrap();
    let short =
        tokio::spawn(clients[0].fair_lock("fair").lease(Duration::from_millis(200)).acquire());
    queued(&server, 1).await;
    let next = tokio::spawn(clients[1].fair_lock("fair").acquire());
    queued(&server, 2).await;
    // By now it has subscribed.
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.release().await.unwrap();
    let short = soon("the short hold", short).await.unwrap().unwrap();
    let start = Instant::now();
    let next = soon("the next hold", next).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(short);
    next.release().await.unwrap();
    assert_nothing_left(&server).await;
}
