//! The password shows up nowhere.

use std::{error::Error, time::Duration};

use lockcore::Locks;
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::log::Log;

const CANARY: &str = "canary-7f3a9d";

fn with_sources(error: &dyn Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    text
}

#[tokio::test]
async fn the_password_is_in_no_debug_error_or_trace_at_any_level() {
    // The test has one thread, on which everything runs.
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
        .response_timeout(Duration::from_millis(200))
        .connect()
        .await
        .unwrap();
    let locks = Locks::builder(backend.clone())
        .lease(Duration::from_millis(300))
        .retry_for(Duration::from_millis(100))
        .build()
        .unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let timeout = locks.lock("a").acquire_timeout(Duration::from_millis(150)).await.unwrap_err();
    seen.push_str(&with_sources(&timeout));
    seen.push_str(&format!("{backend:?} {locks:?} {guard:?} {:?}", locks.lock("a")));
    server.kill();
    guard.lost().await;
    for error in [guard.release().await.unwrap_err(), locks.lock("b").acquire().await.unwrap_err()] {
        seen.push_str(&with_sources(&error));
    }
    drop(locks);

    let logged = log.text();
    assert!(logged.contains("hold lost"), "the log has what happened");
    assert!(seen.contains("127.0.0.1"), "and the errors say where");
    assert!(!seen.contains(CANARY), "{seen}");
    assert!(!logged.contains(CANARY), "{logged}");
}
