//! A recently released lock is acquired without a script, which the answers do not reveal.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Locks, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    batches::{begin, end, exclusive, is_granted, outcome},
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{JAVA, enters, exists, fill, hash, hold, keys, pttl, refused_for, releases, request},
    support::{assert_nothing_left, connect, soon},
};

const TOKEN: &str = "redisson_lock_token:{locks:a}";
const DAY: i64 = 86_400_000;

fn lock() -> AcquireRequest {
    exclusive("locks:a", 1)
}

async fn restored(server: &RedisServer) -> u64 {
    server.calls_of("restore").await
}

/// Acquires and releases the lock until a client does so without a script.
async fn is_recent(
    server: &RedisServer,
    backend: &RedisBackend,
    request: &AcquireRequest,
) -> FencingToken {
    soon("an acquisition without a script", async {
        loop {
            let before = restored(server).await;
            let token = enters(backend, request).await;
            assert_eq!(releases(backend, request).await, ReleaseOutcome::Released);
            if restored(server).await > before {
                return token;
            }
        }
    })
    .await
}

/// Acquires a lock without a script, after `change`, and returns the outcome. The commands at the
/// server show whether the acquisition was in time.
async fn acquires_after<T>(
    server: &RedisServer,
    backend: &RedisBackend,
    request: &AcquireRequest,
    mut change: impl AsyncFnMut() -> T,
) -> (T, Result<AcquireOutcome, BackendError>) {
    soon("an attempt without a script", async {
        loop {
            is_recent(server, backend, request).await;
            let changed = change().await;
            let before = restored(server).await;
            let outcome = backend.acquire(request).await;
            if restored(server).await > before {
                return (changed, outcome);
            }
            let _: redis::Value = server.query(&["FLUSHALL"]).await;
        }
    })
    .await
}

fn token_of(outcome: Result<AcquireOutcome, BackendError>) -> FencingToken {
    match outcome.unwrap() {
        AcquireOutcome::Acquired { token } => token,
        outcome => panic!("{outcome:?}"),
    }
}

#[tokio::test]
async fn a_hold_is_stored_as_by_a_script() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut request = lock();
    request.tokens = 5;
    let (_, outcome) = acquires_after(&server, &backend, &request, async || ()).await;
    let token = token_of(outcome);
    let owner = request.hold.owner().to_owned();
    assert_eq!(hash(&server, "locks:a").await, [(owner, "1".to_owned())].into());
    assert!((50_000..=60_000).contains(&pttl(&server, "locks:a").await));
    assert_eq!(server.query::<u64>(&["GET", TOKEN]).await, u64::from(token) + 4);
    assert!((DAY - 60_000..=DAY).contains(&pttl(&server, TOKEN).await));
    // The same request gets the same answer, and a nested one grows the hold.
    assert_eq!(enters(&backend, &request).await, token);
    enters(&backend, &request.clone().count(2)).await;
    assert_eq!(hash(&server, "locks:a").await.into_values().collect::<Vec<_>>(), ["2"]);
    assert_eq!(releases(&backend, &request).await, ReleaseOutcome::Released);
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn tokens_rise_and_are_close_to_the_servers_clock() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let (mut last, before) = (0, restored(&server).await);
    for round in 0..400 {
        let client = if round % 7 == 0 { &other } else { &backend };
        if round % 100 == 50 {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let started: [u64; 2] = server.query::<Vec<u64>>(&["TIME"]).await.try_into().unwrap();
        let token = u64::from(enters(client, &lock()).await);
        releases(client, &lock()).await;
        assert!(token > last, "{round}: {token} after {last}");
        // A reading of the clock may be 100 ms old when it comes, and drift takes a millisecond.
        let behind = (started[0] * 1_000_000 + started[1]).saturating_sub(token);
        assert!(behind < 160_000, "{round}: {behind} us behind");
        last = token;
    }
    assert!(restored(&server).await > before, "no acquisition without a script");
}

#[tokio::test]
async fn a_lock_that_another_client_has_taken_meanwhile_is_refused() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    for (mode, owner) in [(Mode::Exclusive, "other:1"), (Mode::Fair, "other:2")] {
        let theirs = request("locks:a", &hold(owner), mode);
        let taken = async || enters(&other, &theirs).await;
        let (token, outcome) = acquires_after(&server, &backend, &lock(), taken).await;
        match outcome.unwrap() {
            AcquireOutcome::Held { remaining: Some(remaining) } => {
                assert!(remaining > Duration::from_secs(50), "{remaining:?}");
            }
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(hash(&server, "locks:a").await, [(owner.into(), "1".into())].into());
        // A refused request is not tried again, and the next token is a later one.
        let before = restored(&server).await;
        assert!(refused_for(&backend, &lock()).await.is_some());
        assert_eq!(restored(&server).await, before);
        assert_eq!(releases(&other, &theirs).await, ReleaseOutcome::Released);
        let next = enters(&backend, &lock()).await;
        assert!(next > token);
        releases(&backend, &lock()).await;
    }
}

#[tokio::test]
async fn a_refused_waiter_is_woken_by_the_release() {
    let server = RedisServer::start();
    let [mine, theirs] =
        [0, 1].map(|_| async { Locks::new(connect(&server).await).lock("locks:a") });
    let (mine, theirs) = (mine.await, theirs.await);
    for _ in 0..30 {
        mine.acquire().await.unwrap().release().await.unwrap();
        let guard = theirs.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let mine = mine.clone();
            async move { mine.acquire().await.unwrap().release().await.unwrap() }
        });
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
        soon("the lock", waiting).await.unwrap();
    }
}

#[tokio::test]
async fn a_lost_token_is_issued_again_by_the_clock() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for command in [&["DEL", TOKEN][..], &["SET", TOKEN, "5", "PX", "90000"], &["FLUSHALL"]] {
        let mut last = None;
        let (lost, outcome) = acquires_after(&server, &backend, &lock(), async || {
            let token = server.query::<Option<u64>>(&["GET", TOKEN]).await;
            let _: redis::Value = server.query(command).await;
            token
        })
        .await;
        let token = u64::from(token_of(outcome));
        assert!(Some(token) > lost && Some(token) > last.replace(token), "{command:?}");
        assert_eq!(server.query::<u64>(&["GET", TOKEN]).await, token);
        assert!((DAY - 60_000..=DAY).contains(&pttl(&server, TOKEN).await), "{command:?}");
        assert_eq!(releases(&backend, &lock()).await, ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn a_token_that_a_refused_attempt_has_made_expires() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (_, outcome) = acquires_after(&server, &backend, &lock(), async || {
        let _: String = server.query(&["FLUSHALL"]).await;
        let _: i64 = server.query(&["HSET", "locks:a", JAVA, "1"]).await;
        let _: i64 = server.query(&["PEXPIRE", "locks:a", "30000"]).await;
    })
    .await;
    assert!(matches!(outcome.unwrap(), AcquireOutcome::Held { .. }));
    assert!((1..=DAY).contains(&pttl(&server, TOKEN).await));
    assert_eq!(hash(&server, "locks:a").await, [(JAVA.into(), "1".into())].into());
}

#[tokio::test]
async fn a_token_of_another_type_leaves_no_lock() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (_, outcome) = acquires_after(&server, &backend, &lock(), async || {
        let _: i64 = server.query(&["DEL", TOKEN]).await;
        let _: i64 = server.query(&["LPUSH", TOKEN, "1"]).await;
    })
    .await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    assert!(!exists(&server, "locks:a").await);
}

#[tokio::test]
async fn full_memory_is_reported_and_stores_nothing() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let backend = connect(&server).await;
    fill(&server).await;
    let full: String = server.query::<Vec<String>>(&["CONFIG", "GET", "maxmemory"]).await.remove(1);
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    is_recent(&server, &backend, &lock()).await;
    let last: u64 = server.query(&["GET", TOKEN]).await;
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", &full]).await;
    let error = backend.acquire(&lock()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
    assert!(!error.is_outcome_unknown());
    assert!(!exists(&server, "locks:a").await);
    assert_eq!(server.query::<u64>(&["GET", TOKEN]).await, last);
}

#[tokio::test]
async fn a_user_without_the_right_is_served_by_scripts() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    // Without `info`, it is not known whether the server passes on when a restored key ends.
    for missing in ["restore", "multi", "exec", "incrby", "info"] {
        set_user(&server, "worker", &format!("~* &* +@all -{missing}")).await;
        let worker = connect_as(&server, "worker").await.unwrap();
        let (mut last, before) = (None, restored(&server).await);
        for _ in 0..50 {
            let token = enters(&worker, &lock()).await;
            assert!(last.replace(token) < Some(token));
            assert_eq!(releases(&worker, &lock()).await, ReleaseOutcome::Released);
        }
        assert!(restored(&server).await <= before + 1, "without {missing}");
        assert_nothing_left(&server).await;
    }
    // It is not tried repeatedly.
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let _: String = server.query(&["CONFIG", "RESETSTAT"]).await;
    let worker = connect_as(&server, "worker").await.unwrap();
    for _ in 0..50 {
        enters(&worker, &lock()).await;
        releases(&worker, &lock()).await;
    }
    let stats: String = server.query(&["INFO", "errorstats"]).await;
    let refusals = stats.lines().find_map(|line| line.strip_prefix("errorstat_NOPERM:count="));
    let refusals: u32 = refusals.map_or(0, |count| count.trim().parse().unwrap());
    assert!(refusals <= 3, "{stats}");
}

/// Without the right to `MULTI`, the commands take effect one by one.
#[tokio::test]
async fn a_token_that_an_attempt_without_a_transaction_has_made_expires() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", "~* &* +@all -multi").await;
    soon("an attempt without a script", async {
        loop {
            let worker = connect_as(&server, "worker").await.unwrap();
            let last = enters(&worker, &lock()).await;
            assert_eq!(releases(&worker, &lock()).await, ReleaseOutcome::Released);
            let _: i64 = server.query(&["DEL", TOKEN]).await;
            let before = restored(&server).await;
            assert!(enters(&worker, &lock()).await > last);
            assert!((1..=DAY).contains(&pttl(&server, TOKEN).await));
            assert_eq!(releases(&worker, &lock()).await, ReleaseOutcome::Released);
            if restored(&server).await > before {
                return;
            }
        }
    })
    .await;
}

/// A server before Redis 7.0 would begin a lease anew when it reads a `RESTORE` from its file.
#[tokio::test]
async fn a_restart_of_the_server_does_not_prolong_a_hold() {
    const LEASE: Duration = Duration::from_secs(20);
    const PAUSE: Duration = Duration::from_millis(1_500);
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = RedisServer::start_with(&options);
    let backend = connect(&server).await;
    let mut locks = Vec::new();
    for number in 0..20 {
        let mut request = exclusive(&format!("locks:{number}"), number);
        request.lease = LEASE;
        // The first time by a script, the last time most likely without one.
        for _ in 0..3 {
            enters(&backend, &request).await;
            releases(&backend, &request).await;
        }
        enters(&backend, &request).await;
        locks.push(request.name);
    }
    tokio::time::sleep(PAUSE).await;
    server.restart();
    for lock in locks {
        let left = pttl(&server, lock.as_str()).await;
        let most = i64::try_from((LEASE - PAUSE).as_millis()).unwrap();
        assert!((1..=most).contains(&left), "{lock} is held for {left} ms");
    }
}

#[tokio::test]
async fn many_locks_are_acquired_in_one_transaction_with_those_that_are_not_recent() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let requests: Vec<_> =
        (0..28).map(|number| exclusive(&format!("n:{number}"), number)).collect();
    soon("a transaction", async {
        loop {
            // Eight of them are new, and one is held by another client.
            for request in &requests[..20] {
                enters(&backend, request).await;
                releases(&backend, request).await;
            }
            let theirs = exclusive("n:7", 77);
            enters(&other, &theirs).await;
            let before = [restored(&server).await, server.calls_of("exec").await];
            let tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
            for (number, task) in tasks.into_iter().enumerate() {
                assert_eq!(is_granted(task).await, number != 7, "{number}");
            }
            let spent = [restored(&server).await, server.calls_of("exec").await];
            for (number, request) in requests.iter().enumerate().filter(|(number, _)| *number != 7)
            {
                let owner = format!("client:{number}");
                let key = request.name.as_str();
                assert_eq!(hash(&server, key).await, [(owner, "1".into())].into());
            }
            let tasks: Vec<_> = requests.iter().map(|request| end(&backend, request)).collect();
            for (number, task) in tasks.into_iter().enumerate() {
                let released = outcome(task).await.unwrap() == ReleaseOutcome::Released;
                assert_eq!(released, number != 7, "{number}");
            }
            assert_eq!(releases(&other, &theirs).await, ReleaseOutcome::Released);
            assert_eq!(keys(&server).await, Vec::<String>::new());
            let [holds, transactions] = [0, 1].map(|index| spent[index] - before[index]);
            if holds > 10 {
                assert!(transactions <= 3, "{transactions} transactions for {holds} holds");
                return;
            }
            let _: redis::Value = server.query(&["FLUSHALL"]).await;
        }
    })
    .await;
}
