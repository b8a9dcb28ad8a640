//! Read-write locks through the core.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, LockError, Locks, Mode, Owner, WaitOutcome};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::{task::JoinSet, time::Instant};

use crate::clients::{SECOND, assert_all_free, two_clients};

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_is_alone() {
    let (store, one, other) = two_clients();
    let (here, there) = (one.rw_lock("a"), other.rw_lock("a"));
    let readers = [
        here.read().acquire().await.unwrap(),
        here.read().acquire().await.unwrap(),
        there.read().acquire().await.unwrap(),
    ];
    for lock in [&here, &there] {
        assert!(lock.write().try_acquire().await.unwrap().is_none());
        assert_eq!(lock.state().await.unwrap().holders().len(), 3);
    }
    drop(readers);
    let writer = there.write().acquire().await.unwrap();
    for lock in [&here, &there] {
        assert!(lock.read().try_acquire().await.unwrap().is_none());
        assert!(lock.write().try_acquire().await.unwrap().is_none());
    }
    let state = here.state().await.unwrap();
    assert_eq!(state.holders()[0].mode(), Mode::Write);
    assert_eq!(state.holders()[0].owner(), writer.wire_owner());
    writer.release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn both_sides_nest_without_a_call() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let lock = Locks::new(backend).rw_lock("a");
    for side in [lock.read(), lock.write()] {
        let owner = Owner::new();
        let outer = side.clone().owned_by(&owner).acquire().await.unwrap();
        let calls = faults.all_calls();
        let inner = side.owned_by(&owner).acquire().await.unwrap();
        assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
        inner.release().await.unwrap();
        assert_eq!(faults.all_calls(), calls);
        assert_eq!(lock.state().await.unwrap().holders()[0].hold_count(), 1);
        outer.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_becomes_a_reader_with_nobody_in_between() {
    let (store, one, other) = two_clients();
    let (here, there) = (one.rw_lock("a"), other.rw_lock("a"));
    let owner = Owner::new();
    let writer = here.write().owned_by(&owner).acquire().await.unwrap();
    // Waiters in the same client and in another one: neither keeps the owner out of its own lock.
    let mut waiting = JoinSet::new();
    for lock in [here.write(), there.write()] {
        waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    tokio::time::sleep(SECOND).await;
    let reader = here.read().owned_by(&owner).acquire().await.unwrap();
    assert!(reader.token() > writer.token());
    let again = here.read().owned_by(&owner).acquire().await.unwrap();
    assert_eq!(again.hold_count(), 2);
    writer.release().await.unwrap();
    assert!(reader.is_held());
    assert!(
        there.read().acquire_timeout(SECOND / 10).await.is_err(),
        "a writer waits, and comes first"
    );
    drop((reader, again));
    while let Some(done) = waiting.join_next().await {
        done.unwrap();
    }
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn branches_of_one_owner_read_beside_its_write_hold_as_one_hold() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let lock = Locks::new(backend).rw_lock("a");
    let (one, other) = lock
        .write()
        .run(async |_| {
            let (read, same) = (lock.read(), lock.read());
            let (one, other) = tokio::join!(read.acquire(), same.acquire());
            (one.unwrap(), other.unwrap())
        })
        .await
        .unwrap();
    assert_eq!((one.hold_count(), one.token()), (2, other.token()));
    assert_eq!(faults.calls(Op::Acquire), 2, "one for the writer, one for the reader");
    assert_eq!(lock.state().await.unwrap().holders()[0].mode(), Mode::Read);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_wants_to_write_is_refused_at_once_and_keeps_reading() {
    let (_, one, other) = two_clients();
    let lock = one.rw_lock("a");
    let owner = Owner::new();
    let reader = lock.read().owned_by(&owner).acquire().await.unwrap();
    for attempt in [
        lock.write().owned_by(&owner).acquire().await.err(),
        lock.write().owned_by(&owner).try_acquire().await.err(),
        lock.write().owned_by(&owner).acquire_timeout(SECOND).await.err(),
    ] {
        let error = attempt.expect("it would wait for itself");
        assert!(
            matches!(&error, LockError::Upgrade { lock, .. } if lock.as_str() == "a"),
            "{error}"
        );
        assert!(
            error.to_string().contains('a') && error.to_string().contains("release"),
            "{error}"
        );
    }
    assert!(reader.is_held());

    // Waiting for a write before the read makes no difference.
    let stranger = other.rw_lock("a").read().acquire().await.unwrap();
    reader.release().await.unwrap();
    let writing = tokio::spawn(lock.write().owned_by(&owner).acquire());
    tokio::time::sleep(SECOND).await;
    stranger.release().await.unwrap();
    let writer = writing.await.unwrap().unwrap();
    assert!(lock.read().owned_by(&owner).try_acquire().await.unwrap().is_some());
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn readers_that_wait_all_enter_after_a_release_and_after_a_downgrade() {
    let (store, one, other) = two_clients();
    for downgrade in [false, true] {
        let owner = Owner::new();
        let lock = one.rw_lock("a");
        let writer = lock.write().owned_by(&owner).acquire().await.unwrap();
        let inside = Arc::new(AtomicUsize::new(0));
        let mut readers = JoinSet::new();
        for number in 0..20 {
            let read =
                if number % 2 == 0 { one.rw_lock("a").read() } else { other.rw_lock("a").read() };
            let inside = inside.clone();
            readers.spawn(async move {
                let guard = read.acquire().await.unwrap();
                inside.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(SECOND).await;
                guard.release().await.unwrap();
            });
        }
        tokio::time::sleep(SECOND).await;
        let kept = if downgrade {
            Some(lock.read().owned_by(&owner).acquire().await.unwrap())
        } else {
            None
        };
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        let start = Instant::now();
        writer.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(inside.load(Ordering::SeqCst), 20, "downgrade: {downgrade}");
        assert!(start.elapsed() < Duration::from_millis(50));
        while let Some(done) = readers.join_next().await {
            done.unwrap();
        }
        drop(kept);
    }
    assert_all_free(&store).await;
}

/// Otherwise each request would start after the answer to the previous one.
#[tokio::test(start_paused = true)]
async fn readers_follow_each_other_without_waiting_for_each_answer() {
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    let writer = Locks::new(store).rw_lock("a").write().acquire().await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..20 {
        readers.spawn(locks.rw_lock("a").read().acquire());
    }
    tokio::time::sleep(SECOND).await;
    faults.every(Op::Acquire, Fault::DelayReply(ROUND_TRIP));
    writer.release().await.unwrap();
    let start = Instant::now();
    let inside = readers.join_all().await;
    assert!(inside.iter().all(Result::is_ok), "{inside:?}");
    assert!(start.elapsed() <= 3 * ROUND_TRIP, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_writer_enters_under_a_steady_stream_of_readers() {
    let (store, one, other) = two_clients();
    let mut readers = JoinSet::new();
    for number in 0..6_u32 {
        let lock = if number % 2 == 0 { one.rw_lock("a") } else { other.rw_lock("a") };
        readers.spawn(async move {
            tokio::time::sleep(Duration::from_millis(30) * number).await;
            for _ in 0..50 {
                let guard = lock.read().acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                guard.release().await.unwrap();
            }
        });
    }
    tokio::time::sleep(SECOND).await;
    for lock in [one.rw_lock("a"), other.rw_lock("a")] {
        let start = Instant::now();
        let writer = lock.write().acquire().await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
        writer.release().await.unwrap();
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_reader_keeps_a_writer_out_until_its_lease_ends_and_no_longer() {
    let (_, one, other) = two_clients();
    let dead = one.rw_lock("a").read().lease(2 * SECOND).acquire().await.unwrap();
    std::mem::forget(dead);
    let living = other.rw_lock("a").read().acquire().await.unwrap();
    let start = Instant::now();
    let writing = tokio::spawn(one.rw_lock("a").write().acquire());
    tokio::time::sleep(SECOND).await;
    living.release().await.unwrap();
    let writer = writing.await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= 2 * SECOND && waited < 2 * SECOND + Duration::from_millis(100), "{waited:?}");
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn readers_that_try_at_the_same_moment_all_get_in() {
    let backend = Faulty::new(MemoryBackend::new());
    backend.faults().every(Op::Acquire, Fault::DelayReply(SECOND));
    let locks = Locks::new(backend);
    let mut tries = JoinSet::new();
    for _ in 0..10 {
        tries.spawn(locks.rw_lock("a").read().try_acquire());
    }
    let tried = tries.join_all().await;
    assert!(tried.iter().all(|guard| guard.as_ref().unwrap().is_some()), "{tried:?}");
    let mut tries = JoinSet::new();
    for _ in 0..10 {
        tries.spawn(locks.rw_lock("a").write().try_acquire());
    }
    assert!(tries.join_all().await.iter().all(|guard| guard.as_ref().unwrap().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_tries_behind_one_that_waits_is_answered_at_once() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    let held = locks.rw_lock("a").read().acquire().await.unwrap();
    faults.every(Op::Acquire, Fault::DelayReply(SECOND));
    let writing = tokio::spawn(locks.rw_lock("a").write().acquire());
    tokio::time::sleep(SECOND / 2).await;
    let start = Instant::now();
    assert!(
        locks.rw_lock("a").read().try_acquire().await.unwrap().is_none(),
        "a writer comes first"
    );
    assert!(start.elapsed() <= SECOND, "{:?}", start.elapsed());
    drop(held);
    writing.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_gives_up_lets_readers_in() {
    let (store, one, other) = two_clients();
    for polls in 0..12 {
        let held = one.rw_lock("a").read().acquire().await.unwrap();
        assert!(poll_times(polls, one.rw_lock("a").write().acquire()).await.is_none());
        let start = Instant::now();
        for locks in [&one, &other] {
            drop(locks.rw_lock("a").read().acquire().await.unwrap());
        }
        assert!(
            start.elapsed() < Duration::from_millis(100),
            "{polls} polls: {:?}",
            start.elapsed()
        );
        held.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_beside_the_own_write_hold_leaves_nothing_when_dropped_at_any_await() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend.clone());
    for fault in [Fault::DelayReply(SECOND), Fault::LostReply, Fault::LostRequest] {
        for polls in 0..6 {
            let owner = Owner::new();
            let writer = locks.rw_lock("a").write().owned_by(&owner).acquire().await.unwrap();
            faults.next(Op::Acquire, fault);
            drop(poll_times(polls, locks.rw_lock("a").read().owned_by(&owner).acquire()).await);
            tokio::time::sleep(SECOND).await;
            writer.release().await.unwrap();
            faults.heal();
            let start = Instant::now();
            drop(locks.rw_lock("a").write().acquire().await.unwrap());
            assert!(start.elapsed() < SECOND, "{fault:?} {polls}: {:?}", start.elapsed());
            tokio::time::sleep(SECOND).await;
        }
    }
    assert_all_free(backend.inside()).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_beside_the_own_write_hold_whose_grant_comes_after_its_lease_is_asked_for_again() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let lock = Locks::new(backend.clone()).rw_lock("a");
    let owner = Owner::new();
    let writer = lock.write().owned_by(&owner).acquire().await.unwrap();
    let read = lock.read().owned_by(&owner).lease(SECOND);
    faults.next(Op::Acquire, Fault::DelayReply(2 * SECOND));
    let reader = read.acquire().await.unwrap();
    assert!(reader.is_held(), "the lease of the first grant had ended");
    assert_eq!(faults.calls(Op::Acquire), 3);
    reader.release().await.unwrap();
    faults.next(Op::Acquire, Fault::DelayReply(2 * SECOND));
    let tried = read.try_acquire().await;
    assert!(matches!(tried, Err(LockError::Backend(_))), "{tried:?}");
    writer.release().await.unwrap();
    assert_all_free(backend.inside()).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_finds_the_write_hold_that_its_owner_has_by_now() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let lock = Locks::new(backend.clone()).rw_lock("a");
    let owner = Owner::new();
    let (read, write) = (lock.read().owned_by(&owner), lock.write().owned_by(&owner));
    let first = write.acquire().await.unwrap();
    faults.next(Op::Acquire, Fault::Delay(SECOND));
    let mut asking = Box::pin(read.acquire());
    assert!(poll_times(1, asking.as_mut()).await.is_none());
    let mut behind = Box::pin(read.acquire());
    assert!(poll_times(1, behind.as_mut()).await.is_none());
    // The hold that the read waited to join is over, and the owner writes again.
    first.release().await.unwrap();
    let second = write.acquire().await.unwrap();
    drop(asking);
    let reader = behind.await.unwrap();
    assert!(reader.is_held() && second.is_held());
    reader.release().await.unwrap();
    second.release().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_all_free(backend.inside()).await;
}

#[tokio::test(start_paused = true)]
async fn who_drops_a_side_can_have_the_other_at_once() {
    let (_, one, _) = two_clients();
    let lock = one.rw_lock("a");
    for _ in 0..5 {
        drop(lock.read().try_acquire().await.unwrap().expect("the writer is gone"));
        drop(lock.write().try_acquire().await.unwrap().expect("the readers are gone"));
    }
}

#[tokio::test(start_paused = true)]
async fn one_name_is_not_two_kinds_of_lock() {
    let (_, one, other) = two_clients();
    let wrong_type = |error: LockError| match error {
        LockError::Backend(error) => {
            assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
            assert_eq!(error.lock().unwrap().as_str(), "a", "it names the lock");
        }
        error => panic!("{error}"),
    };
    for locks in [&one, &other] {
        let owner = Owner::new();
        // In one scope: an owner nests in its own kind only.
        let guard = one.lock("a").owned_by(&owner).acquire().await.unwrap();
        wrong_type(locks.rw_lock("a").read().owned_by(&owner).acquire().await.unwrap_err());
        wrong_type(locks.rw_lock("a").write().owned_by(&owner).try_acquire().await.unwrap_err());
        wrong_type(locks.semaphore("a", 3).owned_by(&owner).acquire().await.unwrap_err());
        wrong_type(locks.latch("a").set_count(1).await.unwrap_err());
        guard.release().await.unwrap();

        let guard = one.rw_lock("a").read().owned_by(&owner).acquire().await.unwrap();
        wrong_type(locks.lock("a").owned_by(&owner).acquire().await.unwrap_err());
        wrong_type(locks.fair_lock("a").owned_by(&owner).acquire().await.unwrap_err());
        wrong_type(locks.plain_semaphore("a", 3).acquire().await.unwrap_err());
        guard.release().await.unwrap();

        let guard = one.semaphore("a", 3).acquire().await.unwrap();
        wrong_type(locks.lock("a").acquire().await.unwrap_err());
        wrong_type(locks.rw_lock("a").read().acquire().await.unwrap_err());
        wrong_type(locks.plain_semaphore("a", 3).acquire().await.unwrap_err());
        wrong_type(locks.latch("a").set_count(1).await.unwrap_err());
        guard.release().await.unwrap();

        one.latch("a").set_count(1).await.unwrap();
        wrong_type(locks.lock("a").acquire().await.unwrap_err());
        wrong_type(locks.semaphore("a", 3).acquire().await.unwrap_err());
        wrong_type(locks.semaphore("a", 3).resize(2).await.unwrap_err());
        wrong_type(locks.rw_lock("a").write().acquire().await.unwrap_err());
        one.latch("a").open().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_read_hold_is_told_and_lost_for_nested_calls() {
    let (_, one, other) = two_clients();
    let owner = Owner::new();
    let lock = one.rw_lock("a");
    let reader = lock.read().owned_by(&owner).acquire().await.unwrap();
    assert!(other.rw_lock("a").force_release().await.unwrap());
    reader.lost().await;
    assert!(matches!(lock.read().owned_by(&owner).acquire().await, Err(LockError::Lost { .. })));
    assert!(matches!(lock.write().owned_by(&owner).acquire().await, Err(LockError::Lost { .. })));
    assert!(matches!(reader.release().await, Err(LockError::Lost { .. })));
    drop(lock.write().owned_by(&owner).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_reads_beside_writing_cannot_wait_for_a_condition() {
    let (_, one, _) = two_clients();
    let (lock, owner) = (one.rw_lock("a"), Owner::new());
    let condition = lock.write().condition("c");
    let writer = lock.write().owned_by(&owner).acquire().await.unwrap();
    let reader = lock.read().owned_by(&owner).acquire().await.unwrap();
    let error = LockError::from(condition.wait(writer).await.unwrap_err());
    assert!(matches!(&error, LockError::InvalidOption { option: "wait", .. }), "{error}");
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn a_condition_gives_the_lock_back_as_it_was_held() {
    let (_, one, other) = two_clients();
    // The handle of the condition has other options than the guard.
    let condition = one.lock("a").lease(SECOND).condition("c");
    let guard = one.fair_lock("a").acquire().await.unwrap();
    let (guard, outcome) = condition.wait_timeout(guard, SECOND).await.unwrap();
    assert_eq!(outcome, WaitOutcome::TimedOut);
    assert_eq!(guard.mode(), Mode::Fair);
    assert!(other.lock("a").acquire_timeout(100 * SECOND).await.is_err(), "it is renewed");
    assert!(guard.is_held());
}
