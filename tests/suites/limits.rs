//! Limits on the number of waiters. One waiter too many is refused at once, and every seat is
//! returned.

use std::time::Duration;

use lockcore::{LockError, LockGuard, Locks, LocksBuilder, MultiLock, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::poll_times;

const SECOND: Duration = Duration::from_secs(1);

fn builder() -> LocksBuilder {
    Locks::builder(MemoryBackend::new())
}

/// A client with three seats, two of them for one name.
fn locks() -> Locks {
    builder().max_waiters(3).max_waiters_per_lock(2).build().unwrap()
}

/// Starts an acquisition that waits from then on.
async fn waiter(
    locks: &Locks,
    name: &str,
) -> tokio::task::JoinHandle<Result<LockGuard, LockError>> {
    let mut acquire = Box::pin(locks.lock(name).acquire());
    assert!(poll_times(1, &mut acquire).await.is_none(), "it waits");
    tokio::spawn(acquire)
}

/// The option that refuses more waiters for `name`, if there is one.
async fn full(locks: &Locks, name: &str) -> Option<&'static str> {
    match poll_times(1, locks.lock(name).acquire()).await? {
        Err(LockError::TooManyWaiters { lock, limit, option, .. }) => {
            assert_eq!(lock.as_str(), name);
            assert_eq!(limit, if option == "max_waiters" { 3 } else { 2 });
            Some(option)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn one_too_many_is_refused_at_once_with_the_option_to_raise() {
    let locks = locks();
    let held = (locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap());
    let _waiting = (waiter(&locks, "a").await, waiter(&locks, "a").await);
    assert_eq!(full(&locks, "a").await, Some("max_waiters_per_lock"));
    assert_eq!(full(&locks, "b").await, None, "another name is not concerned");
    let _third = waiter(&locks, "b").await;
    assert_eq!(full(&locks, "b").await, Some("max_waiters"));
    assert_eq!(full(&locks, "free").await, Some("max_waiters"));

    let message = locks.lock("b").acquire().await.unwrap_err().to_string();
    assert!(
        message.contains("`b`") && message.contains('3') && message.contains("raise `max_waiters`"),
        "{message}"
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_wait_needs_no_seat() {
    let locks = builder().max_waiters(1).build().unwrap();
    let owner = Owner::new();
    let held = locks.lock("a").owned_by(&owner).acquire().await.unwrap();
    let _waiting = waiter(&locks, "a").await;
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert!(
        locks
            .lock("a")
            .acquire_timeout(Duration::ZERO)
            .await
            .is_err_and(|error| matches!(error, LockError::Timeout { .. }))
    );
    assert!(locks.lock("free").try_acquire().await.unwrap().is_some());
    let nested = locks.lock("a").owned_by(&owner).acquire().await.unwrap();
    assert_eq!(nested.hold_count(), 2);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_seat_comes_back_after_a_grant_a_time_out_and_a_cancellation() {
    let locks = builder().max_waiters(1).build().unwrap();
    for round in 0..3 {
        let held = locks.lock("a").acquire().await.unwrap();
        let granted = waiter(&locks, "a").await;
        held.release().await.unwrap();
        let held = granted.await.unwrap().unwrap();

        let timed_out = locks.lock("a").acquire_timeout(SECOND).await.unwrap_err();
        assert!(matches!(timed_out, LockError::Timeout { .. }), "{round}: {timed_out}");

        let cancelled = waiter(&locks, "a").await;
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        held.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_seat_comes_back_after_an_error_and_a_close() {
    let locks = builder().max_waiters(1).build().unwrap();
    for _ in 0..3 {
        let error = locks.semaphore("few", 1).permits(2).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::TooManyPermits { .. }), "{error}");
    }
    let held = locks.lock("a").acquire().await.unwrap();
    let waiting = waiter(&locks, "a").await;
    locks.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(LockError::Closed { .. })));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn every_way_of_waiting_takes_a_seat() {
    let locks = builder().max_waiters(1).build().unwrap();
    let too_many =
        |error: LockError| assert!(matches!(error, LockError::TooManyWaiters { .. }), "{error}");
    let gate = locks.latch("gate");
    gate.set_count(1).await.unwrap();
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.wait().await }
    });
    tokio::time::sleep(SECOND).await;

    too_many(gate.wait().await.unwrap_err());
    too_many(locks.lock("a").acquire().await.unwrap_err());
    too_many(locks.lock("a").acquire_timeout(SECOND).await.unwrap_err());
    too_many(locks.lock("a").run(async |_| ()).await.unwrap_err());
    too_many(locks.fair_lock("a").acquire().await.unwrap_err());
    too_many(locks.rw_lock("a").read().acquire().await.unwrap_err());
    too_many(locks.rw_lock("a").write().acquire().await.unwrap_err());
    too_many(locks.semaphore("s", 1).acquire().await.unwrap_err());
    let (one, other) = (locks.lock("one"), locks.lock("other"));
    let held = other.try_acquire().await.unwrap();
    too_many(MultiLock::of([one.clone(), other.clone()]).acquire().await.unwrap_err());
    let guard =
        one.try_acquire().await.unwrap().expect("what the multi-lock had got was given back");
    let is_full = one.condition("c").wait(guard).await;
    too_many(is_full.unwrap_err().into());
    drop(held);

    gate.count_down().await.unwrap();
    waiting.await.unwrap().unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_a_condition_has_one_seat_before_and_after_it_is_notified() {
    let locks = builder().max_waiters(1).build().unwrap();
    let lock = locks.lock("inbox");
    let arrived = lock.condition("arrived");
    let guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let arrived = arrived.clone();
        async move { arrived.wait(guard).await }
    });
    tokio::time::sleep(SECOND).await;
    let error = lock.acquire().await.unwrap_err();
    assert!(matches!(error, LockError::TooManyWaiters { .. }), "{error}");
    let sender = lock.try_acquire().await.unwrap().unwrap();
    assert!(arrived.notify_one(&sender).await.unwrap());
    sender.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_waiters_of_a_fair_lock_share_the_seats_of_its_name() {
    let locks = locks();
    let held = locks.fair_lock("a").acquire().await.unwrap();
    let fair = || {
        let lock = locks.fair_lock("a");
        tokio::spawn(async move { lock.acquire().await })
    };
    let waiting = [fair(), fair()];
    tokio::time::sleep(SECOND).await;
    assert_eq!(full(&locks, "a").await, Some("max_waiters_per_lock"));
    let error = fair().await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::TooManyWaiters { .. }), "{error}");
    held.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_acquisitions_stays_within_the_limit_and_ends_well() {
    let locks = builder().max_waiters(100).build().unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let storm: Vec<_> = (0..1000)
        .map(|_| {
            let lock = locks.lock("a");
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    tokio::time::sleep(SECOND).await;
    held.release().await.unwrap();
    let (mut served, mut refused) = (0, 0);
    for task in storm {
        match task.await.unwrap() {
            Ok(()) => served += 1,
            Err(LockError::TooManyWaiters { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((served, refused), (100, 900));
}

#[test]
fn limits_of_zero_are_refused() {
    for (builder, name) in [
        (builder().max_waiters(0), "max_waiters"),
        (builder().max_waiters_per_lock(0), "max_waiters_per_lock"),
    ] {
        assert!(
            matches!(builder.build(), Err(LockError::InvalidOption { option, .. }) if option == name)
        );
    }
}
