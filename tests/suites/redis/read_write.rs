//! Read-write locks as they are stored, beside Redisson's.

use std::{collections::HashMap, time::Duration};

use lockcore::{
    BackendErrorKind, LossReason, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, SubscribeRequest},
};
use lockcore_testkit::RedisServer;

use crate::{
    steps::{
        JAVA, LEASE, Messages, assert_wrong_type, enters, exists, fill, hash, hold, holders, keys,
        lowers, name, pass, pttl, refused_for, releases, renews, request, state,
    },
    support::{assert_nothing_left, connect, locks, soon, until},
};

/// Acquires Redisson's read lock, in short.
async fn java_reads(server: &RedisServer, lock: &str, lease_ms: &str) -> Option<i64> {
    let script = "local mode = redis.call('hget', KEYS[1], 'mode') \
        if not mode then redis.call('hset', KEYS[1], 'mode', 'read') mode = 'read' end \
        if mode == 'read' or redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1 then \
            local n = redis.call('hincrby', KEYS[1], ARGV[2], 1) \
            redis.call('set', KEYS[2] .. ':' .. n, 1, 'px', ARGV[1]) \
            redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1])) return nil end \
        return redis.call('pttl', KEYS[1])";
    let lease = format!("{{{lock}}}:{JAVA}:rwlock_timeout");
    server.query(&["EVAL", script, "2", lock, &lease, lease_ms, JAVA]).await
}

async fn java_ends_reading(server: &RedisServer, lock: &str) -> Option<i64> {
    let script = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end \
        local n = redis.call('hincrby', KEYS[1], ARGV[1], -1) \
        if n == 0 then redis.call('hdel', KEYS[1], ARGV[1]) end \
        redis.call('del', KEYS[2] .. ':' .. ARGV[1] .. ':rwlock_timeout:' .. (n + 1)) \
        if redis.call('hlen', KEYS[1]) > 1 then \
            local most = -3 \
            for _, field in ipairs(redis.call('hkeys', KEYS[1])) do \
                local n = tonumber(redis.call('hget', KEYS[1], field)) \
                if type(n) == 'number' then for i = n, 1, -1 do \
                    most = math.max(most, redis.call('pttl', KEYS[2] .. ':' .. field .. ':rwlock_timeout:' .. i)) end end \
            end \
            if most > 0 then redis.call('pexpire', KEYS[1], most) return 0 end \
            if redis.call('hget', KEYS[1], 'mode') == 'write' then return 0 end \
        end \
        redis.call('del', KEYS[1]) redis.call('publish', 'redisson_rwlock:' .. KEYS[2], 0) return 1";
    server.query(&["EVAL", script, "2", lock, &format!("{{{lock}}}"), JAVA]).await
}

async fn java_writes(server: &RedisServer, lock: &str, lease_ms: &str) -> Option<i64> {
    let script = "if redis.call('hexists', KEYS[1], 'mode') == 1 then return redis.call('pttl', KEYS[1]) end \
        redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) return nil";
    server.query(&["EVAL", script, "1", lock, lease_ms, &format!("{JAVA}:write")]).await
}

async fn java_ends_writing(server: &RedisServer, lock: &str) -> i64 {
    let script = "redis.call('hdel', KEYS[1], ARGV[1]) \
        if redis.call('hlen', KEYS[1]) == 1 then redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], 1) \
        else redis.call('hset', KEYS[1], 'mode', 'read') end return 1";
    let channel = format!("redisson_rwlock:{{{lock}}}");
    server.query(&["EVAL", script, "2", lock, &channel, &format!("{JAVA}:write")]).await
}

fn reading(lock: &str, id: &str) -> AcquireRequest {
    request(lock, &hold(id), Mode::Read)
}

fn writing(lock: &str, id: &str) -> AcquireRequest {
    request(lock, &hold(id), Mode::Write)
}

fn lasting(mut request: AcquireRequest, ms: u64) -> AcquireRequest {
    request.lease = Duration::from_millis(ms);
    request
}

fn fields(fields: &[(&str, &str)]) -> HashMap<String, String> {
    fields.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn a_read_hold_is_a_field_and_a_lease_of_its_own() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let token = enters(&backend, &reading("doc", "a:1")).await;
    let later = enters(&backend, &lasting(reading("doc", "b:1"), 90_000)).await;
    assert!(later > token);
    assert_eq!(hash(&server, "doc").await, fields(&[("mode", "read"), ("a:1", "1"), ("b:1", "1")]));
    let lease = "{doc}:a:1:rwlock_timeout:1";
    assert_eq!(server.query::<String>(&["GET", lease]).await, format!("{token}:a:1"));
    assert!((55_000..=60_000).contains(&pttl(&server, lease).await));
    assert!(
        (85_000..=90_000).contains(&pttl(&server, "doc").await),
        "the lock lives as long as the longest"
    );
    assert_eq!(
        enters(&backend, &reading("doc", "a:1").count(2)).await,
        token,
        "the token of this hold"
    );

    assert_eq!(releases(&backend, &reading("doc", "b:1")).await, ReleaseOutcome::Released);
    let left = pttl(&server, "doc").await;
    assert!((55_000..=60_000).contains(&left), "and no longer: {left}");
    assert_eq!(lowers(&backend, &reading("doc", "a:1"), 1).await, ReleaseOutcome::StillHeld);
    assert!(renews(&backend, &reading("doc", "a:1"), Duration::from_secs(100)).await);
    assert!(pttl(&server, "doc").await > 95_000 && pttl(&server, lease).await > 95_000);
    assert_eq!(releases(&backend, &reading("doc", "a:1")).await, ReleaseOutcome::Released);
    assert_eq!(keys(&server).await, Vec::<String>::new());
    assert_eq!(releases(&backend, &reading("doc", "a:1")).await, ReleaseOutcome::NotHeld);
}

#[tokio::test]
async fn a_write_hold_is_one_for_redisson_too() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    let token = enters(&backend, &writing("doc", "a:1")).await;
    assert_eq!(
        hash(&server, "doc").await,
        fields(&[("mode", "write"), ("a:1:lockcore:write", "1")])
    );
    let lease = "{doc}:a:1:lockcore:write:rwlock_timeout:1";
    assert_eq!(server.query::<String>(&["GET", lease]).await, format!("{token}:a:1"));
    assert!(java_reads(&server, "doc", "30000").await.is_some_and(|left| left > 55_000));
    assert!(java_writes(&server, "doc", "30000").await.is_some_and(|left| left > 55_000));
    assert!(refused_for(&backend, &reading("doc", "b:1")).await.is_some_and(|left| left > 55_000));
    assert_eq!(holders(&state(&backend, "doc").await), [("a:1", Mode::Write, 1)]);
    assert_eq!(releases(&backend, &writing("doc", "a:1")).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "1", "for those of Redisson who sleep");
    assert_eq!(messages.next().await, "0", "and for one that is about to");
    assert_eq!(keys(&server).await, Vec::<String>::new());
    assert_eq!(java_writes(&server, "doc", "30000").await, None);
}

#[tokio::test]
async fn redissons_readers_and_ours_share() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    for _ in 0..2 {
        assert_eq!(java_reads(&server, "doc", "90000").await, None);
    }
    enters(&backend, &reading("doc", "a:1")).await;
    assert_eq!(
        holders(&state(&backend, "doc").await),
        [(JAVA, Mode::Read, 2), ("a:1", Mode::Read, 1)]
    );
    let left = refused_for(&backend, &writing("doc", "b:1")).await;
    assert!(left.is_some_and(|left| left > 85_000), "until the last of the leases: {left:?}");
    for _ in 0..2 {
        assert_eq!(java_ends_reading(&server, "doc").await, Some(0), "it finds the lease of ours");
    }
    assert!(
        (55_000..=60_000).contains(&pttl(&server, "doc").await),
        "and has the lock live as long"
    );
    assert_eq!(releases(&backend, &reading("doc", "a:1")).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "0");

    enters(&backend, &reading("doc", "a:1")).await;
    assert_eq!(java_reads(&server, "doc", "30000").await, None);
    assert_eq!(releases(&backend, &reading("doc", "a:1")).await, ReleaseOutcome::Released);
    let left = pttl(&server, "doc").await;
    assert!((25_000..=30_000).contains(&left), "{left}");
    assert_eq!(java_ends_reading(&server, "doc").await, Some(1));
    assert_nothing_left_but_subscription(&server).await;
}

async fn assert_nothing_left_but_subscription(server: &RedisServer) {
    assert_eq!(keys(server).await, Vec::<String>::new());
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}

#[tokio::test]
async fn redissons_writer_is_waited_for_and_its_message_heard() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    assert_eq!(java_writes(&server, "doc", "30000").await, None);
    for request in [reading("doc", "a:1"), writing("doc", "a:1").queue(Some(LEASE))] {
        assert!(
            refused_for(&backend, &request)
                .await
                .is_some_and(|left| (25_000..=30_000).contains(&left))
        );
    }
    assert_eq!(holders(&state(&backend, "doc").await), [(JAVA, Mode::Write, 1)]);
    let mut wakeups = backend
        .subscribe(&SubscribeRequest::new(name("doc"), hold("a:1")).mode(Mode::Read))
        .await
        .unwrap();
    assert_eq!(java_ends_writing(&server, "doc").await, 1);
    soon("the message", wakeups.woken()).await;
    let reader = reading("doc", "a:1");
    enters(&backend, &reader).await;
    assert_eq!(releases(&backend, &reader).await, ReleaseOutcome::Released);
    drop(wakeups);
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn after_a_downgrade_redissons_readers_enter_and_are_told_so() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    let (writer, owner) = (writing("doc", "a:1"), hold("a:2"));
    enters(&backend, &writer).await;
    let reader = request("doc", &owner, Mode::Read).within(Some(writer.hold.clone()));
    enters(&backend, &reader).await;
    assert!(refused_for(&backend, &reading("doc", "b:1")).await.is_some());
    let other = reading("doc", "b:1").within(Some(hold("b:7")));
    assert!(refused_for(&backend, &other).await.is_some(), "within a hold that is not there");
    assert_eq!(releases(&backend, &writer).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "1", "Redisson itself tells nobody");
    assert_eq!(hash(&server, "doc").await, fields(&[("mode", "read"), ("a:2", "1")]));
    assert_eq!(java_reads(&server, "doc", "30000").await, None);
    assert_eq!(java_ends_reading(&server, "doc").await, Some(0));
    assert_eq!(releases(&backend, &reader).await, ReleaseOutcome::Released);
    assert_nothing_left_but_subscription(&server).await;
}

#[tokio::test]
async fn holds_whose_lease_is_over_are_in_nobodys_way() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // A reader that has crashed, beside one that has not.
    assert_eq!(java_reads(&server, "doc", "30").await, None);
    enters(&backend, &lasting(reading("doc", "a:1"), 30)).await;
    let alive = reading("doc", "b:1");
    enters(&backend, &alive).await;
    pass(40).await;
    assert_eq!(holders(&state(&backend, "doc").await), [("b:1", Mode::Read, 1)]);
    assert!(!renews(&backend, &reading("doc", "a:1"), LEASE).await);
    assert_eq!(releases(&backend, &reading("doc", "a:1")).await, ReleaseOutcome::NotHeld);
    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    assert_eq!(releases(&backend, &alive).await, ReleaseOutcome::Released);
    assert_eq!(messages.next().await, "0", "it was the last that lived");
    assert_eq!(keys(&server).await, Vec::<String>::new());

    // A writer that has crashed, beside its own reader: the lock is held by readers.
    let writer = lasting(writing("doc", "a:1"), 30);
    enters(&backend, &writer).await;
    enters(&backend, &reading("doc", "a:2").within(Some(writer.hold.clone()))).await;
    pass(40).await;
    assert_eq!(holders(&state(&backend, "doc").await), [("a:2", Mode::Read, 1)]);
    enters(&backend, &reading("doc", "b:1")).await;
    assert_eq!(hash(&server, "doc").await, fields(&[("mode", "read"), ("a:2", "1"), ("b:1", "1")]));

    // All have crashed: a forced release has nothing to free, and a writer may enter.
    assert!(backend.force_release(&name("doc")).await.unwrap());
    enters(&backend, &lasting(reading("doc", "a:1"), 1500)).await;
    assert_eq!(server.query::<i64>(&["PEXPIRE", "doc", "60000"]).await, 1);
    pass(1510).await;
    enters(&backend, &writing("doc", "b:1")).await;
    assert_eq!(
        hash(&server, "doc").await,
        fields(&[("mode", "write"), ("b:1:lockcore:write", "1")])
    );
}

#[tokio::test]
async fn writers_that_wait_keep_new_readers_out_each_for_its_own_time() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let reader = reading("doc", "a:1");
    enters(&backend, &reader).await;
    let first = writing("doc", "b:1").queue(Some(LEASE));
    let second = request("doc", &HoldId::named("bob", "c:1"), Mode::Write).queue(Some(LEASE / 2));
    for writer in [&first, &second] {
        assert!(refused_for(&backend, writer).await.is_some());
    }
    let waiting: Vec<String> = server.query(&["ZRANGE", "lockcore_writer:{doc}", "0", "-1"]).await;
    assert_eq!(waiting, ["c:1 bob", "b:1 b:1"]);
    assert_eq!(state(&backend, "doc").await.waiters(), ["bob", "b:1"]);
    assert!(pttl(&server, "lockcore_writer:{doc}").await > 55_000);
    let left = refused_for(&backend, &reading("doc", "d:1")).await;
    assert!(left.is_some_and(|left| left > 55_000), "{left:?}");
    enters(&backend, &reader.clone().count(2)).await;

    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    assert_eq!(releases(&backend, &first).await, ReleaseOutcome::NotHeld);
    assert_eq!(messages.next().await, "1");
    let left = refused_for(&backend, &reading("doc", "d:1")).await;
    assert!(left.is_some_and(|left| left < 31_000), "the other one waits still: {left:?}");
    assert_eq!(releases(&backend, &reader).await, ReleaseOutcome::Released);
    enters(&backend, &second).await;
    assert!(!exists(&server, "lockcore_writer:{doc}").await, "it does not wait any more");
    assert_eq!(releases(&backend, &second).await, ReleaseOutcome::Released);
    assert_nothing_left_but_subscription(&server).await;
}

#[tokio::test]
async fn names_that_redisson_stores_alike_keep_each_others_readers_in() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for lock in ["doc", "{doc}"] {
        enters(&backend, &reading(lock, &format!("{lock}:1"))).await;
    }
    assert!(refused_for(&backend, &writing("doc", "w:1").queue(Some(LEASE))).await.is_some());
    enters(&backend, &reading("{doc}", "b:1")).await;
    assert!(refused_for(&backend, &reading("doc", "b:2")).await.is_some());
    assert!(exists(&server, "{doc}:b:1:rwlock_timeout:1").await);
}

#[tokio::test]
async fn a_named_owner_takes_over_and_what_comes_late_does_not() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for mode in [Mode::Read, Mode::Write] {
        let [old, new] =
            ["c:1", "c:2"].map(|id| request("doc", &HoldId::named("nightly", id), mode));
        let token = enters(&backend, &old).await;
        let later = enters(&backend, &new).await;
        assert!(later > token);
        assert!(!renews(&backend, &old, LEASE).await && renews(&backend, &new, LEASE).await);
        assert_eq!(releases(&backend, &old).await, ReleaseOutcome::NotHeld);
        assert!(
            refused_for(&backend, &old).await.is_some(),
            "a newer one of the same client has overtaken it"
        );
        let nested = backend.acquire(&old.clone().count(2)).await.unwrap();
        assert!(!matches!(nested, AcquireOutcome::Acquired { .. }));
        assert_eq!(holders(&state(&backend, "doc").await), [("nightly", mode, 1)]);
        assert_eq!(releases(&backend, &new).await, ReleaseOutcome::Released);
    }
    assert_nothing_left(&server).await;
    let error = backend.acquire(&reading("doc", "mode")).await.unwrap_err();
    assert!(error.to_string().contains("mode") && !error.is_outcome_unknown(), "{error}");
}

/// The server that takes over after a failover has not heard of the grant: it keeps readers out for
/// a writer that waits no longer.
#[tokio::test]
async fn a_writer_whose_grant_a_failover_lost_keeps_no_reader_out() {
    const WAITING: &str = "lockcore_writer:{doc}";
    let server = RedisServer::start();
    let (one, other) = (locks(&server).await, locks(&server).await);
    let read = one.rw_lock("doc").read().acquire().await.unwrap();
    let waiting = tokio::spawn(other.rw_lock("doc").write().acquire());
    until("the waiting writer", || exists(&server, WAITING)).await;
    let member: Vec<String> = server.query(&["ZRANGE", WAITING, "0", "0", "WITHSCORES"]).await;
    read.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(!exists(&server, WAITING).await);

    let _: i64 = server.query(&["ZADD", WAITING, &member[1], &member[0]]).await;
    let _: i64 = server.query(&["PEXPIRE", WAITING, "60000"]).await;
    let _: i64 = server.query(&["DEL", "doc"]).await;
    assert_eq!(soon("the loss", guard.lost()).await.reason(), LossReason::Gone);
    until("the end of its place", async || !exists(&server, WAITING).await).await;
    let read = soon("a reader", one.rw_lock("doc").read().acquire()).await.unwrap();
    read.release().await.unwrap();
}

#[tokio::test]
async fn a_forced_release_takes_every_lease_with_it() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut messages = Messages::of(&server, "redisson_rwlock:{doc}").await;
    for _ in 0..3 {
        assert_eq!(java_reads(&server, "doc", "30000").await, None);
    }
    enters(&backend, &reading("doc", "a:1")).await;
    assert!(backend.force_release(&name("doc")).await.unwrap());
    assert_eq!(messages.next().await, "1");
    assert_eq!(keys(&server).await, Vec::<String>::new());
    assert!(!backend.force_release(&name("doc")).await.unwrap());
}

#[tokio::test]
async fn a_name_is_in_use_as_one_kind_at_a_time() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let exclusive = request("doc", &hold("a:1"), Mode::Exclusive);
    let modes = [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, Mode::permits(1, 2)];
    enters(&backend, &exclusive).await;
    let before = hash(&server, "doc").await;
    for mode in [Mode::Read, Mode::Write, Mode::permits(1, 2), Mode::plain_permits(1, 2)] {
        assert_wrong_type(&backend, &request("doc", &hold("a:1"), mode)).await;
        assert_wrong_type(&backend, &request("doc", &hold("b:1"), mode).queue(Some(LEASE))).await;
    }
    assert_eq!((keys(&server).await, hash(&server, "doc").await), (vec!["doc".to_owned()], before));
    assert_eq!(releases(&backend, &exclusive).await, ReleaseOutcome::Released);

    for held in [Mode::Read, Mode::Write] {
        let holding = request("doc", &HoldId::named("a", "a:1"), held);
        enters(&backend, &holding).await;
        let before = (keys(&server).await, hash(&server, "doc").await);
        for mode in modes.into_iter().filter(|mode| !matches!(mode, Mode::Read | Mode::Write)) {
            for hold in [hold("a:1"), HoldId::named("a", "a:2"), hold("b:1")] {
                let other = request("doc", &hold, mode).queue(Some(LEASE));
                assert_wrong_type(&backend, &other).await;
                if !matches!(mode, Mode::Permit { .. }) {
                    assert!(!renews(&backend, &other, LEASE).await);
                    assert_eq!(releases(&backend, &other).await, ReleaseOutcome::NotHeld);
                }
            }
        }
        assert_eq!((keys(&server).await, hash(&server, "doc").await), before);
        assert_eq!(releases(&backend, &holding).await, ReleaseOutcome::Released);
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn full_memory_ends_no_hold_and_keeps_none() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (writer, reader) = (writing("doc", "a:1"), reading("doc", "a:2"));
    enters(&backend, &writer).await;
    enters(&backend, &reader.clone().within(Some(writer.hold.clone()))).await;
    enters(&backend, &reading("other", "c:1")).await;
    fill(&server).await;
    for new in [reading("new", "b:1"), writing("new", "b:1").queue(Some(LEASE))] {
        assert_eq!(backend.acquire(&new).await.unwrap_err().kind(), BackendErrorKind::OutOfMemory);
    }
    assert!(!exists(&server, "new").await);
    assert!(
        renews(&backend, &writer, LEASE * 2).await && renews(&backend, &reader, LEASE * 2).await
    );
    for request in [&writer, &reader, &reading("other", "c:1")] {
        assert_eq!(releases(&backend, request).await, ReleaseOutcome::Released);
    }
    assert_nothing_left(&server).await;
}
