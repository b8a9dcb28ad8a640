//! Servers that die, connections that are cut, answers that never come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    BackendErrorKind, LockError, LockGuard, LockName, Locks, LossReason, Mode, Owner,
    backend::Backend,
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{
    Fault, Faulty, Feature, On, Op, Proxy, RedisServer, poll_times, server_lacks,
};

use crate::command_proxy::{CommandProxy, Fate};
use crate::steps::{enters, hold, releases, request, state};
use crate::support::{
    assert_nothing_left, builder, connect, impatient, listened_to, locks, soon, until,
};
use crate::waiting::LONG;

const LEASE: Duration = Duration::from_millis(1200);

#[tokio::test]
async fn a_killed_server_loses_the_hold_before_its_lease_would_have_ended() {
    let mut server = RedisServer::start();
    let locks =
        Locks::builder(impatient(&server).connect().await.unwrap()).lease(LEASE).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let running = tokio::spawn({
        let (lock, dropped) = (locks.lock("running"), dropped.clone());
        async move {
            let body = async move |_: &LockGuard| {
                let _noticed = SetOnDrop(dropped);
                std::future::pending::<()>().await;
            };
            lock.run(body).await
        }
    });
    until("the second lock", || async { server.query::<bool>(&["EXISTS", "running"]).await }).await;

    server.kill();
    // On a busy machine both may be due before the check: then the loss was not reported too late.
    tokio::select! {
        biased;
        reason = guard.lost() => assert_eq!(reason, LossReason::LeaseEnded),
        () = tokio::time::sleep(LEASE) => panic!("the lease was over before the loss was told"),
    }
    assert!(!guard.is_held());
    assert!(guard.remaining().is_zero());
    let ran = soon("run", running).await.unwrap();
    assert!(matches!(ran, Err(LockError::Lost { .. })), "{ran:?}");
    assert!(dropped.load(Ordering::SeqCst), "its body is dropped");
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_noticed_and_used_again() {
    const LEASE: Duration = Duration::from_secs(6);
    let mut server = RedisServer::start();
    let locks = builder(&server).await.lease(LEASE).build().unwrap();
    let before = locks.lock("held").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("held");
        async move { lock.acquire().await }
    });
    listened_to(&server, "held").await;
    server.restart();
    let back = Instant::now();
    let after = soon("a new hold", waiting).await.unwrap().unwrap();
    // A waiter that did not try again would ask when the lease that it was told of is over.
    assert!(back.elapsed() < LEASE / 2, "the waiter tries again: {:?}", back.elapsed());
    assert!(after.token() > before.token());

    // Only a renewal gives this reason, and it does so before the lease ends.
    assert_eq!(soon("the loss", before.lost()).await, LossReason::Gone);
    let lost = tokio::time::timeout(LEASE + LEASE / 6, after.lost()).await;
    assert!(lost.is_err(), "the new hold is renewed");
    assert!(matches!(before.release().await, Err(LockError::Lost { .. })));
    after.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_server_that_is_down_is_reported_after_the_time_that_was_asked_for() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let patient = Locks::new(backend.clone());
    let locks = Locks::builder(backend).retry_for(Duration::from_millis(300)).build().unwrap();
    server.kill();
    let start = Instant::now();
    let error = locks.lock("down").try_acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_retryable()), "{error}");
    let error = soon("the error", locks.lock("down").acquire()).await.unwrap_err();
    assert!(error.to_string().contains("`down`"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let error = patient.lock("down").acquire_timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "the true reason, not a time-out: {error}");

    server.restart();
    locks.lock("down").acquire().await.unwrap().release().await.unwrap();
    assert_nothing_left(&server).await;
}

/// However long the user would wait for a reply: the next request goes through a new connection.
#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let longest = Duration::MAX;
    let builder = RedisBackend::builder().url(proxy.url());
    let backend = builder.connect_timeout(longest).response_timeout(longest).connect().await;
    let locks = Locks::new(backend.unwrap());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    proxy.freeze(On::All);
    // Waits for the reply and then for nothing else.
    let acquired = tokio::time::timeout(Duration::from_secs(12), locks.lock("a").acquire()).await;
    acquired.expect("the silent connection is used again").unwrap().release().await.unwrap();
}

#[tokio::test]
async fn connections_killed_during_acquire_and_release_leave_exact_counts() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let locks = Locks::builder(backend).retry_for(LONG).build().unwrap();
    let working = async {
        for round in 0..60 {
            let lock = locks.lock(format!("killed:{}", round % 3));
            let guard = lock.acquire().await.unwrap();
            // The test's own connection is killed like the others.
            let key = format!("killed:{}", round % 3);
            let count = loop {
                if let Ok(count) =
                    server.try_query::<Option<u32>>(&["HGET", &key, guard.wire_owner()]).await
                {
                    break count;
                }
            };
            assert_eq!(count, Some(1), "round {round}");
            match guard.release().await {
                // Three attempts were cut off: the background task continues.
                Ok(()) | Err(LockError::Backend(_)) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    };
    let killing = async {
        // On a busy machine, a connection is not open yet after the short pauses.
        for pause in [1, 3, 7, 15, 31, 63].into_iter().cycle() {
            let killed = server
                .try_query::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
                .await;
            assert!(killed.is_ok(), "{killed:?}");
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    };
    tokio::select! {
        () = soon("sixty rounds", working) => {}
        () = killing => {}
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_paused_server_leaves_nothing_behind_and_costs_nobody_a_lease() {
    if server_lacks(Feature::PauseModes) {
        return;
    }
    let server = RedisServer::start();
    let impatient = Locks::builder(impatient(&server).connect().await.unwrap()).build().unwrap();
    let other = locks(&server).await;
    // The scripts are loaded, so the pause hits the calls themselves.
    other.lock("paused").acquire().await.unwrap().release().await.unwrap();
    let _: String = server.query(&["CLIENT", "PAUSE", "900", "ALL"]).await;
    let error = impatient.lock("paused").try_acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_outcome_unknown()), "{error}");

    let start = Instant::now();
    let guard = soon("the end of the pause", other.lock("paused").acquire()).await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "not after a lease of 30 s: {:?}",
        start.elapsed()
    );
    guard.release().await.unwrap();
    soon("the impatient one", impatient.lock("paused").acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_stopped_server_that_goes_on_undoes_what_it_had_not_answered() {
    let server = RedisServer::start();
    let impatient = Locks::builder(impatient(&server).connect().await.unwrap())
        .retry_for(Duration::ZERO)
        .build()
        .unwrap();
    impatient.lock("warm").acquire().await.unwrap().release().await.unwrap();
    server.signal("STOP");
    let error = impatient.lock("frozen").acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_outcome_unknown()), "{error}");
    server.signal("CONT");
    let other = locks(&server).await;
    let start = Instant::now();
    let guard = soon("the undoing", other.lock("frozen").acquire()).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    guard.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_reply_lost_after_the_effect_leaves_exact_counts() {
    let server = RedisServer::start();
    let backend = Faulty::new(connect(&server).await);
    let faults = backend.faults();
    let (locks, other) = (Locks::new(backend), locks(&server).await);
    let count = async |guard: &LockGuard| -> Option<u32> {
        server.query(&["HGET", "unheard", guard.wire_owner()]).await
    };

    // Acquire: the first attempt has taken the lock without an answer. It is undone, and the second
    // one gets the lock.
    faults.next(Op::Acquire, Fault::LostReply);
    let start = Instant::now();
    let owner = Owner::new();
    let lock = locks.lock("unheard").owned_by(&owner).lease(Duration::from_secs(20));
    let outer = soon("the second attempt", lock.acquire()).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "not after the lease: {:?}", start.elapsed());
    assert_eq!(count(&outer).await, Some(1));

    // Nested growth: the count may be too high, and is lowered. An attempt is not repeated.
    faults.next(Op::Acquire, Fault::LostReply);
    let grown = lock.clone().lease(Duration::from_secs(60)).try_acquire().await;
    assert!(
        matches!(&grown, Err(LockError::Backend(error)) if error.is_outcome_unknown()),
        "{grown:?}"
    );
    until("the count to be brought down", || async { count(&outer).await == Some(1) }).await;
    assert_eq!(outer.hold_count(), 1);

    // Release: it has taken effect, the repetition finds nothing, and that is not a loss.
    faults.next(Op::Release, Fault::LostReply);
    outer.release().await.unwrap();
    assert_eq!(server.query::<i64>(&["EXISTS", "unheard"]).await, 0);

    // Given up after the effect: another client enters at once.
    faults.next(Op::Acquire, Fault::LostReply);
    let error = locks.lock("unheard").try_acquire().await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(error) if error.is_outcome_unknown()), "{error}");
    let start = Instant::now();
    soon("the undoing", other.lock("unheard").acquire()).await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn an_acquire_dropped_at_any_point_lets_the_next_in_at_once() {
    let server = RedisServer::start();
    let (dropping, other) = (locks(&server).await, locks(&server).await);
    for polls in 0..12 {
        for contended in [false, true] {
            let name = format!("dropped:{polls}:{contended}");
            let guard =
                if contended { Some(other.lock(&name).acquire().await.unwrap()) } else { None };
            // An acquisition that has to wait is dropped where it waits.
            let acquire = poll_times(polls, dropping.lock(&name).acquire());
            drop(tokio::time::timeout(Duration::from_millis(30), acquire).await);
            drop(guard);
            let start = Instant::now();
            let next = soon("the next", other.lock(&name).acquire()).await.unwrap();
            let waited = start.elapsed();
            assert!(
                waited < Duration::from_millis(1000),
                "{polls} polls, contended: {contended}: {waited:?}"
            );
            next.release().await.unwrap();
        }
    }
    assert_nothing_left(&server).await;
}

/// Every mode in which a hold can be undone.
fn modes() -> [Mode; 6] {
    let permits = [Mode::permits(2, 3), Mode::plain_permits(2, 3)];
    [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, permits[0], permits[1]]
}

#[tokio::test]
async fn what_was_not_answered_is_undone_in_every_mode() {
    let server = RedisServer::start();
    // The requests that are answered have time for that on a busy machine.
    let impatient = impatient(&server).response_timeout(Duration::from_secs(2));
    let (impatient, other) = (impatient.connect().await.unwrap(), connect(&server).await);
    for (number, mode) in modes().into_iter().enumerate() {
        // The scripts are loaded, so the calls themselves go unanswered.
        let lock = format!("unanswered:{number}");
        let unheard = request(&lock, &hold("a:1"), mode);
        enters(&impatient, &unheard).await;
        releases(&impatient, &unheard).await;
        server.signal("STOP");
        let error = impatient.acquire(&unheard).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        server.signal("CONT");
        until("the undoing", || async { !state(&other, &lock).await.is_held() }).await;
        assert!(state(&other, &lock).await.waiters().is_empty());
        enters(&other, &request(&lock, &hold("b:1"), mode)).await;
    }
}

#[tokio::test]
async fn a_request_dropped_at_any_point_can_be_undone_in_every_mode() {
    let server = RedisServer::start();
    let (dropping, other) = (connect(&server).await, connect(&server).await);
    for mode in modes() {
        for polls in 0..5 {
            let lock = format!("{polls}");
            let request = request(&lock, &hold("a:1"), mode);
            drop(poll_times(polls, dropping.acquire(&request)).await);
            dropping.release(&request.release()).await.unwrap();
            let state = state(&other, &lock).await;
            assert!(
                !state.is_held() && state.available().is_none_or(|left| left == 3),
                "{polls} polls: {state:?}"
            );
        }
        let _: String = server.query(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn close_releases_everything_and_refuses_the_rest() {
    let server = RedisServer::start();
    let (locks, other) = (locks(&server).await, locks(&server).await);
    let guards =
        [locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap()];
    let blocked = other.lock("c").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("c");
        async move { lock.acquire().await }
    });
    listened_to(&server, "c").await;
    locks.close().await.unwrap();
    assert!(
        !server.query::<bool>(&["EXISTS", "a"]).await
            && !server.query::<bool>(&["EXISTS", "b"]).await
    );
    assert!(matches!(soon("the waiter", waiting).await.unwrap(), Err(LockError::Closed { .. })));
    assert!(matches!(locks.lock("a").acquire().await, Err(LockError::Closed { .. })));
    let [a, b] = guards;
    assert_eq!(soon("the signal", a.lost()).await, LossReason::Closed);
    assert!(matches!(a.release().await, Err(LockError::NotHeld { .. })));
    drop(b);
    locks.close().await.unwrap();
    blocked.release().await.unwrap();
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_force_released_lock_is_lost_here_at_once_and_elsewhere_with_the_next_renewal() {
    let server = RedisServer::start();
    let lease = 3 * LEASE;
    let here = builder(&server).await.lease(lease).build().unwrap();
    let elsewhere = builder(&server).await.lease(lease).build().unwrap();
    let guard = here.lock("forced").acquire().await.unwrap();
    assert!(here.lock("forced").force_release().await.unwrap());
    assert!(!guard.is_held());
    assert!(!here.lock("forced").force_release().await.unwrap(), "there is nothing left to force");
    drop(guard);

    let guard = elsewhere.lock("forced").acquire().await.unwrap();
    assert!(here.lock("forced").force_release().await.unwrap());
    // Only a renewal gives this reason, and it does so before the lease ends.
    assert_eq!(soon("the renewal", guard.lost()).await, LossReason::Gone);
    drop(guard);
    assert_nothing_left(&server).await;
}

#[test]
fn a_guard_dropped_outside_of_a_runtime_is_released() {
    let server = RedisServer::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard =
        runtime.block_on(async { locks(&server).await.lock("outside").acquire().await.unwrap() });
    drop(guard);
    runtime.block_on(assert_nothing_left(&server));
    // A client also outlives the runtime that it was used on.
    let locks = runtime.block_on(locks(&server));
    runtime
        .block_on(async { locks.lock("moved").acquire().await.unwrap().release().await.unwrap() });
    drop(runtime);
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    second.block_on(async {
        soon("another runtime", locks.lock("moved").acquire())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_nothing_left(&server).await;
    });
}

/// The core gives each of the callers up before such an attempt is.
#[test]
fn an_attempt_to_connect_on_a_runtime_that_is_not_driven_keeps_nobody_out() {
    const LIMIT: Duration = Duration::from_millis(2500);
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (stalled, driven) = (runtime(), runtime());
    let backend = RedisBackend::builder().url(server.url()).connect_timeout(Duration::from_secs(1));
    let locks = stalled.block_on(async {
        let connected = backend.response_timeout(Duration::from_secs(2)).connect().await.unwrap();
        Locks::builder(connected).retry_for(Duration::from_secs(30)).build().unwrap()
    });
    server.freeze();
    // The connection is given up after 2 s without an answer. So the next one is being opened.
    let waited = stalled.block_on(async { locks.lock("any").acquire_timeout(LIMIT).await });
    assert!(waited.is_err());
    server.thaw();
    driven.block_on(async {
        let guard = soon("a connection of its own", locks.lock("any").acquire()).await.unwrap();
        guard.release().await.unwrap();
    });
}

/// A program may block on each call, so that nothing drives the runtime in between.
#[test]
fn an_attempt_to_connect_that_was_left_behind_fails_no_later_call() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = runtime.block_on(impatient(&server).connect()).unwrap();
    let lock = LockName::new("any").unwrap();
    server.freeze();
    // The connection is given up, and the next one is being opened.
    assert!(runtime.block_on(backend.inspect(&lock)).is_err());
    let asked = async { tokio::time::timeout(Duration::ZERO, backend.inspect(&lock)).await };
    assert!(runtime.block_on(asked).is_err());
    server.thaw();
    // The time for the attempt passes.
    std::thread::sleep(Duration::from_secs(4));
    runtime.block_on(backend.inspect(&lock)).unwrap();
}

/// The server answers each question of a new connection in time, but all of them take long.
#[tokio::test]
async fn a_slow_server_is_connected_to_again() {
    const SLOW: Duration = Duration::from_millis(1500);
    let server = RedisServer::start();
    let proxy = CommandProxy::start(&server, |words| match words {
        [info] if info == "INFO" => Fate::Delay(SLOW),
        [client, what, ..] if client == "CLIENT" && what != "SETINFO" => Fate::Delay(SLOW),
        _ => Fate::Pass,
    })
    .await;
    let slow = RedisBackend::builder().url(proxy.url()).response_timeout(Duration::from_secs(2));
    let connected = slow.connect_timeout(Duration::from_millis(300)).connect().await.unwrap();
    let before = proxy.hits();
    let locks = Locks::builder(connected).retry_for(LONG).build().unwrap();
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    soon("a lock", locks.lock("any").acquire()).await.unwrap().release().await.unwrap();
    assert!(proxy.hits() >= before + 3, "the server was asked three times");
}

#[test]
fn a_call_on_a_runtime_that_has_ended_fails() {
    let server = RedisServer::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backend = runtime.block_on(connect(&server));
    let handle = runtime.handle().clone();
    drop(runtime);
    let (sender, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lock = LockName::new("any").unwrap();
        sender.send(handle.block_on(backend.inspect(&lock)))
    });
    let error = answer.recv_timeout(LONG).expect("an answer").unwrap_err();
    assert!(error.to_string().contains("runtime that has ended"), "{error}");
}

/// tokio panics when a connection is opened on such a runtime.
#[test]
fn a_runtime_without_io_is_an_error() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for builder in [
        RedisBackend::builder().url(server.url()),
        RedisBackend::sentinel([server.address()], "mymaster"),
    ] {
        let error = runtime.block_on(soon("an error", builder.connect())).unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("`enable_all`"), "{error}");
    }
}

#[tokio::test]
async fn nothing_runs_on_after_the_last_handle_is_gone() {
    let server = RedisServer::start();
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    {
        let backend = connect(&server).await;
        let (one, other) = (Locks::new(backend.clone()), Locks::new(backend));
        let guard = one.lock("a").acquire().await.unwrap();
        assert!(other.lock("a").acquire_timeout(Duration::from_millis(50)).await.is_err());
        drop(guard);
        other.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    until("the tasks to end", || async { metrics.num_alive_tasks() <= before }).await;
    assert_nothing_left(&server).await;
    until("the connections to close", || async {
        let clients: String = server.query(&["CLIENT", "LIST"]).await;
        clients.lines().count() == 1
    })
    .await;
}
