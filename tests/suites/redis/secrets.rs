//! The password never shows.

use std::time::Duration;

use lockcore::{LockError, Locks, MultiLock, Owner};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    errors::LEAST_RIGHTS,
    everything::{call_everything, panics, with_sources},
    log::Log,
};

const CANARY: &str = "canary-7f3a9d";

/// A lease that is not over while a busy machine pauses, and whose end can be waited for.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn the_password_is_in_no_debug_error_or_trace_at_any_level() {
    // Everything in this test runs on one thread.
    let (log, _logging) = Log::start();
    let mut server = RedisServer::start_with(&["--requirepass", CANARY]);
    let mut seen = String::new();
    for bad in [
        format!("redis://:{CANARY}@127.0.0.1:1"),
        format!("redis://:{CANARY}@127.0.0.1:port"),
        format!("redis://:{CANARY}@[/"),
        format!("redis://user:wrong-{CANARY}@127.0.0.1:{}", server.port()),
        format!("rediss://:{CANARY}@localhost:{}", server.port()),
        format!("http://:{CANARY}@127.0.0.1"),
        format!("unix:///nowhere?pass={CANARY}"),
        CANARY.to_owned(),
    ] {
        let builder = RedisBackend::builder().url(bad).connect_timeout(Duration::from_millis(500));
        seen.push_str(&format!("{builder:?}"));
        seen.push_str(&with_sources(&builder.connect().await.unwrap_err()));
    }

    let url = format!("redis://:{CANARY}@127.0.0.1:{}", server.port());
    let client = redis::Client::open(url.as_str()).unwrap();
    seen.push_str(&format!("{:?}", RedisBackend::builder().client(client)));
    let backend = RedisBackend::builder()
        .url(url)
        .response_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let locks = Locks::builder(backend.clone())
        .lease(LEASE)
        .retry_for(Duration::from_millis(100))
        .build()
        .unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let timeout = locks.lock("a").acquire_timeout(Duration::from_millis(150)).await.unwrap_err();
    seen.push_str(&with_sources(&timeout));
    seen.push_str(&format!("{backend:?} {locks:?} {guard:?} {:?}", locks.lock("a")));
    server.kill();
    guard.lost().await;
    for error in [guard.release().await.unwrap_err(), locks.lock("b").acquire().await.unwrap_err()]
    {
        seen.push_str(&with_sources(&error));
    }
    drop(locks);

    let logged = log.text();
    assert!(logged.contains("hold lost"), "the log has what happened");
    assert!(seen.contains("127.0.0.1"), "and the errors say where");
    assert!(!seen.contains(CANARY), "{seen}");
    assert!(!logged.contains(CANARY), "{logged}");
}

/// A client of a user whose password is the canary. Its requests are answered on a busy machine.
async fn locks(server: &RedisServer, user: &str) -> Locks {
    locks_with(server, user, Duration::from_secs(2)).await
}

/// A client that waits for each answer for as long as `patience`.
async fn locks_with(server: &RedisServer, user: &str, patience: Duration) -> Locks {
    let backend = RedisBackend::builder()
        .url(format!("redis://{user}:{CANARY}@127.0.0.1:{}", server.port()))
        .response_timeout(patience)
        .connect_timeout(Duration::from_secs(1));
    let locks = Locks::builder(backend.connect().await.unwrap())
        .namespace("locks:")
        .lease(LEASE)
        .queue_timeout(Duration::from_millis(60))
        .retry_for(Duration::from_millis(100));
    let shown = format!("{locks:?}");
    assert!(!shown.contains(CANARY), "{shown}");
    locks.build().unwrap()
}

/// The debug output of every value that a user can have.
async fn everything_shown(locks: &Locks) -> String {
    let (lock, both, permits) = (locks.lock("a"), locks.rw_lock("b"), locks.semaphore("s", 3));
    let guard = lock.clone().owned_by(&Owner::named("job")).acquire().await.unwrap();
    let multi = MultiLock::of([both.write(), permits.permits(1)]);
    let guards = multi.acquire().await.unwrap();
    let state = lock.state().await.unwrap();
    let (condition, latch) = (lock.condition("c"), locks.latch("l"));
    format!(
        "{locks:?} {lock:?} {both:?} {permits:?} {guard:?} {multi:?} {guards:?} {state:?} {condition:?} {latch:?}"
    )
}

#[tokio::test]
async fn no_call_in_whatever_trouble_shows_the_password() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let (log, _logging) = Log::start();
    panics();
    let mut server = RedisServer::start_with(&["--requirepass", CANARY]);
    let mut users: Vec<(&str, String)> = vec![("rich", LEAST_RIGHTS.into())];
    // Users that fail in different places: at scripts, inside them, at messages, at keys.
    for (user, missing) in
        [("a", "+evalsha"), ("b", "+pexpire"), ("c", "&redisson_*"), ("d", "~locks:*")]
    {
        let rights: Vec<&str> =
            LEAST_RIGHTS.split_whitespace().filter(|right| *right != missing).collect();
        users.push((user, rights.join(" ")));
    }
    let mut errors: Vec<LockError> = Vec::new();
    let mut seen = String::new();
    for (user, rights) in &users {
        let password = format!(">{CANARY}");
        let command =
            ["ACL", "SETUSER", user, "on", &password].into_iter().chain(rights.split_whitespace());
        let _: String = server.query(&command.collect::<Vec<_>>()).await;
        errors.extend(call_everything(&locks(&server, user).await).await);
    }
    assert!(errors.len() > 10, "the load has failed in many ways");

    let rich = locks(&server, "rich").await;
    seen.push_str(&everything_shown(&rich).await);
    let shown = format!("{rich:?} {:?}", rich.lock("a"));
    let panicked = tokio::spawn(async move { panic!("with {shown}") }).await.unwrap_err();
    seen.push_str(&format!("{panicked} {panicked:?}"));

    // A password that is no longer valid, for connections that are made again.
    let guard = rich.lock("held").acquire().await.unwrap();
    let _: String = server.query(&["ACL", "SETUSER", "rich", "resetpass", ">other"]).await;
    let _: u32 = server.query(&["CLIENT", "KILL", "USER", "rich"]).await;
    guard.lost().await;
    errors.extend(guard.release().await.err());
    errors.extend(call_everything(&rich).await);
    // A server that is silent, one that is down, and one that has lost its data.
    let rich = locks_with(&server, "default", Duration::from_millis(500)).await;
    server.signal("STOP");
    errors.extend(call_everything(&rich).await);
    server.signal("CONT");
    let rich = locks(&server, "default").await;
    server.kill();
    errors.extend(call_everything(&rich).await);
    let (guard, rich) = {
        server.restart();
        let rich = locks(&server, "default").await;
        (rich.lock("gone").acquire().await.unwrap(), rich)
    };
    server.restart();
    guard.lost().await;
    errors.extend(guard.release().await.err());
    errors.extend(rich.close().await.err());

    errors.iter().for_each(|error| seen.push_str(&with_sources(error)));
    seen.push_str(&panics());
    let logged = log.text();
    for (what, text) in [("seen", &seen), ("logged", &logged)] {
        assert!(text.len() > 5000, "there was a lot {what}: {}", text.len());
        assert!(!text.contains(CANARY), "{text}");
    }
    assert!(
        seen.contains("Permission") && seen.contains("Auth") && seen.contains("Timeout"),
        "{seen}"
    );
    assert!(seen.contains("with Locks"), "the panic is among them");
}
