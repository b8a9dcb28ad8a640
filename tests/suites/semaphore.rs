//! Semaphores through the core.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, Locks, Mode, Owner, Semaphore};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::{task::JoinSet, time::Instant};

use crate::clients::{SECOND, assert_all_free, two_clients};

/// A semaphore of each kind, at two clients.
fn kinds() -> [(MemoryBackend, Semaphore, Semaphore); 2] {
    let (leased, one, other) = two_clients();
    let leased = (leased, one.semaphore("s", 10), other.semaphore("s", 10));
    let (plain, one, other) = two_clients();
    [leased, (plain, one.plain_semaphore("s", 10), other.plain_semaphore("s", 10))]
}

#[tokio::test(start_paused = true)]
async fn never_are_more_inside_than_there_are_permits_and_everybody_gets_in() {
    for (store, one, other) in kinds() {
        let inside = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..100_u32 {
            let semaphore = if number % 2 == 0 { one.clone() } else { other.clone() };
            let (inside, most) = (inside.clone(), most.clone());
            tasks.spawn(async move {
                let wanted = 1 + number % 3;
                for round in 0..5_u32 {
                    let guard = semaphore.permits(wanted).acquire().await.unwrap();
                    let now = inside.fetch_add(wanted, Ordering::SeqCst) + wanted;
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(u64::from(
                        1 + (number * 7 + round) % 5,
                    )))
                    .await;
                    inside.fetch_sub(wanted, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!((9..=10).contains(&most), "{most}");
        assert_all_free(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_gets_all_its_permits_or_none() {
    for (_, one, other) in kinds() {
        let eight = one.permits(8).acquire().await.unwrap();
        assert_eq!(eight.mode().to_string(), "permit");
        assert!(other.permits(3).try_acquire().await.unwrap().is_none());
        assert_eq!(other.available().await.unwrap(), 2);
        let two = other.permits(2).try_acquire().await.unwrap().unwrap();
        assert!(two.token() > eight.token());
        assert!(one.try_acquire().await.unwrap().is_none());
        eight.release().await.unwrap();
        assert_eq!(one.available().await.unwrap(), 8, "its own permits alone came back");
        assert!(two.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_many_is_not_overtaken_in_its_client() {
    for (_, one, _) in kinds() {
        let held = one.permits(9).acquire().await.unwrap();
        let many = tokio::spawn(one.permits(5).acquire());
        tokio::task::yield_now().await;
        assert!(one.try_acquire().await.unwrap().is_none(), "there is one, but others come first");
        let few = tokio::spawn(one.acquire());
        tokio::time::sleep(SECOND).await;
        assert!(!few.is_finished());
        held.release().await.unwrap();
        assert!(many.await.unwrap().unwrap().token() < few.await.unwrap().unwrap().token());
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_never_be_had_is_refused() {
    for (_, one, other) in kinds() {
        for (error, option) in [
            (one.permits(0).acquire().await.unwrap_err(), "permits"),
            (one.permits(0).try_acquire().await.unwrap_err(), "permits"),
            (one.resize(0).await.unwrap_err(), "resize"),
        ] {
            assert!(
                matches!(&error, LockError::InvalidOption { option: named, .. } if *named == option),
                "{error}"
            );
            assert!(error.to_string().contains("`s`"), "it names the lock: {error}");
        }
        let held = other.acquire().await.unwrap();
        for error in [
            one.permits(11).acquire().await.unwrap_err(),
            one.permits(11).try_acquire().await.unwrap_err(),
            one.permits(11).acquire_timeout(SECOND).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, LockError::TooManyPermits { asked: 11, limit: 10, .. }),
                "{error}"
            );
        }
        assert!(held.is_held());
        assert_eq!(one.available().await.unwrap(), 9);
    }
    let (_, one, _) = two_clients();
    for empty in [one.semaphore("s", 0), one.plain_semaphore("s", 0)] {
        assert!(matches!(empty.name(), Err(LockError::InvalidOption { .. })));
        assert!(matches!(empty.acquire().await, Err(LockError::InvalidOption { .. })));
    }
    let big = one.semaphore("s", 5000);
    assert!(matches!(big.permits(2000).acquire().await, Err(LockError::InvalidOption { .. })));
    assert!(matches!(one.semaphore("", 1).acquire().await, Err(LockError::InvalidName { .. })));
    let refused = one.plain_semaphore("p", 3).resize(4).await.unwrap_err();
    assert!(matches!(&refused, LockError::InvalidOption { option: "resize", .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn resizing_lets_more_in_and_takes_nothing_away() {
    let (_, one, other) = two_clients();
    let (here, there) = (one.semaphore("s", 2), other.semaphore("s", 2));
    let held = here.permits(2).acquire().await.unwrap();
    let waiting = tokio::spawn(there.permits(2).acquire());
    tokio::time::sleep(SECOND).await;
    let start = Instant::now();
    here.resize(5).await.unwrap();
    let more = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_millis(50));
    assert_eq!(there.available().await.unwrap(), 1);
    assert_eq!(there.state().await.unwrap().limit(), Some(5), "the stored number counts");

    let too_many = tokio::spawn(there.permits(4).acquire());
    tokio::time::sleep(SECOND).await;
    here.resize(3).await.unwrap();
    assert!(held.is_held() && more.is_held());
    assert_eq!(there.available().await.unwrap(), 0);
    // Waiters for more permits than there are now are told when they ask again.
    held.release().await.unwrap();
    let error = too_many.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::TooManyPermits { asked: 4, limit: 3, .. }), "{error}");
    assert_eq!(there.available().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_lets_the_next_one_in() {
    for (_, one, other) in kinds() {
        let dead = one.clone().lease(2 * SECOND).permits(10).acquire().await.unwrap();
        std::mem::forget(dead);
        let start = Instant::now();
        let guard = other.acquire().await.unwrap();
        let waited = start.elapsed();
        assert!(
            waited >= 2 * SECOND && waited < 2 * SECOND + Duration::from_millis(100),
            "{waited:?}"
        );
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_renewed_while_their_guard_lives_and_lost_when_forced() {
    for (_, one, other) in kinds() {
        let held = one.permits(10).acquire().await.unwrap();
        assert!(other.acquire_timeout(100 * SECOND).await.is_err());
        assert!(held.is_held());
        assert!(other.force_release().await.unwrap());
        held.lost().await;
        assert!(matches!(held.release().await, Err(LockError::Lost { .. })));
        assert_eq!(other.available().await.unwrap(), 10, "and came back once");
    }
}

#[tokio::test(start_paused = true)]
async fn each_acquisition_of_an_owner_takes_permits_of_its_own() {
    for (_, one, other) in kinds() {
        for owner in [Owner::new(), Owner::named("job-17")] {
            let one = one.clone().owned_by(&owner);
            let first = one.permits(4).acquire().await.unwrap();
            let second = one.permits(6).acquire().await.unwrap();
            assert_ne!(first.token(), second.token());
            assert!(one.try_acquire().await.unwrap().is_none(), "no nesting");
            let state = other.state().await.unwrap();
            let mut counts: Vec<_> = state
                .holders()
                .iter()
                .map(|holder| match holder.mode() {
                    Mode::Permit { count, .. } => count,
                    mode => panic!("{mode}"),
                })
                .collect();
            counts.sort_unstable();
            assert_eq!(counts, [4, 6]);
            if let Some(name) = owner.name() {
                assert!(state.holders().iter().all(|holder| holder.owner() == name), "{state:?}");
            }
            first.release().await.unwrap();
            assert!(second.is_held());
            second.release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn those_that_try_at_the_same_moment_get_what_there_is() {
    let backend = Faulty::new(MemoryBackend::new());
    backend.faults().every(Op::Acquire, Fault::DelayReply(SECOND));
    let semaphore = Locks::new(backend).semaphore("s", 10);
    let mut tries = JoinSet::new();
    for _ in 0..15 {
        tries.spawn(semaphore.try_acquire());
    }
    let got = tries.join_all().await.into_iter().filter_map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(got.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn who_drops_permits_can_have_them_again_at_once() {
    for (_, one, _) in kinds() {
        for _ in 0..5 {
            drop(one.permits(10).try_acquire().await.unwrap().expect("they are back"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn releases_that_never_cease_do_not_keep_waiters_out() {
    let backend = Faulty::new(MemoryBackend::new());
    backend.faults().every(Op::Release, Fault::DelayReply(SECOND));
    let semaphore = Locks::new(backend).semaphore("s", 2);
    let churn = tokio::spawn({
        let semaphore = semaphore.clone();
        async move {
            for _ in 0..100 {
                drop(semaphore.acquire().await.unwrap());
                tokio::time::sleep(SECOND / 4).await;
            }
        }
    });
    tokio::time::sleep(SECOND).await;
    let start = Instant::now();
    drop(semaphore.acquire().await.unwrap());
    assert!(start.elapsed() <= 2 * SECOND, "{:?}", start.elapsed());
    churn.abort();
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_or_unanswered_leaves_no_permit_taken() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let semaphore = Locks::new(backend.clone()).semaphore("s", 3);
    for fault in [Fault::DelayReply(SECOND), Fault::LostReply, Fault::LostRequest] {
        for polls in 0..8 {
            faults.next(Op::Acquire, fault);
            drop(poll_times(polls, semaphore.permits(2).acquire()).await);
            faults.heal();
            tokio::time::sleep(2 * SECOND).await;
            assert_eq!(semaphore.available().await.unwrap(), 3, "{fault:?} after {polls} polls");
        }
    }
    assert_all_free(backend.inside()).await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_gives_back_its_permits_and_takes_no_more() {
    let (store, one, other) = two_clients();
    let semaphore = one.semaphore("s", 3);
    let held = semaphore.permits(3).acquire().await.unwrap();
    let waiting = tokio::spawn(semaphore.acquire());
    tokio::time::sleep(SECOND).await;
    one.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(LockError::Closed { .. })));
    assert!(!held.is_held());
    assert!(matches!(semaphore.acquire().await, Err(LockError::Closed { .. })));
    drop(other.semaphore("s", 3).permits(3).acquire().await.unwrap());
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_runs_out_of_time_while_the_backend_is_silent_tells_why() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::builder(backend).retry_for(60 * SECOND).build().unwrap();
    let latch = locks.latch("l");
    latch.set_count(1).await.unwrap();
    assert!(matches!(latch.wait_timeout(SECOND).await, Err(LockError::LatchTimeout { .. })));
    faults.every(Op::Count, Fault::Refuse(lockcore::BackendErrorKind::Connection));
    let error = latch.wait_timeout(SECOND).await.unwrap_err();
    assert!(matches!(&error, LockError::Backend(cause) if cause.lock().is_some()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn who_tries_behind_one_that_is_not_driven_on_is_not_kept_for_ever() {
    let backend = Faulty::new(MemoryBackend::new());
    backend.faults().next(Op::Acquire, Fault::DelayReply(SECOND));
    let semaphore = Locks::new(backend).semaphore("s", 3);
    let mut kept = Box::pin(semaphore.acquire());
    assert!(poll_times(1, kept.as_mut()).await.is_none());
    let start = Instant::now();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert!(start.elapsed() <= 6 * SECOND, "{:?}", start.elapsed());
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_long_ago_is_no_answer_for_who_tries_now() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let semaphore = Locks::new(backend).semaphore("s", 3);
    let held = semaphore.acquire().await.unwrap();
    faults.every(Op::Acquire, Fault::Refuse(lockcore::BackendErrorKind::Connection));
    assert!(semaphore.acquire_timeout(SECOND).await.is_err());
    faults.heal();
    tokio::time::sleep(600 * SECOND).await;
    faults.next(Op::Acquire, Fault::DelayReply(SECOND));
    let first = tokio::spawn(semaphore.acquire());
    tokio::task::yield_now().await;
    assert!(semaphore.try_acquire().await.unwrap().is_some());
    drop(first.await.unwrap().unwrap());
    drop(held);
}
