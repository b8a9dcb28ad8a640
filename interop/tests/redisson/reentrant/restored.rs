//! lockcore holds that the server stores without a script: a hash created by `RESTORE`.

use std::time::Duration;

use lockcore::{Lock, LockError, LockGuard, LossReason};
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, alone, holders, listened_to, soon},
};

const NAME: &str = "restored";

/// Acquires and releases the lock until a hold was stored without a script: only a client that has
/// just released a lock acquires it in this way.
async fn restored(both: &Both, lock: &Lock) -> LockGuard {
    let server = both.servers.server_of(NAME).await;
    let acquisitions = async {
        loop {
            let before = server.calls_of("restore").await;
            let guard = lock.acquire().await.unwrap();
            if server.calls_of("restore").await > before {
                break guard;
            }
            guard.release().await.unwrap();
        }
    };
    soon("a hold without a script", acquisitions).await
}

#[tokio::test]
async fn java_respects_a_hold_that_no_script_has_stored() {
    let both = Both::start().await;
    let (thread, lock) = (both.redisson.thread(), both.locks.lock(NAME));
    let guard = restored(&both, &lock).await;
    assert_eq!(holders(&lock).await, alone(&guard));
    assert!(thread.is_locked(NAME).await.unwrap());
    let left = thread.remaining(NAME).await.unwrap().expect("a lease");
    assert!(!left.is_zero() && left <= LEASE, "{left:?}");
    assert_eq!(thread.hold_count(NAME).await.unwrap(), 0);
    assert!(thread.release(NAME).await.unwrap_err().is("IllegalMonitorStateException"));
    let longer = LEASE + Duration::from_secs(1);
    assert!(!thread.try_acquire(NAME, longer, Lease::Watchdog).await.unwrap(), "it is renewed");

    let token = u64::from(guard.token());
    let entry = thread.acquire_fenced(NAME);
    listened_to(&both.servers, Kind::Reentrant, NAME, 1).await;
    guard.release().await.unwrap();
    let theirs = soon("Java's entry", entry).await.unwrap();
    assert!(theirs > token, "{theirs} after {token}");
    thread.release(NAME).await.unwrap();

    let guard = restored(&both, &lock).await;
    assert!(u64::from(guard.token()) > theirs);
    assert!(thread.force_unlock(NAME).await.unwrap());
    assert_eq!(soon("the next renewal", guard.lost()).await, LossReason::Gone);
    let released = guard.release().await;
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    both.close().await;
    let measured = "refused past the first lease, woken by the release, with a greater token; \
                    `unlock` throws, `forceUnlock` ends it";
    record(Section::Reentrant, Promise::Restored, measured).await;
}
