//! Local hand-over: tasks of one client hand a hold to each other without the backend. On the
//! memory backend, with a paused clock.

use std::{future::Future, pin::Pin, time::Duration};

use lockcore::{
    BackendErrorKind, Lock, LockError, LockGuard, Locks, LocksBuilder, LossReason, Owner,
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op, poll_times};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How long holds are handed over by default.
const WINDOW: Duration = Duration::from_millis(50);

/// The maximum delay of timers, which tick in milliseconds.
const SLACK: Duration = Duration::from_millis(5);

/// A client with counted calls, and the store that it shares with others.
struct Scene {
    store: MemoryBackend,
    faults: Faults,
    locks: Locks,
}

type Acquiring = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        Self { store, faults, locks: options(Locks::builder(backend)).build().unwrap() }
    }

    fn lock(&self) -> Lock {
        self.locks.lock("a")
    }

    /// The lock at another client.
    fn elsewhere(&self) -> Lock {
        Locks::new(self.store.clone()).lock("a")
    }

    /// A guard of a hold that may be handed over, and a waiter for it.
    async fn held_and_awaited(&self) -> (LockGuard, Acquiring) {
        let first = self.lock().acquire().await.unwrap();
        let second = waiting(self.lock()).await;
        let third = waiting(self.lock()).await;
        first.release().await.unwrap();
        (second.await.unwrap(), third)
    }

    /// The number of acquire requests to the backend.
    fn asked(&self) -> usize {
        self.faults.calls(Op::Acquire)
    }

    /// The number of releases at the backend.
    fn released(&self) -> usize {
        self.faults.calls(Op::Release)
    }
}

/// An acquisition that has its place in the queue.
async fn waiting(lock: Lock) -> Acquiring {
    let mut acquiring: Acquiring = Box::pin(lock.acquire());
    assert!(poll_times(1, acquiring.as_mut()).await.is_none(), "it should have to wait");
    acquiring
}

/// A task that acquires the lock, keeps it for `time` and releases it. Returns the token, and the
/// owner at the backend.
fn holder(lock: Lock, time: Duration) -> JoinHandle<(u64, String)> {
    tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        let had = (u64::from(guard.token()), guard.wire_owner().to_owned());
        sleep(time).await;
        guard.release().await.unwrap();
        had
    })
}

#[tokio::test(start_paused = true)]
async fn tasks_hand_a_hold_on_without_the_backend() {
    let scene = Scene::new();
    let (guard, next) = scene.held_and_awaited().await;
    let before = (scene.asked(), scene.released());
    let (token, owner, wire_owner) =
        (guard.token(), guard.owner().clone(), guard.wire_owner().to_owned());
    guard.release().await.unwrap();
    let handed = next.await.unwrap();
    assert_eq!((scene.asked(), scene.released()), before, "the backend was asked");

    assert!(handed.token() > token, "a token of its own");
    assert_ne!(*handed.owner(), owner, "an owner of its own");
    assert_eq!(handed.wire_owner(), wire_owner, "the same hold at the backend");
    assert_eq!((handed.hold_count(), handed.is_held()), (1, true));
    let state = scene.elsewhere().state().await.unwrap();
    assert_eq!(state.holders().len(), 1);
    assert_eq!(state.holders()[0].owner(), handed.wire_owner(), "others see who holds");
    assert!(scene.elsewhere().try_acquire().await.unwrap().is_none(), "others are kept out");

    handed.release().await.unwrap();
    assert_eq!(scene.released(), before.1 + 1);
    let next = scene.elsewhere().try_acquire().await.unwrap().expect("it is free now");
    assert!(u64::from(next.token()) > u64::from(token) + 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_tasks_needs_one_grant_and_keeps_its_order() {
    let scene = Scene::new();
    let first = scene.lock().acquire().await.unwrap();
    let (told, mut tell) = mpsc::unbounded_channel();
    for number in 0..200 {
        let (lock, told) = (scene.lock(), told.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            told.send((number, guard.token())).unwrap();
            drop(guard);
        });
        yield_now().await;
    }
    drop(told);
    let asked = scene.asked();
    first.release().await.unwrap();
    let mut entered = Vec::new();
    while let Some(entry) = tell.recv().await {
        entered.push(entry);
    }
    assert!(entered.iter().map(|(number, _)| *number).eq(0..200), "{entered:?}");
    assert!(entered.windows(2).all(|pair| pair[0].1 < pair[1].1), "{entered:?}");
    assert_eq!(scene.asked() - asked, 1, "all but the first have it from the one before");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_given_back_after_its_time() {
    let scene = Scene::new();
    let first = scene.lock().acquire().await.unwrap();
    let holders: Vec<_> = (0..10).map(|_| holder(scene.lock(), 20 * MS)).collect();
    sleep(MS).await;
    let asked = scene.asked();
    first.release().await.unwrap();
    let mut owners = Vec::new();
    for holder in holders {
        owners.push(holder.await.unwrap().1);
    }
    // Holds that end 20 and 40 ms after the grant are handed over, the one at 60 ms is not.
    let grants: Vec<_> = owners.chunk_by(|one, next| one == next).map(<[String]>::len).collect();
    assert_eq!(grants, [3, 3, 3, 1]);
    assert!(scene.asked() - asked <= 2 * grants.len(), "{} requests", scene.asked() - asked);
}

#[tokio::test(start_paused = true)]
async fn other_clients_get_their_turn() {
    let scene = Scene::new();
    let (told, mut tell) = mpsc::unbounded_channel();
    let others = Locks::new(scene.store.clone());
    for (client, locks) in [&scene.locks, &others].into_iter().enumerate() {
        for _ in 0..8 {
            let (lock, told) = (locks.lock("a"), told.clone());
            tokio::spawn(async move {
                loop {
                    let guard = lock.acquire().await.unwrap();
                    if told.send(client).is_err() {
                        break;
                    }
                    sleep(2 * MS).await;
                    guard.release().await.unwrap();
                }
            });
        }
    }
    let mut turns = Vec::new();
    for _ in 0..2000 {
        turns.push(tell.recv().await.unwrap());
    }
    let longest = turns.chunk_by(|one, next| one == next).map(<[usize]>::len).max().unwrap();
    let share = turns.iter().filter(|client| **client == 0).count();
    assert!((600..1400).contains(&share), "{share} of 2000 turns");
    assert!(longest < 300, "{longest} turns of one client in a row");
}

#[tokio::test(start_paused = true)]
async fn a_turn_lasts_for_a_quarter_of_the_lease_at_most() {
    let scene = Scene::with(|builder| builder.lease(400 * MS).hand_over(60 * SECOND));
    for _ in 0..3 {
        let lock = scene.lock();
        tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                sleep(MS).await;
                guard.release().await.unwrap();
            }
        });
    }
    let start = Instant::now();
    sleep(MS).await;
    drop(scene.elsewhere().acquire().await.unwrap());
    assert!(start.elapsed() <= 100 * MS + SLACK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_handed_on_as_often_as_it_has_tokens() {
    let scene = Scene::with(|builder| builder.hand_over(10 * SECOND).lease(60 * SECOND));
    let first = scene.lock().acquire().await.unwrap();
    let holders: Vec<_> = (0..600).map(|_| holder(scene.lock(), Duration::ZERO)).collect();
    sleep(MS).await;
    first.release().await.unwrap();
    let mut had = Vec::new();
    for holder in holders {
        had.push(holder.await.unwrap());
    }
    let grants: Vec<_> = had.chunk_by(|one, next| one.1 == next.1).map(<[_]>::len).collect();
    assert_eq!(grants, [256, 256, 88]);
    assert!(had.windows(2).all(|pair| pair[0].0 < pair[1].0), "tokens rise");
}

#[tokio::test(start_paused = true)]
async fn it_can_be_turned_off_and_has_a_range() {
    let scene = Scene::with(|builder| builder.hand_over(Duration::ZERO));
    let (guard, next) = scene.held_and_awaited().await;
    let (asked, owner) = (scene.asked(), guard.wire_owner().to_owned());
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(scene.asked() > asked && next.wire_owner() != owner);

    let error = Locks::builder(MemoryBackend::new()).hand_over(61 * SECOND).build().unwrap_err();
    assert!(matches!(error, LockError::InvalidOption { option: "hand_over", .. }), "{error:?}");
    assert!(error.to_string().contains("60 s"), "{error}");
}

/// A waiter whose request differs from the granted one must send its own.
#[tokio::test(start_paused = true)]
async fn only_who_wants_just_the_same_is_handed_a_hold() {
    let scene = Scene::new();
    let others = [
        scene.lock().lease(20 * SECOND),
        scene.lock().lease(30 * SECOND),
        scene.lock().owned_by(&Owner::named("job-17")),
    ];
    for other in others {
        let first = scene.lock().acquire().await.unwrap();
        let second = waiting(scene.lock()).await;
        let other = waiting(other).await;
        let last = waiting(scene.lock()).await;
        first.release().await.unwrap();
        let second = second.await.unwrap();
        let (asked, owner) = (scene.asked(), second.wire_owner().to_owned());
        second.release().await.unwrap();
        let other = other.await.unwrap();
        assert!(scene.asked() > asked, "it had to ask");
        assert_ne!(other.wire_owner(), owner);
        let owner = other.wire_owner().to_owned();
        other.release().await.unwrap();
        let last = last.await.unwrap();
        assert_ne!(last.wire_owner(), owner, "nor is its own handed on");
        last.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_lease_has_grown_is_not_handed_on() {
    let scene = Scene::new();
    let (guard, next) = scene.held_and_awaited().await;
    let nested = scene.lock().owned_by(guard.owner()).lease(300 * SECOND).acquire().await.unwrap();
    let owner = guard.wire_owner().to_owned();
    drop(nested);
    guard.release().await.unwrap();
    assert_ne!(next.await.unwrap().wire_owner(), owner);
}

#[tokio::test(start_paused = true)]
async fn a_nested_hold_is_handed_on_by_its_last_guard() {
    let scene = Scene::new();
    let (guard, mut next) = scene.held_and_awaited().await;
    let nested = scene.lock().owned_by(guard.owner()).acquire().await.unwrap();
    let owner = guard.wire_owner().to_owned();
    guard.release().await.unwrap();
    assert!(poll_times(1, next.as_mut()).await.is_none(), "a guard is left");
    nested.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(next.wire_owner(), owner);
    let nested = scene.lock().owned_by(next.owner()).acquire().await.unwrap();
    assert_eq!((nested.hold_count(), nested.token()), (2, next.token()));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_heir_is_passed_over() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    let after = waiting(scene.lock()).await;
    let (asked, owner) = (scene.asked(), guard.wire_owner().to_owned());
    guard.release().await.unwrap();
    drop(heir);
    let after = after.await.unwrap();
    assert_eq!((scene.asked(), after.wire_owner()), (asked, owner.as_str()));
}

#[tokio::test(start_paused = true)]
async fn a_hold_without_an_heir_is_given_back_at_once() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    let elsewhere = tokio::spawn(scene.elsewhere().acquire());
    sleep(MS).await;
    guard.release().await.unwrap();
    let start = Instant::now();
    drop(heir);
    drop(elsewhere.await.unwrap().unwrap());
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert_eq!(scene.released(), 2, "the first grant, and that of the heir");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_given_back_when_its_heir_has_gone() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    guard.release().await.unwrap();
    drop(heir);
    let newcomer = scene.lock().try_acquire().await.unwrap().expect("nobody else wants it");
    newcomer.release().await.unwrap();

    let (guard, heir) = scene.held_and_awaited().await;
    guard.release().await.unwrap();
    drop(heir);
    let named = scene.lock().owned_by(&Owner::named("job-17"));
    assert!(named.try_acquire().await.unwrap().is_some(), "it is given back first");
}

/// An unpolled future must not keep the lock from other clients, and the hold is not renewed for
/// it.
#[tokio::test(start_paused = true)]
async fn an_heir_that_is_not_polled_keeps_nobody_out_for_long() {
    let scene = Scene::new();
    let (guard, mut heir) = scene.held_and_awaited().await;
    let elsewhere = tokio::spawn(scene.elsewhere().acquire());
    sleep(MS).await;
    guard.release().await.unwrap();
    let start = Instant::now();
    let taken = elsewhere.await.unwrap().unwrap();
    assert!(start.elapsed() <= WINDOW + SLACK, "{:?}", start.elapsed());
    assert!(poll_times(1, heir.as_mut()).await.is_none(), "two hold the lock");
    taken.release().await.unwrap();
    drop(heir.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_ends_what_was_handed_on() {
    let scene = Scene::new();
    let (guard, next) = scene.held_and_awaited().await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    let after = waiting(scene.lock()).await;
    let owner = next.wire_owner().to_owned();
    assert!(scene.lock().force_release().await.unwrap());
    assert_eq!(next.lost().await, LossReason::Gone);
    assert!(
        matches!(next.release().await, Err(LockError::Lost { .. })),
        "a lost hold is not handed on"
    );
    assert_ne!(after.await.unwrap().wire_owner(), owner);
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_ends_what_is_on_its_way_to_the_heir() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    let owner = guard.wire_owner().to_owned();
    guard.release().await.unwrap();
    assert!(scene.lock().force_release().await.unwrap());
    let heir = heir.await.unwrap();
    assert_ne!(heir.wire_owner(), owner);
    let state = scene.elsewhere().state().await.unwrap();
    assert_eq!(state.holders()[0].owner(), heir.wire_owner());
}

/// Waiters hear of a release by another client once the hold is no longer handed over to them.
#[tokio::test(start_paused = true)]
async fn waiters_listen_when_the_time_is_over() {
    let scene = Scene::new();
    let (guard, next) = scene.held_and_awaited().await;
    let next = tokio::spawn(next);
    sleep(WINDOW + SLACK).await;
    assert!(scene.elsewhere().force_release().await.unwrap());
    let start = Instant::now();
    drop(next.await.unwrap().unwrap());
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_handed_on_is_renewed() {
    let scene = Scene::with(|builder| builder.lease(3 * SECOND));
    let (guard, next) = scene.held_and_awaited().await;
    sleep(40 * MS).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(next.remaining() <= 3 * SECOND - 40 * MS, "{:?}", next.remaining());
    sleep(800 * MS).await;
    assert_eq!(scene.faults.calls(Op::Renew), 0, "it is not yet due");
    sleep(20 * SECOND).await;
    assert!(next.is_held());
    assert!(
        (15..=22).contains(&scene.faults.calls(Op::Renew)),
        "{}",
        scene.faults.calls(Op::Renew)
    );
    next.release().await.unwrap();
}

/// Its lease began with the grant, not with the hand-over.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_handed_on_is_lost_with_the_lease_of_the_grant() {
    let scene = Scene::with(|builder| builder.lease(SECOND));
    let (guard, next) = scene.held_and_awaited().await;
    let granted = Instant::now();
    scene.faults.every(Op::Renew, Fault::Refuse(BackendErrorKind::Connection));
    sleep(45 * MS).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(next.lost().await, LossReason::LeaseEnded);
    let held = granted.elapsed();
    assert!((980 * MS..SECOND).contains(&held), "lost after {held:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_gives_back_what_is_on_its_way_to_an_heir() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    guard.release().await.unwrap();
    scene.locks.close().await.unwrap();
    assert!(scene.elsewhere().try_acquire().await.unwrap().is_some(), "it was not given back");
    assert!(matches!(heir.await, Err(LockError::Closed { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_gives_back_what_is_on_its_way_to_an_heir() {
    let scene = Scene::new();
    let (guard, heir) = scene.held_and_awaited().await;
    guard.release().await.unwrap();
    let elsewhere = scene.elsewhere();
    drop((heir, scene));
    let start = Instant::now();
    drop(elsewhere.acquire().await.unwrap());
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn trying_behind_an_heir_makes_no_round_trip() {
    let scene = Scene::new();
    let (guard, next) = scene.held_and_awaited().await;
    let asked = scene.asked();
    assert!(scene.lock().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(scene.lock().try_acquire().await.unwrap().is_none(), "it is the heir's");
    assert_eq!(scene.asked(), asked);
    drop(next.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_idle_name_is_forgotten() {
    let scene = Scene::new();
    let holders: Vec<_> = (0..20).map(|_| holder(scene.lock(), MS)).collect();
    for holder in holders {
        holder.await.unwrap();
    }
    sleep(SECOND).await;
    assert_eq!(scene.store.names_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_turn_it_is_does_not_pause_for_its_own_releases() {
    let scene = Scene::new();
    let start = Instant::now();
    // More holds than the tokens of one grant, so that the lock returns to the backend again and
    // again.
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let lock = scene.lock();
            tokio::spawn(async move {
                for _ in 0..500 {
                    let guard = lock.acquire().await.unwrap();
                    yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!((3..100).contains(&scene.asked()), "asked {} times", scene.asked());
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody else wants it, and nothing takes time");
}
