//! Grants that end earlier than the waiters were told, and are published.

use std::time::Duration;

use lockcore::{
    Mode,
    backend::{AcquireRequest, HoldId, ReleaseOutcome},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::{
    steps::{
        JAVA, LEASE, Messages, enters, exists, hold, keys, pass, pttl, refused_for, releases,
        request,
    },
    support::{assert_nothing_left, connect},
};

const EXCLUSIVE_CHANNEL: &str = "redisson_lock__channel:{a}";
const READ_WRITE_CHANNEL: &str = "redisson_rwlock:{a}";

fn named(id: &str, mode: Mode, ms: u64) -> AcquireRequest {
    lasting(request("a", &HoldId::named("nightly", id), mode), ms)
}

fn lasting(mut request: AcquireRequest, ms: u64) -> AcquireRequest {
    request.lease = Duration::from_millis(ms);
    request
}

fn channel_of(mode: Mode) -> &'static str {
    if matches!(mode, Mode::Read | Mode::Write) { READ_WRITE_CHANNEL } else { EXCLUSIVE_CHANNEL }
}

/// Publishes a mark: whatever follows it on the channel was published later.
async fn mark(server: &RedisServer, channel: &str) {
    let _: i64 = server.query(&["PUBLISH", channel, "mark"]).await;
}

async fn released(backend: &RedisBackend, request: &AcquireRequest) {
    assert_eq!(releases(backend, request).await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_grant_that_ends_no_earlier_publishes_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
        let mut messages = Messages::of(&server, channel_of(mode)).await;
        for (free, place) in [("x:1", None), ("x:2", Some(LEASE))] {
            let free = request("a", &hold(free), mode).queue(place);
            enters(&backend, &free).await;
            enters(&backend, &lasting(free.clone(), 1)).await;
            mark(&server, channel_of(mode)).await;
            assert_eq!(messages.next().await, "mark", "{mode}, free");
            released(&backend, &free).await;
            let last = match mode {
                Mode::Write => "1",
                Mode::Fair => "00",
                _ => "0",
            };
            assert_eq!(messages.next().await, last, "{mode}, the release");
            if mode == Mode::Write {
                assert_eq!(messages.next().await, "0");
            }
        }
        enters(&backend, &named("c:1", mode, 30_000)).await;
        enters(&backend, &named("c:2", mode, 30_000)).await;
        let last = named("c:3", mode, 60_000);
        enters(&backend, &last).await;
        mark(&server, channel_of(mode)).await;
        assert_eq!(messages.next().await, "mark", "{mode}, a takeover for as long");
        released(&backend, &last).await;
    }
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn a_takeover_that_ends_earlier_is_published_and_seen_by_redisson() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
        let mut messages = Messages::of(&server, channel_of(mode)).await;
        enters(&backend, &named("c:1", mode, 60_000)).await;
        let waiter = match mode {
            Mode::Fair => request("a", &hold("w:1"), mode).queue(Some(LEASE)),
            Mode::Read => request("a", &hold("w:1"), Mode::Write).queue(Some(LEASE)),
            _ => request("a", &hold("w:1"), mode),
        };
        let mut turns = Messages::of(&server, &format!("{EXCLUSIVE_CHANNEL}:w:1")).await;
        assert!(refused_for(&backend, &waiter).await.is_some_and(|left| left > 50_000), "{mode}");
        let last = named("c:2", mode, 5_000);
        enters(&backend, &last).await;
        if matches!(mode, Mode::Read | Mode::Write) {
            assert_eq!(messages.next().await, "1", "{mode}: for every waiter of Redisson's");
        }
        assert_eq!(messages.next().await, "0", "{mode}");
        if mode == Mode::Fair {
            assert_eq!(turns.next().await, "0");
        }
        assert!(refused_for(&backend, &waiter).await.is_some_and(|left| left <= 5_000), "{mode}");
        let left = pttl(&server, "a").await;
        assert!((0..=5_000).contains(&left), "{mode}: Redisson's waiters would sleep for {left}");
        released(&backend, &last).await;
        releases(&backend, &waiter).await;
    }
    assert_nothing_left(&server).await;
}

/// The lock lasts as long as the hold that ends last, whose release is thereby recognized as the
/// last.
#[tokio::test]
async fn a_reader_beside_one_that_was_taken_over_for_a_short_time_is_the_last() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let other = lasting(request("a", &hold("r:1"), Mode::Read), 20_000);
    enters(&backend, &named("c:1", Mode::Read, 60_000)).await;
    enters(&backend, &other).await;
    enters(&backend, &named("c:2", Mode::Read, 20)).await;
    let left = pttl(&server, "a").await;
    assert!((15_000..=20_000).contains(&left), "as long as the other reader, not {left}");
    pass(40).await;
    let mut messages = Messages::of(&server, READ_WRITE_CHANNEL).await;
    released(&backend, &other).await;
    assert_eq!(messages.next().await, "0", "it was the last that lived");
    assert!(!exists(&server, "a").await);
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

/// The writer inside stays longer than the reader was told, and so do the readers inside.
#[tokio::test]
async fn a_writer_that_is_taken_over_for_a_short_time_leaves_the_readers_inside_alone() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let first = named("c:1", Mode::Write, 60_000);
    enters(&backend, &first).await;
    let inside = lasting(request("a", &hold("r:1"), Mode::Read), 40_000);
    let inside = inside.within(Some(first.hold.clone()));
    enters(&backend, &inside).await;
    let mut messages = Messages::of(&server, READ_WRITE_CHANNEL).await;
    enters(&backend, &named("c:2", Mode::Write, 20)).await;
    assert_eq!(messages.next().await, "1");
    assert_eq!(messages.next().await, "0");
    let left = pttl(&server, "a").await;
    assert!((35_000..=40_000).contains(&left), "as long as the reader inside, not {left}");
    pass(40).await;
    let reader = request("a", &hold("r:2"), Mode::Read);
    enters(&backend, &reader).await;
    for request in [reader, inside] {
        released(&backend, &request).await;
    }
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

/// A waiting writer kept readers out for longer than it stays.
#[tokio::test]
async fn a_writer_that_comes_in_for_less_than_its_place_tells_the_readers() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let reading = request("a", &hold("r:1"), Mode::Read);
    let writing = lasting(request("a", &hold("w:1"), Mode::Write), 5_000).queue(Some(LEASE));
    let newcomer = request("a", &hold("r:2"), Mode::Read);
    enters(&backend, &reading).await;
    assert!(refused_for(&backend, &writing).await.is_some());
    assert!(refused_for(&backend, &newcomer).await.is_some_and(|left| left > 50_000));
    released(&backend, &reading).await;
    let mut messages = Messages::of(&server, READ_WRITE_CHANNEL).await;
    enters(&backend, &writing).await;
    assert_eq!(messages.next().await, "1");
    assert_eq!(messages.next().await, "0");
    assert!(refused_for(&backend, &newcomer).await.is_some_and(|left| left <= 5_000));
    released(&backend, &writing).await;

    // A place that is over sooner than the hold has not kept anybody out for longer.
    enters(&backend, &reading).await;
    let writing = writing.queue(Some(Duration::from_secs(2)));
    assert!(refused_for(&backend, &writing).await.is_some());
    released(&backend, &reading).await;
    let mut messages = Messages::of(&server, READ_WRITE_CHANNEL).await;
    enters(&backend, &writing).await;
    mark(&server, READ_WRITE_CHANNEL).await;
    assert_eq!(messages.next().await, "mark");
    released(&backend, &writing).await;
    assert_eq!(keys(&server).await, Vec::<String>::new());
}

/// A waiter sleeps no longer than the place in the refusal says, whoever it is.
#[tokio::test]
async fn a_fair_hold_that_ends_before_the_place_of_the_next_tells_it() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let holder = request("a", &hold("h:1"), Mode::Fair);
    let first = lasting(request("a", &hold("f:1"), Mode::Fair), 10_000);
    let first = first.queue(Some(Duration::from_secs(5)));
    for (next, time, is_told) in [("ours:1", 30, true), ("ours:1", 5, false), (JAVA, 300, true)] {
        let next = request("a", &hold(next), Mode::Fair).queue(Some(Duration::from_secs(time)));
        enters(&backend, &holder).await;
        for waiter in [&first, &next] {
            assert!(refused_for(&backend, waiter).await.is_some());
        }
        released(&backend, &holder).await;
        let channel = format!("{EXCLUSIVE_CHANNEL}:{}", next.hold.owner());
        let mut messages = Messages::of(&server, &channel).await;
        enters(&backend, &first).await;
        mark(&server, &channel).await;
        assert_eq!(messages.next().await == "0", is_told, "a place for {time} s");
        releases(&backend, &next).await;
        released(&backend, &first).await;
    }
    assert_nothing_left(&server).await;
}
