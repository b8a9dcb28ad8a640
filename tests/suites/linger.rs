//! Kept holds: a client keeps an unwanted lock for a while. On the memory backend, with a paused
//! clock.

use std::time::Duration;

use lockcore::{Lock, LockError, Locks, LocksBuilder, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How long the client of a scene keeps a lock.
const LINGER: Duration = Duration::from_millis(20);

/// The maximum delay of timers, which tick in milliseconds.
const SLACK: Duration = Duration::from_millis(3);

/// A client that keeps locks, with counted calls, and the store that it shares with others.
struct Scene {
    store: MemoryBackend,
    faults: Faults,
    locks: Locks,
}

impl Scene {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        let locks = options(Locks::builder(backend).linger(LINGER)).build().unwrap();
        Self { store, faults, locks }
    }

    fn lock(&self) -> Lock {
        self.locks.lock("a")
    }

    /// The lock at another client.
    fn elsewhere(&self) -> Lock {
        Locks::new(self.store.clone()).lock("a")
    }

    /// The number of acquire and of release requests to the backend.
    fn calls(&self) -> (usize, usize) {
        (self.faults.calls(Op::Acquire), self.faults.calls(Op::Release))
    }

    /// Acquires and releases, so that the lock is kept.
    async fn keep(&self) {
        self.lock().acquire().await.unwrap().release().await.unwrap();
        assert!(self.is_held().await, "it is not kept");
    }

    async fn is_held(&self) -> bool {
        self.elsewhere().state().await.unwrap().is_held()
    }

    /// Waits until the lock is free at the store, and returns how long that took.
    async fn freed(&self) -> Duration {
        let start = Instant::now();
        while self.is_held().await {
            sleep(MS).await;
        }
        start.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_comes_back_needs_no_request() {
    let scene = Scene::new();
    scene.keep().await;
    let before = scene.calls();
    let mut last = None;
    for _ in 0..50 {
        let guard = scene.lock().acquire().await.unwrap();
        assert!(guard.is_held() && guard.hold_count() == 1);
        assert!(Some(guard.token()) > last, "each hold that is asked has a token of its own");
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    assert_eq!(scene.calls(), before, "the backend was asked");
    scene.freed().await;
    assert_eq!(scene.calls(), (before.0, before.1 + 1));
    let next = scene.elsewhere().acquire().await.unwrap();
    assert!(Some(next.token()) > last, "later tokens are greater");
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_is_given_back_at_the_end_of_its_time() {
    let scene = Scene::new();
    scene.keep().await;
    let kept = scene.freed().await;
    assert!((LINGER - SLACK..=LINGER + SLACK).contains(&kept), "{kept:?}");
    assert_eq!(scene.calls(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_time_begins_anew_each_time_and_ends_with_that_for_hand_overs() {
    let scene = Scene::new();
    let start = Instant::now();
    while scene.calls().1 == 0 {
        scene.lock().acquire().await.unwrap().release().await.unwrap();
        sleep(8 * MS).await;
    }
    let turn = start.elapsed();
    assert!((50 * MS..=50 * MS + LINGER).contains(&turn), "{turn:?}");
    assert_eq!(scene.calls().0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_keeps_the_lock_as_well() {
    let scene = Scene::new();
    drop(scene.lock().acquire().await.unwrap());
    drop(scene.lock().try_acquire().await.unwrap().expect("it is kept for us"));
    drop(scene.lock().acquire_timeout(SECOND).await.unwrap());
    assert_eq!(scene.calls(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn another_client_gets_it_at_once() {
    let scene = Scene::new();
    let others = Locks::new(scene.store.clone());
    for other in [others.lock("a"), others.fair_lock("a")] {
        scene.keep().await;
        let released = scene.calls().1;
        // The subscription to the demand is made in the background.
        sleep(MS).await;
        let start = Instant::now();
        let guard = other.acquire().await.unwrap();
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
        assert_eq!(scene.calls().1, released + 1);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_asked_before_the_lock_was_kept_is_heard_too() {
    let scene = Scene::new();
    let guard = scene.lock().acquire().await.unwrap();
    let other = scene.elsewhere();
    let waiting = tokio::spawn(async move { other.acquire().await.map(drop) });
    sleep(MS).await;
    guard.release().await.unwrap();
    let start = Instant::now();
    waiting.await.unwrap().unwrap();
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_others_asked_for_while_it_was_held_is_not_kept() {
    let scene = Scene::new();
    scene.keep().await;
    let guard = scene.lock().acquire().await.unwrap();
    sleep(MS).await;
    assert!(scene.elsewhere().try_acquire().await.unwrap().is_none());
    sleep(MS).await;
    guard.release().await.unwrap();
    assert_eq!(scene.calls(), (1, 1), "it is given back with its last guard");
    assert!(!scene.is_held().await);
}

#[tokio::test(start_paused = true)]
async fn clients_that_all_keep_it_still_share_it() {
    let store = MemoryBackend::new();
    let client = || Locks::builder(store.clone()).linger(100 * MS).build().unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let lock = client().lock("a");
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = lock.acquire().await.unwrap();
                    sleep(MS).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let start = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    // 200 ms of work. Each change of client costs some timer ticks.
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_comes_before_keeping() {
    let scene = Scene::new();
    let guard = scene.lock().acquire().await.unwrap();
    let fair = scene.locks.fair_lock("a");
    let waiting = tokio::spawn(async move { fair.acquire().await.map(drop) });
    sleep(MS).await;
    guard.release().await.unwrap();
    assert_eq!(scene.calls().1, 1, "a fair waiter of this client takes no hold over");
    waiting.await.unwrap().unwrap();
}

/// An acquisition whose request differs from the granted one must send its own.
#[tokio::test(start_paused = true)]
async fn only_who_wants_just_the_same_takes_a_kept_lock() {
    let scene = Scene::new();
    let others = [
        scene.lock().lease(20 * SECOND),
        scene.lock().owned_by(&Owner::named("job-17")),
        scene.locks.fair_lock("a"),
    ];
    for other in others {
        scene.keep().await;
        let (asked, released) = scene.calls();
        let start = Instant::now();
        let guard = other.acquire().await.unwrap();
        assert!(start.elapsed() < LINGER - SLACK, "{:?}", start.elapsed());
        assert!(scene.calls().0 > asked && scene.calls().1 == released + 1);
        guard.release().await.unwrap();
        assert!(!scene.is_held().await, "these are not kept");
    }
}

/// Their requests would only meet the hold that is being released.
#[tokio::test(start_paused = true)]
async fn who_tries_once_waits_until_a_kept_lock_is_given_back() {
    let scene = Scene::new();
    let others = [
        scene.lock().lease(20 * SECOND),
        scene.lock().owned_by(&Owner::named("job-17")),
        scene.locks.fair_lock("a"),
        scene.locks.fair_lock("a").owned_by(&Owner::named("job-17")),
    ];
    for other in others {
        scene.keep().await;
        let guard = other.try_acquire().await.unwrap().expect("nobody has it");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn release_now_confirms() {
    let scene = Scene::new();
    let guard = scene.lock().acquire().await.unwrap();
    let nested = scene.lock().owned_by(guard.owner()).acquire().await.unwrap();
    nested.release_now().await.unwrap();
    assert!(guard.is_held() && scene.calls().1 == 0, "a nested guard is none of the last");
    guard.release_now().await.unwrap();
    assert_eq!(scene.calls().1, 1);
    assert!(!scene.is_held().await);

    let guard = scene.lock().acquire().await.unwrap();
    scene.elsewhere().force_release().await.unwrap();
    let error = guard.release_now().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
}

/// A takeover is not noticed by asking the backend, so the next holder learns of it.
#[tokio::test(start_paused = true)]
async fn a_loss_while_it_is_kept_is_told_to_whoever_releases_it() {
    let scene = Scene::new();
    scene.keep().await;
    scene.elsewhere().force_release().await.unwrap();
    let guard = scene.lock().acquire().await.unwrap();
    let error = guard.release_now().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
    scene.lock().force_release().await.unwrap();
    scene.keep().await;
    scene.lock().force_release().await.unwrap();
    let asked = scene.calls().0;
    scene.lock().acquire().await.unwrap().release_now().await.unwrap();
    assert_eq!(scene.calls().0, asked + 1, "our own order is known here");
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_that_is_freed_by_force_is_handed_to_nobody() {
    let scene = Scene::new();
    scene.keep().await;
    sleep(MS).await;
    assert!(scene.elsewhere().force_release().await.unwrap());
    sleep(MS).await;
    let other = scene.elsewhere().try_acquire().await.unwrap().expect("it is free");
    assert!(scene.lock().try_acquire().await.unwrap().is_none(), "two are inside");
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn close_gives_it_back() {
    let scene = Scene::new();
    scene.keep().await;
    scene.locks.close().await.unwrap();
    assert!(!scene.is_held().await);
    assert_eq!(scene.store.names_in_use(), 0, "and no subscription is left");
}

#[tokio::test(start_paused = true)]
async fn close_ends_the_subscription_though_a_guard_is_left() {
    let scene = Scene::new();
    scene.keep().await;
    let guard = scene.lock().acquire().await.unwrap();
    sleep(MS).await;
    scene.locks.close().await.unwrap();
    yield_now().await;
    assert_eq!(scene.store.names_in_use(), 0);
    drop(guard);
}

/// A hold that was kept once may be a long one the next time.
#[tokio::test(start_paused = true)]
async fn the_subscription_ends_when_somebody_was_heard() {
    let scene = Scene::new();
    scene.keep().await;
    let guard = scene.lock().acquire().await.unwrap();
    for _ in 0..5 {
        sleep(MS).await;
        assert!(scene.elsewhere().try_acquire().await.unwrap().is_none());
    }
    assert_eq!(scene.faults.calls(Op::Woken), 1);
    drop(guard);
    sleep(MS).await;
    assert!(!scene.is_held().await, "it is not kept any more");
}

/// The task that listened is gone with the first one.
#[test]
fn others_are_heard_on_another_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let scene = Scene::with(|builder| builder.linger(100 * MS).hand_over(60 * SECOND));
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(async {
        scene.keep().await;
        scene.lock().acquire().await.unwrap()
    });
    drop(first);
    second.block_on(async {
        scene.locks.lock("b").acquire().await.unwrap().release_now().await.unwrap();
        guard.release().await.unwrap();
        assert!(scene.is_held().await, "it is not kept");
        let lock = scene.lock();
        let busy = tokio::spawn(async move {
            loop {
                lock.acquire().await.unwrap().release().await.unwrap();
                sleep(MS).await;
            }
        });
        let other = timeout(2 * SECOND, scene.elsewhere().acquire()).await;
        other.expect("it is given back").unwrap().release().await.unwrap();
        busy.abort();
    });
}

#[tokio::test(start_paused = true)]
async fn it_is_given_back_though_all_handles_are_gone() {
    let Scene { store, locks, .. } = Scene::new();
    let lock = locks.lock("a");
    drop(locks);
    lock.acquire().await.unwrap().release().await.unwrap();
    drop(lock);
    assert!(store.names_in_use() > 0);
    let start = Instant::now();
    while store.names_in_use() > 0 {
        sleep(MS).await;
        assert!(start.elapsed() <= LINGER + SLACK, "it is never given back");
    }
}

/// Nobody who cannot be heard is kept out.
#[tokio::test(start_paused = true)]
async fn without_a_subscription_nothing_is_kept() {
    let scene = Scene::with(|builder| builder.linger(100 * MS).hand_over(SECOND));
    scene.faults.next(Op::Subscribe, Fault::Refuse(lockcore::BackendErrorKind::Auth));
    scene.lock().acquire().await.unwrap().release().await.unwrap();
    assert!(scene.freed().await < SLACK);
    // A subscription that fails for a while is made again.
    scene.faults.next(Op::Subscribe, Fault::Refuse(lockcore::BackendErrorKind::Unavailable));
    scene.keep().await;
    sleep(50 * MS).await;
    assert!(scene.is_held().await);
    let start = Instant::now();
    scene.elsewhere().acquire().await.unwrap().release().await.unwrap();
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_goes_on_in_the_background() {
    let scene = Scene::new();
    scene.keep().await;
    scene.faults.next(Op::Release, Fault::LostRequest);
    scene.freed().await;
    assert!(scene.calls().1 >= 2);
}

#[tokio::test(start_paused = true)]
async fn one_subscription_serves_a_whole_turn() {
    let scene = Scene::new();
    for _ in 0..20 {
        scene.keep().await;
        sleep(2 * MS).await;
    }
    assert_eq!((scene.calls(), scene.faults.calls(Op::Subscribe)), ((1, 0), 1));
    scene.freed().await;
    yield_now().await;
    assert_eq!(scene.store.names_in_use(), 0, "it ends with the hold");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_the_lock_kept() {
    let scene = Scene::new();
    scene.keep().await;
    for _ in 0..3 {
        // Dropped before it is polled at all, or when it has entered.
        drop(scene.lock().acquire());
        let entered = timeout(MS, scene.lock().acquire()).await.unwrap().unwrap();
        drop(entered);
    }
    assert_eq!(scene.calls(), (1, 0));
}

#[tokio::test]
async fn it_has_a_range_and_conditions() {
    let refused = |builder: LocksBuilder, expected: &str| {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, LockError::InvalidOption { option: "linger", .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let builder = || Locks::builder(MemoryBackend::new());
    assert!(builder().linger(100 * MS).build().is_ok());
    refused(builder().linger(101 * MS), "0 to 100 ms");
    refused(builder().hand_over(Duration::ZERO).linger(MS), "`hand_over` is zero");
}

/// The tasks of the client that kept the lock are closer, and would always be first.
#[tokio::test(start_paused = true)]
async fn a_lock_that_another_client_wants_is_left_to_it_for_a_moment() {
    let scene = Scene::new();
    scene.keep().await;
    sleep(MS).await;
    let other = scene.elsewhere();
    let waiting = tokio::spawn(async move { other.acquire().await.map(drop) });
    // It is released, and nobody has acquired it yet.
    while scene.calls().1 == 0 {
        yield_now().await;
    }
    let start = Instant::now();
    drop(scene.lock().acquire().await.unwrap());
    let waited = start.elapsed();
    assert!((MS..=5 * MS).contains(&waited), "{waited:?}");
    waiting.await.unwrap().unwrap();
}
