//! On Redis, the release of a fair lock grants it to the first waiter in the queue.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Locks, LossReason, Mode,
    backend::{
        AcquireRequest, Backend, ReleaseOutcome, ReleaseRequest, SubscribeRequest, Wakeup, Wakeups,
    },
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Faulty, Op, RedisServer};

use crate::{
    steps::{
        JAVA, Messages, enters, exists, fill, hold, holders, keys, name, pass, pttl, refused_for,
        releases, request, state,
    },
    support::{connect, locks, soon, until},
};

const QUEUE: &str = "redisson_lock_queue:{a}";
const EXPIRIES: &str = "redisson_lock_timeout:{a}";
const NUMBERS: &str = "lockcore_direct_grant:{a}";

/// How long places are kept.
const KEPT: Duration = Duration::from_secs(5);

fn fair(lock: &str, owner: &str) -> AcquireRequest {
    request(lock, &hold(owner), Mode::Fair)
}

/// Queues, and subscribes.
async fn waits(backend: &RedisBackend, lock: &str, owner: &str) -> Box<dyn Wakeups> {
    let request = fair(lock, owner).queue(Some(KEPT)).direct_grant(Some(3));
    let subscribe =
        SubscribeRequest::new(request.name.clone(), request.hold.clone()).mode(Mode::Fair);
    let wakeups = backend.subscribe(&subscribe).await.unwrap();
    refused_for(backend, &request).await;
    wakeups
}

/// A Java process has a place behind all others.
async fn java_waits(server: &RedisServer) -> Messages {
    let messages = Messages::of(server, &format!("redisson_lock__channel:{{a}}:{JAVA}")).await;
    let time: (u64, u64) = server.query(&["TIME"]).await;
    let until = (time.0 * 1000 + 300_000).to_string();
    let _: i64 = server.query(&["ZADD", EXPIRIES, &until, JAVA]).await;
    let _: i64 = server.query(&["RPUSH", QUEUE, JAVA]).await;
    messages
}

async fn assert_nobody_waits(server: &RedisServer) {
    for key in [QUEUE, EXPIRIES, NUMBERS, "lockcore_queue_lock:{a}"] {
        assert!(!exists(server, key).await, "{key}: nobody waits any more");
    }
}

/// Whatever happens to a waiter, the others do not wait longer than for its place.
#[tokio::test]
async fn a_waiter_that_is_dead_is_granted_the_rest_of_its_place() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    drop(waits(&backend, "a", "p:2").await);
    pass(300).await;
    assert_eq!(releases(&backend, &fair("a", "p:1")).await, ReleaseOutcome::Released);
    assert_eq!(holders(&state(&backend, "a").await), [("p:2", Mode::Exclusive, 1)]);
    let left = pttl(&server, "a").await;
    assert!((3500..=4700).contains(&left), "{left} ms");
    assert_nobody_waits(&server).await;
}

/// A place behind waiters of Redisson is kept for minutes, unlike the hold that replaces it.
#[tokio::test]
async fn the_hold_ends_when_its_waiter_says_however_long_its_place_is_kept() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let _messages = java_waits(&server).await;
    let mut wakeups = waits(&backend, "a", "p:2").await;
    let _: String = server.query(&["LPOP", QUEUE]).await;
    let _: i64 = server.query(&["ZREM", EXPIRIES, JAVA]).await;
    releases(&backend, &fair("a", "p:1")).await;
    let woken = soon("the grant", wakeups.woken()).await;
    assert!(matches!(woken, Wakeup::Granted { request: 3, .. }), "{woken:?}");
    let left = pttl(&server, "a").await;
    assert!(left <= 5000, "{left} ms");
}

/// Other clients have shortened its place, so it lapses before the waiter expects it.
#[tokio::test]
async fn a_place_that_was_shortened_shortens_no_hold() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let mut wakeups = waits(&backend, "a", "p:2").await;
    let _: String = server.query(&["ZINCRBY", EXPIRIES, "-3000", "p:2"]).await;
    releases(&backend, &fair("a", "p:1")).await;
    assert!(matches!(soon("the grant", wakeups.woken()).await, Wakeup::Granted { .. }));
    let left = pttl(&server, "a").await;
    assert!(left > 4000, "{left} ms");
}

/// A failover has lost the release and the grant, and the release is repeated.
#[tokio::test]
async fn a_grant_that_a_failover_lost_is_not_given_again_to_one_that_is_gone() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (one, other) = (locks(&server).await, locks(&server).await);
    let held = one.fair_lock("a").acquire().await.unwrap();
    let release = ReleaseRequest::new(name("a"), hold(held.wire_owner())).mode(Mode::Fair);
    let waiting = tokio::spawn(other.fair_lock("a").acquire());
    until("its place", || exists(&server, NUMBERS)).await;
    let keys = ["a", QUEUE, EXPIRIES, "lockcore_queue_lock:{a}", NUMBERS];
    let mut dumps = Vec::new();
    let client = redis::Client::open(server.url()).unwrap();
    let mut operator = client.get_multiplexed_async_connection().await.unwrap();
    for key in keys {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(key).query_async(&mut operator).await.unwrap();
        dumps.push((key, pttl(&server, key).await, dump));
    }
    held.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    for (key, ttl, dump) in dumps {
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(ttl).arg(dump).arg("REPLACE");
        restore.query_async::<()>(&mut operator).await.unwrap();
    }
    assert_eq!(soon("the loss", guard.lost()).await.reason(), LossReason::Gone);
    until("the end of its place", async || !exists(&server, QUEUE).await).await;
    assert_eq!(backend.release(&release).await.unwrap(), ReleaseOutcome::Released);
    assert!(!exists(&server, "a").await, "it was granted to one that is gone");
}

/// Redisson ignores the message.
#[tokio::test]
async fn a_waiter_of_redisson_is_only_woken() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let mut java = java_waits(&server).await;
    let _behind = waits(&backend, "a", "p:2").await;
    releases(&backend, &fair("a", "p:1")).await;
    assert_eq!(java.next().await, "0");
    assert!(!exists(&server, "a").await, "it is granted what it asks for");
}

/// It was told a longer lease, and does not ask again before that ends.
#[tokio::test]
async fn a_waiter_of_redisson_behind_is_told_of_the_hold() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let mut wakeups = waits(&backend, "a", "p:2").await;
    let mut java = java_waits(&server).await;
    releases(&backend, &fair("a", "p:1")).await;
    assert!(matches!(soon("the grant", wakeups.woken()).await, Wakeup::Granted { .. }));
    assert_eq!(java.next().await, "0");
}

#[tokio::test]
async fn a_full_memory_stops_neither_the_release_nor_the_next_one() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let before = enters(&backend, &fair("a", "p:1")).await;
    let mut wakeups = waits(&backend, "a", "p:2").await;
    fill(&server).await;
    assert_eq!(releases(&backend, &fair("a", "p:1")).await, ReleaseOutcome::Released);
    match soon("the wake-up", wakeups.woken()).await {
        Wakeup::Granted { token, .. } => assert!(token > before),
        _ => assert!(!exists(&server, "a").await),
    }
    let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    enters(&backend, &fair("a", "p:2")).await;
}

/// A place that cannot be kept is given up, and everything that belongs to it.
#[tokio::test]
async fn a_full_memory_leaves_nothing_of_a_waiter_that_asks_again() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let _waiting = [waits(&backend, "a", "p:2").await, waits(&backend, "a", "p:3").await];
    fill(&server).await;
    for (owner, left) in [("p:2", vec!["p:3".to_owned()]), ("p:3", vec![])] {
        let again = fair("a", owner).queue(Some(KEPT)).direct_grant(Some(4));
        let error = backend.acquire(&again).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
        let queue: Vec<String> = server.query(&["LRANGE", QUEUE, "0", "-1"]).await;
        let numbers: Vec<String> = server.query(&["HKEYS", NUMBERS]).await;
        assert_eq!((queue, numbers), (left.clone(), left), "after {owner}");
    }
    assert_nobody_waits(&server).await;
}

/// Redisson removes places that have expired, and knows nothing of the numbers.
#[tokio::test]
async fn a_waiter_whose_place_redisson_has_removed_leaves_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let _waiting = waits(&backend, "a", "p:2").await;
    let _: String = server.query(&["LPOP", QUEUE]).await;
    let _: i64 = server.query(&["ZREM", EXPIRIES, "p:2"]).await;
    assert_eq!(releases(&backend, &fair("a", "p:2")).await, ReleaseOutcome::NotHeld);
    assert!(!exists(&server, NUMBERS).await);
}

#[tokio::test]
async fn the_last_waiter_that_leaves_takes_the_places_of_dead_ones_along() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let _waiting = [waits(&backend, "a", "p:2").await, waits(&backend, "a", "p:3").await];
    let _: i64 = server.query(&["ZADD", EXPIRIES, "1", "p:2"]).await;
    assert_eq!(releases(&backend, &fair("a", "p:3")).await, ReleaseOutcome::NotHeld);
    assert_nobody_waits(&server).await;
}

/// Something else is stored in place of the times.
#[tokio::test]
async fn a_waiter_of_redisson_is_told_of_a_release_whose_queue_cannot_be_read() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let mut java = java_waits(&server).await;
    let _: i64 = server.query(&["DEL", EXPIRIES]).await;
    let _: i64 = server.query(&["RPUSH", EXPIRIES, "something"]).await;
    assert_eq!(releases(&backend, &fair("a", "p:1")).await, ReleaseOutcome::Released);
    assert_eq!(java.next().await, "0");
}

/// Something else is stored in place of the numbers, so the place of a dead one cannot be removed
/// as a whole.
#[tokio::test]
async fn a_queue_with_waiters_belongs_to_its_lock_whatever_cannot_be_removed() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("a", "p:1")).await;
    let dead = waits(&backend, "a", "p:2").await;
    let mut next = waits(&backend, "a", "p:3").await;
    let _leaving = waits(&backend, "a", "p:4").await;
    drop(dead);
    let _: i64 = server.query(&["ZADD", EXPIRIES, "1", "p:2", "99999999999999", "p:3"]).await;
    let _: i64 = server.query(&["PERSIST", "lockcore_queue_lock:{a}"]).await;
    let _: i64 = server.query(&["DEL", NUMBERS]).await;
    let _: i64 = server.query(&["RPUSH", NUMBERS, "something"]).await;
    assert_eq!(releases(&backend, &fair("a", "p:4")).await, ReleaseOutcome::NotHeld);
    assert_eq!(soon("the wake-up", next.woken()).await, Wakeup::Changed);
    assert_eq!(server.query::<String>(&["GET", "lockcore_queue_lock:{a}"]).await, "a");
}

/// Something else is stored in place of the numbers, or of the token.
#[tokio::test]
async fn what_cannot_be_read_stops_no_release() {
    for key in [NUMBERS, "redisson_lock_token:{a}", "lockcore_queue_lock:{a}"] {
        let server = RedisServer::start();
        let backend = connect(&server).await;
        enters(&backend, &fair("a", "p:1")).await;
        let mut wakeups = waits(&backend, "a", "p:2").await;
        let _: i64 = server.query(&["DEL", key]).await;
        let _: i64 = server.query(&["RPUSH", key, "something"]).await;
        assert_eq!(releases(&backend, &fair("a", "p:1")).await, ReleaseOutcome::Released);
        assert_eq!(soon("the wake-up", wakeups.woken()).await, Wakeup::Changed, "{key}");
        assert!(!exists(&server, "a").await, "{key}: nobody holds what was not told");
    }
}

/// By Redisson's rules, `a` and `{a}` share a queue. All waiters belong to one of them.
#[tokio::test]
async fn the_lock_with_the_other_name_is_not_granted_to_whoever_waits() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &fair("{a}", "p:1")).await;
    enters(&backend, &fair("a", "p:2")).await;
    let mut wakeups = waits(&backend, "a", "p:3").await;
    releases(&backend, &fair("{a}", "p:1")).await;
    assert_eq!(soon("the wake-up", wakeups.woken()).await, Wakeup::Changed);
    assert!(!exists(&server, "{a}").await);
    releases(&backend, &fair("a", "p:2")).await;
    assert!(matches!(soon("the grant", wakeups.woken()).await, Wakeup::Granted { .. }));
    assert_eq!(holders(&state(&backend, "a").await), [("p:3", Mode::Exclusive, 1)]);
}

/// Through the core: one connection for messages, two clients, and nothing is left.
#[tokio::test]
async fn a_lock_goes_to_and_fro_with_one_request_less() {
    let server = RedisServer::start();
    let backends = [connect(&server).await, connect(&server).await].map(Faulty::new);
    let faults = backends.each_ref().map(Faulty::faults);
    // The server's own count would include the renewal that soon follows each grant.
    let requests = || {
        [Op::Acquire, Op::Release]
            .map(|op| faults.iter().map(|faults| faults.calls(op)).sum::<usize>())
    };
    let clients = backends.map(Locks::new);
    let mut held = clients[0].fair_lock("a").acquire().await.unwrap();
    for turn in 1..20 {
        let waiting = tokio::spawn(clients[turn % 2].fair_lock("a").acquire());
        until("a place that is granted", || async {
            server.query::<i64>(&["HLEN", NUMBERS]).await == 1
        })
        .await;
        let ([asked, released], before) = (requests(), held.token());
        held.release().await.unwrap();
        held = soon("the grant", waiting).await.unwrap().unwrap();
        assert!(held.token() > before);
        assert_eq!(requests(), [asked, released + 1], "only the release");
    }
    held.release().await.unwrap();
    assert!(keys(&server).await.is_empty(), "{:?}", keys(&server).await);
}

/// After a reconnect, a waiter does not know of earlier grants.
#[tokio::test]
async fn a_waiter_that_missed_the_message_asks() {
    let server = RedisServer::start();
    let clients = [locks(&server).await, locks(&server).await];
    let held = clients[0].fair_lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(clients[1].fair_lock("a").acquire());
    until("a place that is granted", || async {
        server.query::<i64>(&["HLEN", NUMBERS]).await == 1
    })
    .await;
    let _: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    held.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(keys(&server).await.is_empty());
}

/// Java's place was only counted from that of the waiter before it. If more were subtracted,
/// waiters behind Java would lose their places when Java enters.
#[tokio::test]
async fn only_the_waiter_before_java_takes_back_what_its_place_has_added() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let score = async || server.query::<i64>(&["ZSCORE", EXPIRIES, JAVA]).await;
    enters(&backend, &fair("a", "p:1")).await;
    let _waiting = [waits(&backend, "a", "p:2").await, waits(&backend, "a", "p:3").await];
    let _messages = java_waits(&server).await;
    let before = score().await;
    for (released, subtracted) in [("p:1", 0), ("p:2", 5000)] {
        releases(&backend, &fair("a", released)).await;
        assert_eq!(before - score().await, subtracted, "after {released}");
    }
}
