//! A lock that a lockcore client keeps for a task that returns, while Redisson wants it.

use std::time::{Duration, Instant};

use lockcore::Locks;
use lockcore_interop::{Kind, Lease};
use lockcore_redis::RedisBackend;

use crate::support::{Both, SLACK, listened_to, soon};

#[tokio::test]
async fn java_gets_a_lock_that_rust_keeps() {
    let both = Both::start().await;
    let backend = RedisBackend::connect(both.servers.url()).await.unwrap();
    // The turn does not end during this test: Java must be noticed.
    let builder = Locks::builder(backend).hand_over(Duration::from_secs(60));
    let keeping = builder.linger(Duration::from_millis(100)).build().unwrap();
    let java = both.redisson.thread();
    // These waits are not measured: Java loads its classes for them.
    java.acquire("kept:first", Lease::Watchdog).await.unwrap();
    java.release("kept:first").await.unwrap();
    for round in 0..5 {
        let name = format!("kept:{round}");
        let lock = keeping.lock(&name);
        let guard = lock.acquire().await.unwrap();
        let entry = java.acquire(&name, Lease::Watchdog);
        listened_to(&both.servers, Kind::Reentrant, &name, 1).await;
        // Java tries once more after it has subscribed. Nothing shows that it sleeps after that.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let start = Instant::now();
        drop(guard);
        let coming_back = tokio::spawn(async move {
            loop {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
        soon("Java's entry", entry).await.unwrap();
        let waited = start.elapsed();
        assert!(waited <= SLACK, "round {round}: Java had it after {waited:?}");
        java.release(&name).await.unwrap();
        coming_back.abort();
        assert!(coming_back.await.unwrap_err().is_cancelled());
    }
    keeping.close().await.unwrap();
    both.close().await;
}
