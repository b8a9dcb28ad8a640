//! Several locks, all or none.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, LockError, Locks, LossReason, MultiLock, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tokio::time::Instant;

use crate::clients::{SECOND, assert_all_free, two_clients};

#[tokio::test(start_paused = true)]
async fn all_are_held_together_each_with_its_token() {
    let (store, one, other) = two_clients();
    let guard = one.multi_lock(["b", "a", "c", "a"]).acquire().await.unwrap();
    assert!(guard.tokens().map(|(name, _)| name).eq(["a", "b", "c"]), "in order, and each once");
    assert_eq!((guard.token("b").is_some(), guard.token("d")), (true, None));
    for name in ["a", "b", "c"] {
        assert!(other.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
    }
    let nested = one.lock("b").owned_by(guard.owner()).acquire().await.unwrap();
    assert_eq!(nested.hold_count(), 2, "one owner holds them all");
    nested.release().await.unwrap();
    guard.release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_holds_none() {
    let (store, one, other) = two_clients();
    let held = other.lock("b").acquire().await.unwrap();
    assert!(one.multi_lock(["a", "b", "c"]).try_acquire().await.unwrap().is_none());
    let timeout = one.multi_lock(["a", "b", "c"]).acquire_timeout(SECOND).await.unwrap_err();
    assert!(
        matches!(&timeout, LockError::Timeout { lock, .. } if lock.as_str() == "b"),
        "{timeout}"
    );
    let at_once =
        one.multi_lock(["a", "b", "c"]).acquire_timeout(Duration::ZERO).await.unwrap_err();
    assert!(matches!(at_once, LockError::Timeout { .. }), "{at_once}");
    held.release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn while_it_waits_for_one_the_greater_names_are_free() {
    let (store, one, other) = two_clients();
    let held = other.lock("b").acquire().await.unwrap();
    let mut waiting = Box::pin(one.multi_lock(["a", "b", "c"]).acquire());
    assert!(tokio::time::timeout(SECOND, waiting.as_mut()).await.is_err());
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    assert!(other.lock("c").try_acquire().await.unwrap().is_some());
    held.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_names_take_as_many_round_trips_as_one() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    faults.every(Op::Acquire, Fault::DelayReply(SECOND));
    faults.every(Op::Release, Fault::DelayReply(SECOND));
    let locks = Locks::new(backend);
    let names: Vec<String> = (0..1000).map(|number| format!("name:{number}")).collect();
    let start = Instant::now();
    let guard = locks.multi_lock(names).acquire().await.unwrap();
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    assert_eq!(guard.tokens().count(), 1000);
    guard.release().await.unwrap();
    assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_is_the_loss_of_all() {
    let (store, one, other) = two_clients();
    let guard = one.multi_lock(["a", "b"]).acquire().await.unwrap();
    let run = tokio::spawn({
        let lock = one.multi_lock(["c", "d"]);
        async move { lock.run(async |_| std::future::pending::<()>().await).await }
    });
    tokio::time::sleep(SECOND).await;
    assert!(poll_times(1, guard.lost()).await.is_none() && guard.is_held());
    assert!(
        other.lock("b").force_release().await.unwrap()
            && other.lock("d").force_release().await.unwrap()
    );
    let lost = guard.lost().await;
    assert!(lost == LossReason::Gone && lost.lock().as_str() == "b", "{lost}");
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert!(matches!(run.await.unwrap(), Err(LockError::Lost { .. })));
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_gives_the_others_back() {
    for fault in [Fault::LostReply, Fault::LostRequest] {
        let backend = Faulty::new(MemoryBackend::new());
        let (faults, store) = (backend.faults(), backend.inside().clone());
        let locks = Locks::new(backend);
        faults.next_goes_well(Op::Acquire);
        faults.next(Op::Acquire, fault);
        let error = locks.multi_lock(["a", "b", "c"]).try_acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Backend(_)), "{fault:?}: {error}");
        assert_all_free(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_await_it_holds_none() {
    for contended in [false, true] {
        for polls in 0..12 {
            let backend = Faulty::new(MemoryBackend::new());
            backend.faults().every(Op::Acquire, Fault::DelayReply(Duration::from_millis(1)));
            let store = backend.inside().clone();
            let (locks, other) = (Locks::new(backend), Locks::new(store.clone()));
            let held =
                if contended { Some(other.lock("b").acquire().await.unwrap()) } else { None };
            let acquire = poll_times(polls, locks.multi_lock(["a", "b", "c"]).acquire());
            drop(tokio::time::timeout(SECOND, acquire).await);
            drop(held);
            tokio::time::sleep(SECOND).await;
            assert_eq!(store.names_in_use(), 0, "{polls} polls, contended: {contended}");
        }
    }
}

#[tokio::test]
async fn bad_input_is_refused_before_any_call() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    let none = locks.multi_lock(Vec::<String>::new()).acquire().await.unwrap_err();
    assert!(matches!(none, LockError::InvalidOption { .. }), "{none}");
    let bad = locks.multi_lock(["fine", "a{b"]).acquire().await.unwrap_err();
    assert!(matches!(bad, LockError::InvalidName { .. }), "{bad}");
    let lease = locks.multi_lock(["fine"]).lease(Duration::ZERO).try_acquire().await.unwrap_err();
    assert!(matches!(lease, LockError::InvalidOption { .. }), "{lease}");
    assert_eq!(faults.all_calls(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_deadlock_and_never_hold_partly() {
    let (store, one, other) = two_clients();
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let work = |locks: Locks, names: [&'static str; 3]| {
        let inside = inside.clone();
        tokio::spawn(async move {
            for round in 0..1000 {
                let lock = locks.multi_lock(names).owned_by(&Owner::new());
                let guard = match round % 3 {
                    0 => lock.try_acquire().await.unwrap(),
                    _ => Some(lock.acquire().await.unwrap()),
                };
                if let Some(guard) = guard {
                    assert_eq!(
                        inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                        0,
                        "two are inside"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }
        })
    };
    let tasks = [work(one, ["a", "b", "c"]), work(other, ["c", "b", "a"])];
    let done = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(50), done).await.unwrap();
    assert_eq!(store.names_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn locks_of_every_kind_are_held_together() {
    let (store, one, other) = two_clients();
    let all = |locks: &Locks| {
        MultiLock::of([
            locks.semaphore("d", 3).permits(2),
            locks.lock("a"),
            locks.rw_lock("c").read(),
            locks.fair_lock("b"),
            locks.rw_lock("e").write(),
        ])
    };
    let guard = all(&one).acquire().await.unwrap();
    assert!(guard.tokens().map(|(name, _)| name).eq(["a", "b", "c", "d", "e"]));
    assert!(other.fair_lock("b").try_acquire().await.unwrap().is_none());
    assert!(other.rw_lock("c").write().try_acquire().await.unwrap().is_none());
    assert!(other.rw_lock("c").read().try_acquire().await.unwrap().is_some());
    assert!(other.semaphore("d", 3).permits(2).try_acquire().await.unwrap().is_none());
    assert!(other.rw_lock("e").read().try_acquire().await.unwrap().is_none());
    assert!(all(&other).try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(all(&other).acquire());
    tokio::time::sleep(SECOND).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn locks_of_several_stores_are_held_together() {
    let (here, there) = (Locks::new(MemoryBackend::new()), Locks::new(MemoryBackend::new()));
    let both = MultiLock::of([there.lock("b"), here.lock("a")]);
    let guard = both.acquire().await.unwrap();
    assert!(here.lock("a").try_acquire().await.unwrap().is_none());
    assert!(there.lock("b").try_acquire().await.unwrap().is_none());
    assert!(here.lock("b").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_in_two_ways_is_refused_and_nothing_is_held() {
    let (store, one, other) = two_clients();
    for twice in [
        MultiLock::of([one.rw_lock("a").read(), one.rw_lock("a").write()]),
        MultiLock::of([one.lock("a"), one.fair_lock("a")]),
        MultiLock::of([one.lock("a"), other.lock("a")]),
        MultiLock::of([one.semaphore("a", 3).permits(1), one.semaphore("a", 3).permits(2)]),
        MultiLock::of([one.semaphore("a", 3).permits(1), one.semaphore("a", 3).permits(1)]),
    ] {
        let error = twice.acquire().await.unwrap_err();
        assert!(
            matches!(&error, LockError::InvalidOption { lock: Some(lock), .. } if lock.as_str() == "a"),
            "{error}"
        );
    }
    let member = MultiLock::of([one.lock("a"), one.semaphore("b", 3).permits(0)]);
    assert!(matches!(member.acquire().await, Err(LockError::InvalidOption { .. })));
    let member = MultiLock::of([one.lock("a"), one.semaphore("b", 3).permits(4)]);
    assert!(matches!(
        member.acquire().await,
        Err(LockError::TooManyPermits { asked: 4, limit: 3, .. })
    ));
    assert_all_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_time_out_while_the_backend_is_silent_tells_why() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::builder(backend).retry_for(60 * SECOND).build().unwrap();
    faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    let error = locks.multi_lock(["a", "b"]).acquire_timeout(SECOND).await.unwrap_err();
    assert!(
        matches!(&error, LockError::Backend(cause) if cause.kind() == BackendErrorKind::Connection),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_owner_given_to_the_members_is_that_of_all() {
    let (store, one, _) = two_clients();
    let alice = Owner::new();
    let outer = one.lock("a").owned_by(&alice).acquire().await.unwrap();
    let both = MultiLock::of([one.lock("a").owned_by(&alice), one.lock("b")]);
    let guard = both.acquire().await.unwrap();
    assert_eq!((guard.owner(), outer.hold_count()), (&alice, 2));
    drop((guard, outer));
    let two_owners =
        MultiLock::of([one.lock("a").owned_by(&alice), one.lock("b").owned_by(&Owner::new())]);
    let error = two_owners.acquire().await.unwrap_err();
    assert!(matches!(error, LockError::InvalidOption { option: "owned_by", .. }), "{error}");
    let guard = two_owners.owned_by(&alice).acquire().await.unwrap();
    drop(guard);
    assert_all_free(&store).await;
}
