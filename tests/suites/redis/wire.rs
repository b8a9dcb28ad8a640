//! The bytes that Redisson expects and writes.

use std::{collections::HashMap, time::Duration};

use lockcore::{
    LockName,
    backend::{AcquireRequest, Backend, HoldId},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::support::{connect, listened_to, load_scripts, locks, soon};

/// Redisson 4.7's release, as on the wire: one script lowers the field, then deletes the key and
/// publishes the message.
async fn release_as_redisson(server: &RedisServer, name: &str, owner: &str) -> i64 {
    let script = "if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return -1 end \
                  if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then return 0 end \
                  redis.call('del', KEYS[1]) redis.call(ARGV[4], KEYS[2], ARGV[1]) return 1";
    let channel = format!("redisson_lock__channel:{{{name}}}");
    server.query(&["EVAL", script, "2", name, &channel, "0", "30000", owner, "publish"]).await
}

async fn acquire_as_redisson(server: &RedisServer, name: &str, owner: &str) -> Option<i64> {
    let script = "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
                  redis.call('hincrby', KEYS[1], ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) return nil end \
                  return redis.call('pttl', KEYS[1])";
    server.query(&["EVAL", script, "1", name, "30000", owner]).await
}

const FOREIGNER: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:44";

#[tokio::test]
async fn our_hold_is_a_hash_of_owner_and_count_with_the_lease_as_its_expiry() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("order:42").acquire().await.unwrap();
    let hash: HashMap<String, String> = server.query(&["HGETALL", "order:42"]).await;
    assert_eq!(hash, HashMap::from([(guard.wire_owner().to_owned(), "1".to_owned())]));

    let (uuid, number) = guard.wire_owner().rsplit_once(':').unwrap();
    assert_eq!(
        (uuid.len(), uuid.to_lowercase()),
        (36, uuid.to_owned()),
        "a lower-case uuid, as Java prints one"
    );
    assert!(uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12]));
    assert!(number.parse::<i64>().unwrap() > 0, "and a number that is a Java long");
    let left: i64 = server.query(&["PTTL", "order:42"]).await;
    assert!((25_000..=30_000).contains(&left), "{left}");

    let token: u64 = server.query(&["GET", "redisson_lock_token:{order:42}"]).await;
    assert_eq!(token, u64::from(guard.token()), "where Redisson's fenced lock has its token");
    let refused = acquire_as_redisson(&server, "order:42", FOREIGNER).await;
    assert!(
        refused.is_some_and(|left| left > 25_000),
        "Redisson's own script is refused with the remaining lease"
    );
}

#[tokio::test]
async fn our_release_message_is_a_zero_on_redissons_channel() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    for (name, channel) in [
        ("plain", "redisson_lock__channel:{plain}"),
        ("{shop}:order", "redisson_lock__channel:{shop}:order"),
    ] {
        let client = redis::Client::open(server.url()).unwrap();
        let (mut sink, mut messages) = client.get_async_pubsub().await.unwrap().split();
        sink.subscribe(channel).await.unwrap();
        let guard = locks.lock(name).acquire().await.unwrap();
        guard.release().await.unwrap();
        let message = soon("the message", next(&mut messages)).await.unwrap();
        assert_eq!(message.get_payload_bytes(), b"0");
        assert!(!server.query::<bool>(&["EXISTS", name]).await, "deleted before the message");
    }
}

/// The next message, without another crate's extension trait.
async fn next(messages: &mut redis::aio::PubSubStream) -> Option<redis::Msg> {
    use std::{future::poll_fn, pin::Pin};
    poll_fn(|context| futures_core_poll(Pin::new(messages), context)).await
}

fn futures_core_poll(
    messages: std::pin::Pin<&mut redis::aio::PubSubStream>,
    context: &mut std::task::Context<'_>,
) -> std::task::Poll<Option<redis::Msg>> {
    futures_core::Stream::poll_next(messages, context)
}

#[tokio::test]
async fn a_foreign_holder_is_waited_for_and_its_message_heard() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    assert_eq!(acquire_as_redisson(&server, "theirs", FOREIGNER).await, None);
    assert!(locks.lock("theirs").try_acquire().await.unwrap().is_none());
    let state = locks.lock("theirs").state().await.unwrap();
    assert_eq!((state.holders()[0].owner(), state.holders()[0].hold_count()), (FOREIGNER, 1));

    let waiting = tokio::spawn({
        let lock = locks.lock("theirs");
        async move { lock.acquire().await }
    });
    listened_to(&server, "theirs").await;
    let start = std::time::Instant::now();
    assert_eq!(release_as_redisson(&server, "theirs", FOREIGNER).await, 1);
    let guard = soon("the message", waiting).await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "woken by the message, not by the end of the lease"
    );

    // Redisson's release of another owner's hold.
    assert_eq!(release_as_redisson(&server, "theirs", FOREIGNER).await, -1);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_nested_hold_is_reported_with_its_count() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    for _ in 0..3 {
        assert_eq!(acquire_as_redisson(&server, "deep", FOREIGNER).await, None);
    }
    assert_eq!(locks.lock("deep").state().await.unwrap().holders()[0].hold_count(), 3);
}

#[tokio::test]
async fn a_foreign_lock_without_an_expiry_is_reported_and_not_waited_for_in_a_spin() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    load_scripts(&locks).await;
    let _: i64 = server.query(&["HSET", "endless", FOREIGNER, "1"]).await;
    assert_eq!(locks.lock("endless").state().await.unwrap().remaining(), None);
    let before = server.client_commands().await;
    let waited = locks.lock("endless").acquire_timeout(Duration::from_millis(500)).await;
    assert!(waited.is_err());
    let spent = server.client_commands().await - before;
    assert!(spent <= 4, "two attempts and a subscription, not {spent} commands");
}

#[tokio::test]
async fn the_key_prefix_stands_before_every_key() {
    let server = RedisServer::start();
    let backend =
        RedisBackend::builder().url(server.url()).key_prefix("app:").connect().await.unwrap();
    let guard = lockcore::Locks::new(backend).lock("order").acquire().await.unwrap();
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["app:order", "redisson_lock_token:{app:order}"]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_flushed_script_is_loaded_again_without_anybody_noticing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let name = LockName::new("flushed").unwrap();
    for round in 0..10 {
        let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        let request = AcquireRequest::new(
            name.clone(),
            HoldId::unique(format!("client:{round}")),
            Duration::from_secs(9),
        );
        let outcome = backend.acquire(&request).await.unwrap();
        assert!(matches!(outcome, lockcore::backend::AcquireOutcome::Acquired { .. }));
        let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(
            backend.release(&request.release()).await.unwrap(),
            lockcore::backend::ReleaseOutcome::Released
        );
    }
}

#[tokio::test]
async fn tokens_are_microseconds_of_the_server_and_expire() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("timed").acquire().await.unwrap();
    let (seconds, _): (u64, u64) = server.query(&["TIME"]).await;
    assert!((u64::from(guard.token()) / 1_000_000).abs_diff(seconds) <= 5);
    guard.release().await.unwrap();
    let left: i64 = server.query(&["PTTL", "redisson_lock_token:{timed}"]).await;
    assert!((86_000_000..=86_400_000).contains(&left), "a day: {left}");

    // A clock that was set back: the last token is ahead of it.
    let key = "redisson_lock_token:{timed}";
    let _: String = server.query(&["SET", key, "8000000000000000", "PX", "60000"]).await;
    // A client that does not remember its last token.
    let locks = self::locks(&server).await;
    let guard = locks.lock("timed").acquire().await.unwrap();
    assert_eq!(guard.token().to_string(), "8000000000000001");
    guard.release().await.unwrap();
    assert!(server.query::<i64>(&["PTTL", key]).await > 86_000_000, "remembered for a day again");
}

#[tokio::test]
async fn tokens_are_shared_with_redissons_fenced_lock_whose_key_stays_for_ever() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let key = "redisson_lock_token:{fenced}";
    // Redisson counts from 1, in a key without an expiry.
    let theirs: u64 = server.query(&["INCR", key]).await;
    let guard = locks.lock("fenced").acquire().await.unwrap();
    assert!(u64::from(guard.token()) > theirs);
    guard.release().await.unwrap();
    assert_eq!(
        server.query::<i64>(&["PTTL", key]).await,
        -1,
        "theirs would start again at 1 if it expired"
    );
    let theirs: u64 = server.query(&["INCR", key]).await;
    assert!(theirs > 1_000_000_000_000_000, "and goes on from ours: {theirs}");
    let guard = locks.lock("fenced").acquire().await.unwrap();
    assert!(u64::from(guard.token()) > theirs);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_nested_growth_keeps_the_lease_although_the_token_was_forgotten() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let owner = lockcore::Owner::new();
    let lock = locks.lock("old").owned_by(&owner);
    let outer = lock.clone().lease(Duration::from_secs(600)).acquire().await.unwrap();
    let _: i64 = server.query(&["DEL", "redisson_lock_token:{old}"]).await;
    // The hold has no watchdog, so the nested one asks the backend.
    let inner = lock.acquire().await.unwrap();
    assert!(server.query::<i64>(&["PTTL", "old"]).await > 590_000);
    assert_eq!(inner.token(), outer.token());
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}
