//! A holder learns that others want its lock: from refusals, and from current waiters.

use std::time::{Duration, Instant};

use lockcore::{
    Locks, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, HoldId, SubscribeRequest,
        Wakeups,
    },
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, poll_times, server_lacks};

use crate::{
    batches::{begin, end, exclusive, is_granted, outcome},
    command_proxy::{CommandProxy, Fate},
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{Messages, enters, hold, name, refused_for, releases, request, state},
    support::{connect, impatient, locks, soon, until},
};

/// Subscribes to the demand for a lock.
pub(crate) async fn await_demand(backend: &RedisBackend, lock: &str) -> Box<dyn Wakeups> {
    let request = SubscribeRequest::new(name(lock), hold("holder")).awaited(Awaited::Demand);
    soon("the subscription", backend.subscribe(&request)).await.unwrap()
}

/// Shows that nobody has wanted the lock since the last wake-up.
pub(crate) async fn assert_unwanted(demand: &mut Box<dyn Wakeups>) {
    assert!(poll_times(1, demand.woken()).await.is_none(), "the lock is wanted");
}

async fn is_refused(backend: &RedisBackend, request: &AcquireRequest) {
    assert!(refused_for(backend, request).await.is_some_and(|ms| ms > 0));
}

fn channel_of(lock: &str) -> String {
    format!("redisson_lock__channel:{{{lock}}}:wanted")
}

#[tokio::test]
async fn a_refusal_is_a_two_on_a_channel_of_its_own() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let tagged = "redisson_lock__channel:{shop}:order:wanted";
    for (lock, channel) in [("plain", &*channel_of("plain")), ("{shop}:order", tagged)] {
        let mut wanted = Messages::of(&server, channel).await;
        let mut ended = Messages::of(&server, channel.strip_suffix(":wanted").unwrap()).await;
        let held = exclusive(lock, 1);
        enters(&backend, &held).await;
        let named = HoldId::named("job-17", "client:2");
        let nested = exclusive(lock, 3).count(2);
        let requests = [exclusive(lock, 2), request(lock, &named, Mode::Exclusive), nested];
        for refused in requests {
            is_refused(&backend, &refused).await;
            assert_eq!(wanted.next().await, "2", "{refused:?}");
        }
        releases(&backend, &held).await;
        assert_eq!(ended.next().await, "0", "the release is the first message of the other one");
    }
}

#[tokio::test]
async fn with_a_prefix_the_channel_has_it_as_well() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder().url(server.url()).key_prefix("app:").connect().await;
    let backend = backend.unwrap();
    let mut messages = Messages::of(&server, &channel_of("app:a")).await;
    let mut demand = await_demand(&backend, "a").await;
    enters(&backend, &exclusive("a", 1)).await;
    is_refused(&backend, &exclusive("a", 2)).await;
    assert_eq!(messages.next().await, "2");
    soon("the demand", demand.woken()).await;
}

#[tokio::test]
async fn only_refusals_are_published() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let before = server.calls_of("publish").await;
    let held = exclusive("a", 1);
    for request in [held.clone(), held.clone(), held.clone().count(2)] {
        enters(&backend, &request).await;
    }
    let absent = backend.acquire(&exclusive("b", 1).count(2)).await.unwrap();
    assert_eq!(absent, AcquireOutcome::NotHeld);
    assert_eq!(server.calls_of("publish").await, before);
    is_refused(&backend, &exclusive("a", 2)).await;
    assert_eq!(server.calls_of("publish").await, before + 1);
}

#[tokio::test]
async fn every_refusal_in_a_batch_wakes() {
    let server = RedisServer::start();
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let locks: Vec<String> = (0..20).map(|number| format!("lock:{number}")).collect();
    let mut demands = Vec::new();
    for lock in &locks {
        enters(&holder, &exclusive(lock, 1)).await;
        demands.push(await_demand(&holder, lock).await);
    }
    let requests: Vec<_> = locks.iter().map(|lock| exclusive(lock, 2)).collect();
    for demand in &mut demands {
        assert_unwanted(demand).await;
    }
    for round in 0..2 {
        let before = server.calls_of("evalsha").await;
        let first = begin(&other, &exclusive("first", round));
        let tasks: Vec<_> = requests.iter().map(|request| begin(&other, request)).collect();
        let last = begin(&other, &exclusive("last", round));
        assert!(is_granted(first).await);
        for task in tasks {
            let refusal = outcome(task).await.unwrap();
            assert!(matches!(refusal, AcquireOutcome::Held { remaining: Some(_) }), "{refusal:?}");
        }
        assert!(is_granted(last).await);
        let calls = server.calls_of("evalsha").await - before;
        assert!(calls <= 4, "{calls} calls for 22 requests");
        for demand in &mut demands {
            soon("the demand", demand.woken()).await;
            assert_unwanted(demand).await;
        }
        for lock in ["first", "last"] {
            outcome(end(&other, &exclusive(lock, round))).await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_who_waits_as_redisson_does_is_heard_of_at_once() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    enters(&backend, &exclusive("a", 1)).await;
    let mut before = await_demand(&backend, "a").await;
    let _waits = Messages::of(&server, "redisson_lock__channel:{a}").await;
    assert_unwanted(&mut before).await;
    let mut after = await_demand(&backend, "a").await;
    assert!(poll_times(1, after.woken()).await.is_some(), "the waiter is known already");
    assert_unwanted(&mut after).await;
    is_refused(&backend, &exclusive("a", 2)).await;
    soon("the demand", async { tokio::join!(before.woken(), after.woken()) }).await;
}

#[tokio::test]
async fn without_the_right_to_ask_for_waiters_refusals_are_heard_of() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let other = connect(&server).await;
    let _waits = Messages::of(&server, "redisson_lock__channel:{locks:a}").await;
    for (right, is_told) in [("+pubsub|numsub", true), ("-pubsub", false)] {
        set_user(&server, "worker", &format!("{LEAST_RIGHTS} {right}")).await;
        let backend = connect_as(&server, "worker").await.unwrap();
        let held = exclusive("locks:a", 1);
        enters(&backend, &held).await;
        let mut demand = await_demand(&backend, "locks:a").await;
        assert_eq!(poll_times(1, demand.woken()).await.is_some(), is_told, "{right}");
        is_refused(&other, &exclusive("locks:a", 2)).await;
        soon("the demand", demand.woken()).await;
        releases(&backend, &held).await;
    }
}

#[tokio::test]
async fn one_who_may_not_publish_is_refused_all_the_same() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let locks: Vec<String> = (0..8).map(|number| format!("locks:{number}")).collect();
    for lock in &locks {
        enters(&holder, &exclusive(lock, 1)).await;
    }
    for rights in ["-publish", "resetchannels"] {
        set_user(&server, "mute", &format!("{LEAST_RIGHTS} {rights}")).await;
        let mute = connect_as(&server, "mute").await.unwrap();
        is_refused(&mute, &exclusive("locks:0", 2)).await;
        let named = HoldId::named("job-17", "client:2");
        is_refused(&mute, &request("locks:0", &named, Mode::Exclusive)).await;
        let tasks: Vec<_> = locks.iter().map(|lock| begin(&mute, &exclusive(lock, 2))).collect();
        for task in tasks {
            let refusal = outcome(task).await.unwrap();
            assert!(matches!(refusal, AcquireOutcome::Held { remaining: Some(_) }), "{refusal:?}");
        }
    }
    assert_eq!(state(&holder, "locks:0").await.holders()[0].owner(), "client:1");
}

#[tokio::test]
async fn where_no_messages_arrive_there_is_no_demand() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    assert!(connect(&server).await.capabilities().contains(Capabilities::DEMAND));
    set_user(&server, "mute", &format!("{LEAST_RIGHTS} -publish")).await;
    let mute = connect_as(&server, "mute").await.unwrap();
    assert!(!mute.capabilities().contains(Capabilities::DEMAND));
}

/// A service without `PUBSUB`, and one that ends the connection for it.
#[tokio::test]
async fn a_server_that_cannot_be_asked_for_waiters_wakes_all_the_same() {
    let server = RedisServer::start();
    let other = connect(&server).await;
    let _waits = Messages::of(&server, "redisson_lock__channel:{a}").await;
    for cuts in [false, true] {
        let proxy = CommandProxy::start(&server, move |parts| match parts[0].as_str() {
            "PUBSUB" if cuts => Fate::Cut,
            "PUBSUB" => Fate::Refuse("ERR unknown command PUBSUB"),
            _ => Fate::Pass,
        });
        let proxy = proxy.await;
        let backend = RedisBackend::connect(proxy.url()).await.unwrap();
        let held = exclusive("a", 1);
        enters(&backend, &held).await;
        let mut demand = await_demand(&backend, "a").await;
        assert_eq!(proxy.hits(), 1);
        if cuts {
            soon("the interruption", demand.woken()).await;
            until("a subscription", || async { is_listened_to(&server, "a").await }).await;
        }
        is_refused(&other, &exclusive("a", 2)).await;
        soon("the demand", demand.woken()).await;
        releases(&connect(&server).await, &held).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_the_subscription_for_one_time_out() {
    const TIME_OUT: Duration = Duration::from_secs(2);
    let server = RedisServer::start();
    let proxy = CommandProxy::start(&server, |parts| match parts[0].as_str() {
        "PUBSUB" => Fate::Silence,
        _ => Fate::Pass,
    });
    let proxy = proxy.await;
    let impatient = impatient(&server).url(proxy.url()).response_timeout(TIME_OUT);
    let backend = impatient.connect().await.unwrap();
    let start = Instant::now();
    let mut demand = await_demand(&backend, "a").await;
    let waited = start.elapsed();
    assert!(waited < 2 * TIME_OUT, "a time-out of {TIME_OUT:?}, not {waited:?}");
    // The connections are new, so every subscriber checks again.
    soon("the interruption", demand.woken()).await;
    until("a subscription", || async { is_listened_to(&server, "a").await }).await;
    enters(&backend, &exclusive("a", 1)).await;
    is_refused(&connect(&server).await, &exclusive("a", 2)).await;
    soon("the demand", demand.woken()).await;
}

#[tokio::test]
async fn an_interruption_counts_as_demand_and_the_next_refusal_is_heard() {
    let server = RedisServer::start();
    let (holder, other) = (connect(&server).await, connect(&server).await);
    enters(&holder, &exclusive("a", 1)).await;
    let mut demand = await_demand(&holder, "a").await;
    for _ in 0..3 {
        assert_unwanted(&mut demand).await;
        let killed: i64 = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 1, "one connection for messages");
        // At this time nobody can hear it.
        is_refused(&other, &exclusive("a", 2)).await;
        soon("the interruption", demand.woken()).await;
        until("a subscription", || async { is_listened_to(&server, "a").await }).await;
        // The subscription may have caused an extra wake-up.
        while poll_times(1, demand.woken()).await.is_some() {}
        is_refused(&other, &exclusive("a", 2)).await;
        soon("the demand", demand.woken()).await;
    }
}

/// Sooner than a kept lock would be released anyway.
#[tokio::test]
async fn a_kept_lock_is_given_back_for_another_client() {
    let server = RedisServer::start();
    let linger = Duration::from_millis(100);
    let builder = Locks::builder(connect(&server).await).hand_over(Duration::from_secs(10));
    let keeper = builder.linger(linger).build().unwrap();
    let other = locks(&server).await;
    let mut waits = Vec::new();
    for _ in 0..9 {
        keeper.lock("kept").acquire().await.unwrap().release().await.unwrap();
        until("a subscription", || async { is_listened_to(&server, "kept").await }).await;
        let start = Instant::now();
        let guard = soon("the lock", other.lock("kept").acquire()).await.unwrap();
        waits.push(start.elapsed());
        guard.release().await.unwrap();
    }
    waits.sort();
    assert!(waits[4] < linger / 2, "{waits:?}");
}

#[tokio::test]
async fn the_channel_is_left_with_the_last_who_listens() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let [one, other] = [await_demand(&backend, "a").await, await_demand(&backend, "a").await];
    drop(one);
    assert!(is_listened_to(&server, "a").await);
    drop(other);
    until("the end of the subscription", || async { server.channels().await.is_empty() }).await;
    let request = SubscribeRequest::new(name("a"), hold("holder")).awaited(Awaited::Demand);
    // Dropped at each await, including while the server is asked for waiters.
    for polls in 0..8 {
        drop(poll_times(polls, backend.subscribe(&request)).await);
        until("the end of the subscription", || async { server.channels().await.is_empty() }).await;
    }
}

async fn is_listened_to(server: &RedisServer, lock: &str) -> bool {
    server.channels().await.contains(&channel_of(lock))
}
