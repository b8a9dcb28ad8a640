//! Semaphores as they are stored, beside Redisson's.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Locks, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome, ResizeOutcome, ResizeRequest,
    },
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{
        LEASE, Messages, assert_wrong_type, enters, exists, fill, hold, holders, keys, name, pass,
        pttl, refused_for, releases, renews, request, state,
    },
    support::connect,
};

const CHANNEL: &str = "redisson_sc:{pool}";
const LEASES: &str = "{pool}:timeout";
const NEVER: &str = "922337203685477";

/// Takes a permit as `RPermitExpirableSemaphore` does, in short, by a clock like the server's.
/// Returns `None` if it got the permit, else when to ask again, if known.
async fn java_takes(server: &RedisServer, id: &str, expiry: &str) -> Option<String> {
    let script = "local time = redis.call('time') local now = time[1] * 1000 + math.floor(time[2] / 1000) \
        local ended = redis.call('zrangebyscore', KEYS[2], 0, now) \
        if #ended > 0 then redis.call('zrem', KEYS[2], unpack(ended)) redis.call('incrby', KEYS[1], #ended) end \
        local value = redis.call('get', KEYS[1]) \
        if value ~= false and tonumber(value) >= 1 then \
            redis.call('decrby', KEYS[1], 1) redis.call('zadd', KEYS[2], ARGV[2], ARGV[1]) \
            local ttl = redis.call('pttl', KEYS[1]) \
            if ttl > 0 then redis.call('pexpire', KEYS[2], ttl) end return 'OK' end \
        local next = redis.call('zrange', KEYS[2], 0, 0, 'WITHSCORES') \
        if next[1] ~= nil and next[2] ~= ARGV[3] then return ':' .. next[2] end return nil";
    server.query(&["EVAL", script, "2", "pool", LEASES, id, expiry, NEVER]).await
}

async fn java_gives_back(server: &RedisServer, id: &str) -> i64 {
    let script = "if redis.call('zrem', KEYS[2], ARGV[1]) ~= 1 then return 0 end \
        redis.call('publish', KEYS[3], redis.call('incrby', KEYS[1], 1)) return 1";
    server.query(&["EVAL", script, "3", "pool", LEASES, CHANNEL, id]).await
}

async fn set(server: &RedisServer, permits: &str) {
    let _: String = server.query(&["SET", "pool", permits]).await;
}

async fn left(server: &RedisServer) -> i64 {
    server.query(&["GET", "pool"]).await
}

fn permits(id: &str, count: u32, limit: u32) -> AcquireRequest {
    request("pool", &hold(id), Mode::permits(count, limit))
}

fn plain(id: &str, count: u32, limit: u32) -> AcquireRequest {
    request("pool", &hold(id), Mode::plain_permits(count, limit))
}

fn lasting(mut request: AcquireRequest, ms: u64) -> AcquireRequest {
    request.lease = Duration::from_millis(ms);
    request
}

async fn too_many(backend: &RedisBackend, request: &AcquireRequest) -> Option<u32> {
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::TooMany { limit } => Some(limit),
        _ => None,
    }
}

#[tokio::test]
async fn leased_permits_are_those_of_redisson() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, CHANNEL).await;
    let token = enters(&backend, &permits("a:1", 2, 3)).await;
    assert_eq!(left(&server).await, 1);
    let ids: Vec<Vec<u8>> = server.query(&["ZRANGE", LEASES, "0", "-1"]).await;
    assert!(ids.len() == 2 && ids.iter().all(|id| id.len() == 16), "{ids:?}");
    let lease: i64 = server.query::<Vec<i64>>(&["TIME"]).await[0] * 1000 + 60_000;
    let ends: i64 = server
        .query(&["ZCOUNT", LEASES, &(lease - 5_000).to_string(), &(lease + 1_000).to_string()])
        .await;
    assert_eq!(ends, 2);
    assert_eq!(enters(&backend, &permits("a:1", 2, 3)).await, token, "once");
    assert_eq!(left(&server).await, 1);

    let never = java_takes(&server, "0123456789abcdef", NEVER).await;
    assert_eq!(never.as_deref(), Some("OK"));
    assert!(java_takes(&server, "another", NEVER).await.is_some_and(|when| when.starts_with(":1")));
    let remaining = refused_for(&backend, &permits("b:1", 1, 3)).await;
    assert!(remaining.is_some_and(|left| (55_000..=60_000).contains(&left)), "{remaining:?}");
    let state = state(&backend, "pool").await;
    let hex = "30313233343536373839616263646566";
    assert_eq!(holders(&state), [(hex, Mode::permits(1, 3), 1), ("a:1", Mode::permits(2, 3), 1)]);
    assert_eq!(
        (state.available(), state.limit(), state.remaining()),
        (Some(0), Some(3), None),
        "one has no end"
    );

    assert_eq!(releases(&backend, &permits("a:1", 2, 3)).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "2");
    assert_eq!(refused_for(&backend, &permits("b:1", 3, 3)).await, None, "what has no end");
    assert_eq!(java_gives_back(&server, "0123456789abcdef").await, 1);
    assert_eq!(messages.next().await, "3");
    assert_eq!(too_many(&backend, &permits("b:1", 4, 9)).await, Some(3));
    for key in ["pool", "lockcore_permits:{pool}"] {
        assert!((86_000_000..=86_400_000).contains(&pttl(&server, key).await), "a day: {key}");
    }
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_refused_request_leaves_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    assert_eq!(too_many(&backend, &permits("a:1", 4, 3)).await, Some(3));
    assert_eq!(too_many(&backend, &plain("a:1", 4, 3)).await, Some(3));
    assert_eq!(releases(&backend, &permits("a:1", 1, 3)).await, ReleaseOutcome::NotHeld);
    assert!(!renews(&backend, &permits("a:1", 1, 3), LEASE).await);
    assert!(!backend.force_release(&name("pool")).await.unwrap());
    assert_eq!(keys(&server).await, Vec::<String>::new());
    let huge = backend.acquire(&permits("a:1", u32::MAX, u32::MAX)).await.unwrap_err();
    assert!(!huge.is_outcome_unknown(), "{huge}");
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn permits_whose_lease_is_over_come_back_once() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let ended = lasting(permits("a:1", 2, 3), 30);
    for last in 0..3 {
        enters(&backend, &ended).await;
        pass(40).await;
        let state = state(&backend, "pool").await;
        assert!(!state.is_held());
        assert_eq!(state.available(), Some(3));
        assert!(!renews(&backend, &ended, LEASE).await);
        match last {
            0 => assert_eq!(releases(&backend, &ended).await, ReleaseOutcome::NotHeld),
            1 => assert!(!backend.force_release(&name("pool")).await.unwrap(), "nobody held it"),
            // Or with the next request.
            _ => assert!(u64::from(enters(&backend, &permits("b:1", 1, 3)).await) > 0),
        }
        assert_eq!(releases(&backend, &ended).await, ReleaseOutcome::NotHeld);
    }
    assert_eq!(left(&server).await, 2);
    enters(&backend, &lasting(permits("a:1", 2, 3), 1500)).await;
    assert!(renews(&backend, &permits("a:1", 2, 3), LEASE).await);
    pass(1510).await;
    assert!(refused_for(&backend, &permits("c:1", 1, 3)).await.is_some(), "renewed");
    assert_eq!(releases(&backend, &permits("a:1", 2, 3)).await, ReleaseOutcome::Released);
    assert_eq!(left(&server).await, 2);
}

#[tokio::test]
async fn the_book_forgets_holds_that_were_never_released() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for round in 0..40 {
        enters(&backend, &lasting(permits(&format!("a:{round}"), 1, 100), 1)).await;
    }
    pass(5).await;
    enters(&backend, &permits("b:1", 1, 100)).await;
    let entries: i64 = server.query(&["HLEN", "lockcore_permits:{pool}"]).await;
    assert!(entries < 12, "{entries}");
    assert_eq!(left(&server).await, 99);
}

#[tokio::test]
async fn a_number_that_was_set_stays_for_ever() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, CHANNEL).await;
    enters(&backend, &permits("a:1", 2, 2)).await;
    backend.resize(&ResizeRequest::new(name("pool"), 5)).await.unwrap();
    assert_eq!(messages.next().await, "3");
    for key in ["pool", LEASES, "lockcore_permits:{pool}"] {
        assert_eq!(pttl(&server, key).await, -1, "{key}");
    }
    enters(&backend, &permits("b:1", 3, 2)).await;
    assert!(renews(&backend, &permits("b:1", 3, 2), LEASE).await);
    assert_eq!(pttl(&server, LEASES).await, -1);
    backend.resize(&ResizeRequest::new(name("pool"), 1)).await.unwrap();
    assert_eq!(left(&server).await, -4);
    let state = state(&backend, "pool").await;
    assert_eq!((state.available(), state.limit(), state.holders().len()), (Some(0), Some(1), 2));
    assert_eq!(too_many(&backend, &permits("c:1", 2, 2)).await, Some(1));
    assert_eq!(releases(&backend, &permits("b:1", 3, 2)).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "0", "Redisson's listeners know no negative numbers");
    assert_eq!(releases(&backend, &permits("a:1", 2, 2)).await, ReleaseOutcome::Released);
    assert_eq!((messages.next().await.as_str(), left(&server).await), ("1", 1));
    backend.resize(&ResizeRequest::new(name("pool"), 0)).await.unwrap();
    assert_eq!(too_many(&backend, &permits("c:1", 1, 2)).await, Some(0));
}

#[tokio::test]
async fn a_number_is_set_only_where_neither_side_has_set_one() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let set = async |permits| {
        let request = ResizeRequest::new(name("pool"), permits).only_if_unset(true);
        backend.resize(&request).await.unwrap()
    };
    // As Redisson's `trySetPermits` does it.
    let _: String = server.query(&["SET", "pool", "4"]).await;
    assert_eq!(set(7).await, ResizeOutcome::AlreadySet);
    enters(&backend, &permits("a:1", 1, 9)).await;
    assert_eq!((set(7).await, left(&server).await), (ResizeOutcome::AlreadySet, 3));

    let _: String = server.query(&["FLUSHALL"]).await;
    enters(&backend, &permits("a:1", 2, 3)).await;
    assert!(pttl(&server, "pool").await > 0, "the number of an acquisition is kept for a while");
    assert_eq!((set(5).await, left(&server).await), (ResizeOutcome::Resized, 3));
    assert_eq!(pttl(&server, "pool").await, -1);
    assert_eq!((set(9).await, left(&server).await), (ResizeOutcome::AlreadySet, 3));
}

#[tokio::test]
async fn redissons_numbers_are_used_as_they_are() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    set(&server, "2").await;
    assert!(!backend.force_release(&name("pool")).await.unwrap());
    let state_before = state(&backend, "pool").await;
    assert_eq!((state_before.available(), state_before.is_held()), (Some(2), false));
    let one = permits("a:1", 1, 9);
    enters(&backend, &one).await;
    assert_eq!(pttl(&server, "pool").await, -1, "stays without an end");
    assert_eq!(too_many(&backend, &permits("b:1", 3, 9)).await, Some(2));
    assert_eq!(releases(&backend, &one).await, ReleaseOutcome::Released);
    assert_eq!(left(&server).await, 2);

    // One of Redisson's permits expires: the next request takes it back.
    assert_eq!(java_takes(&server, "x", "1").await.as_deref(), Some("OK"));
    enters(&backend, &permits("b:1", 2, 9)).await;
    assert_eq!(left(&server).await, 0);
    set(&server, "many").await;
    assert_wrong_type(&backend, &permits("b:1", 1, 1)).await;
    assert_eq!(
        backend.force_release(&name("pool")).await.unwrap_err().kind(),
        BackendErrorKind::WrongType
    );
}

#[tokio::test]
async fn plain_permits_are_but_a_number_for_redisson() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, CHANNEL).await;
    set(&server, "3").await;
    enters(&backend, &plain("a:1", 2, 1)).await;
    assert!(!exists(&server, LEASES).await);
    assert_eq!(
        keys(&server).await,
        ["lockcore_permits:{pool}", "lockcore_permits_timeout:{pool}", "pool"]
    );
    // Redisson takes one and gives back two.
    let _: i64 = server.query(&["DECRBY", "pool", "1"]).await;
    assert!(refused_for(&backend, &plain("b:1", 9, 9)).await.is_some());
    let state = state(&backend, "pool").await;
    assert_eq!((state.available(), state.limit()), (Some(0), None));
    assert_eq!(state.holders()[0].owner(), "a:1");
    let _: i64 = server.query(&["INCRBY", "pool", "2"]).await;
    enters(&backend, &plain("b:1", 2, 9)).await;
    for request in [plain("a:1", 2, 1), plain("b:1", 2, 9)] {
        assert_eq!(releases(&backend, &request).await, ReleaseOutcome::Released);
    }
    assert_eq!((messages.next().await.as_str(), messages.next().await.as_str()), ("2", "4"));
    // One of our leases counts even if nobody ends it.
    enters(&backend, &lasting(plain("c:1", 4, 4), 30)).await;
    pass(40).await;
    enters(&backend, &plain("d:1", 4, 4)).await;
    assert!(backend.force_release(&name("pool")).await.unwrap());
    assert_eq!(left(&server).await, 4);
}

#[tokio::test]
async fn a_name_is_in_use_as_one_kind_of_semaphore() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &permits("a:1", 1, 3)).await;
    for mode in [Mode::plain_permits(1, 3), Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
        assert_wrong_type(&backend, &request("pool", &hold("a:1"), mode)).await;
    }
    let latches = backend.latches().unwrap();
    for error in [
        latches.set_count(&name("pool"), 2, "1").await.unwrap_err(),
        latches.count_down(&name("pool"), "2").await.unwrap_err(),
        latches.open(&name("pool")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    }
    assert_eq!(left(&server).await, 2);
    assert!(!exists(&server, "lockcore_latch:{pool}").await);

    let _: i64 = server.query(&["DEL", "pool"]).await;
    enters(&backend, &plain("a:1", 1, 3)).await;
    assert_wrong_type(&backend, &permits("a:1", 1, 3)).await;
    assert_eq!(
        backend.resize(&ResizeRequest::new(name("pool"), 9)).await.unwrap_err().kind(),
        BackendErrorKind::WrongType
    );
}

#[tokio::test]
async fn full_memory_keeps_no_permit() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for set in [false, true] {
        if set {
            backend.resize(&ResizeRequest::new(name("pool"), 3)).await.unwrap();
        }
        let taken = lasting(permits("a:1", 2, 3), 2_000);
        enters(&backend, &taken).await;
        fill(&server).await;
        for lock in ["pool", "new"] {
            let new = request(lock, &hold("b:1"), Mode::permits(1, 3));
            assert_eq!(
                backend.acquire(&new).await.unwrap_err().kind(),
                BackendErrorKind::OutOfMemory
            );
        }
        assert!(renews(&backend, &taken, LEASE).await);
        enters(&backend, &lasting(taken.clone(), 90_000)).await;
        assert_eq!(releases(&backend, &taken).await, ReleaseOutcome::Released);
        assert_eq!(left(&server).await, 3);
        let _: String = server.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    }
}

#[tokio::test]
async fn a_missing_right_costs_no_permit() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let name = "locks:pool";
    for missing in ["pexpire", "hset", "zadd", "incrby", "set"] {
        set_user(&server, "poor", &format!("reset on >pw {LEAST_RIGHTS} -{missing}")).await;
        let locks = Locks::new(connect_as(&server, "poor").await.unwrap());
        let refused = locks.semaphore(name, 3).try_acquire().await;
        assert!(refused.is_err(), "without {missing}");
        let left: Option<i64> = server.query(&["GET", name]).await;
        assert!(left.is_none_or(|left| left == 3), "without {missing}: {left:?}");
        let _: String = server.query(&["FLUSHALL"]).await;
    }
}
