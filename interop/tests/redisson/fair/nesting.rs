//! Nested holds, on both sides, while the other side waits in the queue.

use std::time::Duration;

use lockcore::Owner;
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, alone, holders, queued, soon},
};

const DEPTH: u32 = 3;

#[tokio::test]
async fn nested_fair_holds_of_java_pass_the_queue() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread_for(Kind::Fair), both.locks.fair_lock("nested"));
    thread.acquire("nested", Lease::Watchdog).await.unwrap();
    let waiting = tokio::spawn(lock.acquire());
    queued(&both.servers, "nested", 1).await;
    for depth in 2..=DEPTH {
        let owner = soon("a nested hold", thread.acquire("nested", Lease::Watchdog)).await.unwrap();
        assert_eq!(thread.hold_count("nested").await.unwrap(), depth);
        assert_eq!(holders(&lock).await, [(owner, depth)]);
    }
    for left in (1..DEPTH).rev() {
        thread.release("nested").await.unwrap();
        assert_eq!(thread.hold_count("nested").await.unwrap(), left);
        assert_eq!(holders(&lock).await.first().map(|(_, count)| *count), Some(left));
        assert!(!waiting.is_finished(), "{left} holds are left");
    }
    thread.release("nested").await.unwrap();
    let guard = soon("our entry", waiting).await.unwrap().unwrap();
    assert_eq!(holders(&lock).await, alone(&guard));
    guard.release().await.unwrap();
    both.close().await;
    let measured = format!(
        "1 to {DEPTH} and back, the same in `getHoldCount` and `state()`; Rust entered after the last"
    );
    record(Section::Fair, Promise::JavaNests, measured).await;
}

#[tokio::test]
async fn nested_fair_holds_of_rust_pass_the_queue() {
    let both = Both::start().await;
    let thread = both.redisson.thread_for(Kind::Fair);
    let owner = Owner::new();
    let lock = both.locks.fair_lock("nested").owned_by(&owner);
    let mut guards = vec![lock.acquire().await.unwrap()];
    let waiting = tokio::spawn(thread.acquire("nested", Lease::Watchdog));
    queued(&both.servers, "nested", 1).await;
    for depth in 2..=DEPTH {
        guards.push(soon("a nested hold", lock.acquire()).await.unwrap());
        assert_eq!(guards[0].hold_count(), depth);
    }
    // This acquisition asks for a longer lease, so that the server is asked, and must let it pass
    // the queue as well.
    let longer = lock.clone().lease(Duration::from_secs(60)).acquire();
    guards.push(soon("a longer hold", longer).await.unwrap());
    assert_eq!(holders(&lock).await, [(guards[0].wire_owner().to_owned(), DEPTH + 1)]);
    while let Some(guard) = guards.pop() {
        assert!(!waiting.is_finished(), "{} holds are left", guards.len() + 1);
        guard.release().await.unwrap();
    }
    let entered = soon("Java's entry", waiting).await.unwrap().unwrap();
    assert_eq!(holders(&lock).await, [(entered, 1)]);
    thread.release("nested").await.unwrap();
    both.close().await;
    let measured = format!(
        "{} levels, one of them with a longer lease; Java entered after the last",
        DEPTH + 1
    );
    record(Section::Fair, Promise::RustNests, measured).await;
}
