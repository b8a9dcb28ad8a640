//! A release of a fair lock that lets the next waiter in: what the waiter believes, and what is
//! left when the message comes late, or not at all.

use std::{pin::pin, time::Duration};

use lockcore::{
    Lock, LockError, LockGuard, LockName, Locks, LossReason, Mode, Owner,
    backend::{AcquireRequest, Backend, HoldId},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faults, Faulty, Op};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::clients::{SECOND, assert_all_free};

const MILLISECOND: Duration = Duration::from_millis(1);

/// How long places are kept.
const KEPT: Duration = Duration::from_secs(3);

/// A store and two clients, the first with faults.
struct Scene {
    store: MemoryBackend,
    faults: Faults,
    here: Locks,
    there: Locks,
}

type Waiting = JoinHandle<Result<LockGuard, LockError>>;

impl Scene {
    fn new() -> Self {
        let store = MemoryBackend::new();
        let backend = Faulty::new(store.clone());
        let faults = backend.faults();
        let here = Locks::builder(backend).queue_timeout(KEPT).build().unwrap();
        let there = Locks::builder(store.clone()).queue_timeout(KEPT).build().unwrap();
        Self { store, faults, here, there }
    }

    fn here(&self) -> Lock {
        self.here.fair_lock("a")
    }

    fn there(&self) -> Lock {
        self.there.fair_lock("a")
    }

    /// The other client holds the lock, and this one waits: it has asked twice, since the second
    /// request is made once it listens.
    async fn waits(&self, lock: Lock) -> (LockGuard, Waiting) {
        let held = self.there().acquire().await.unwrap();
        let asked = self.faults.calls(Op::Acquire);
        let waiting = tokio::spawn(lock.acquire());
        self.faults.reached(Op::Acquire, asked + 2).await;
        sleep(MILLISECOND).await;
        (held, waiting)
    }

    fn asked(&self) -> usize {
        self.faults.calls(Op::Acquire)
    }
}

/// The guard, which must come at once.
async fn at_once(waiting: Waiting) -> LockGuard {
    timeout(MILLISECOND, waiting).await.expect("it is let in at once").unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_next_one_enters_without_asking_again() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    let (asked, before) = (scene.asked(), held.token());
    held.release().await.unwrap();
    let guard = at_once(waiting).await;
    assert_eq!(scene.asked(), asked, "it was told");
    assert!(guard.token() > before, "{} after {before}", guard.token());
    assert!(guard.remaining() < KEPT, "its place was kept for so long: {:?}", guard.remaining());
    assert_eq!(scene.there().state().await.unwrap().holders()[0].owner(), guard.wire_owner());
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

/// The store keeps a granted hold only for the rest of the place.
#[tokio::test(start_paused = true)]
async fn the_hold_is_brought_to_its_lease_at_once() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    held.release().await.unwrap();
    let guard = at_once(waiting).await;
    sleep(SECOND / 4).await;
    assert_eq!(scene.faults.calls(Op::Renew), 1);
    assert!(guard.remaining() > 29 * SECOND, "{:?}", guard.remaining());
    sleep(60 * SECOND).await;
    assert!(guard.is_held(), "it is renewed like any other");
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_message_costs_no_more_than_the_next_look() {
    let scene = Scene::new();
    scene.faults.every(Op::Woken, Fault::LostRequest);
    let (held, waiting) = scene.waits(scene.here()).await;
    let asked = scene.asked();
    held.release().await.unwrap();
    let start = Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() <= KEPT / 3, "{:?}", start.elapsed());
    assert_eq!(scene.asked(), asked + 1, "it finds its own hold");
    assert!(guard.remaining() > KEPT, "it was asked for as usual: {:?}", guard.remaining());
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

/// The store has forgotten the grant, as in a failover: another one is inside, and the waiter is back
/// in its place. There, it would be granted the lock once more.
#[tokio::test(start_paused = true)]
async fn one_whose_grant_was_forgotten_leaves_its_place() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    held.release().await.unwrap();
    let guard = at_once(waiting).await;
    let (name, lease) = (LockName::new("a").unwrap(), 600 * SECOND);
    let asks =
        |id: &str| AcquireRequest::new(name.clone(), HoldId::unique(id), lease).mode(Mode::Fair);
    assert!(scene.store.force_release(&name).await.unwrap());
    let other = asks("other:1");
    scene.store.acquire(&other).await.unwrap().token().expect("the lock is free");
    let place = asks(guard.wire_owner()).queue(Some(lease)).direct_grant(Some(7));
    assert!(scene.store.acquire(&place).await.unwrap().token().is_none());

    let released = scene.faults.calls(Op::Release);
    assert_eq!(guard.lost().await.reason(), LossReason::Gone);
    scene.faults.reached(Op::Release, released + 1).await;
    sleep(MILLISECOND).await;
    scene.store.release(&other.release()).await.unwrap();
    assert_all_free(&scene.store).await;
    drop(guard);
    sleep(SECOND).await;
    assert_eq!(scene.faults.calls(Op::Release), released + 1, "it was undone already");
}

/// The waiter must not believe in a hold that the store no longer has: nobody polls it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_message_that_comes_too_late_lets_nobody_in() {
    let scene = Scene::new();
    let held = scene.there().acquire().await.unwrap();
    let mut waiting = pin!(scene.here().acquire());
    assert!(timeout(SECOND / 2, waiting.as_mut()).await.is_err(), "it waits");
    assert_eq!(scene.asked(), 2);
    scene.faults.every(Op::Woken, Fault::Delay(SECOND / 2));
    held.release().await.unwrap();
    assert!(timeout(SECOND / 4, waiting.as_mut()).await.is_err(), "the message is on its way");
    sleep(KEPT + SECOND).await;
    let other = scene.there().acquire().await.unwrap();
    assert!(timeout(SECOND / 2, waiting.as_mut()).await.is_err(), "two are inside");
    assert!(scene.asked() > 2 && other.is_held(), "it has asked");
    scene.faults.heal();
    other.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_dropped_before_it_hears_passes_the_lock_on() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    let next = tokio::spawn(scene.there().acquire());
    sleep(MILLISECOND).await;
    scene.faults.every(Op::Woken, Fault::Delay(SECOND));
    held.release().await.unwrap();
    sleep(MILLISECOND).await;
    waiting.abort();
    at_once(next).await.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_time_is_up_before_it_hears_passes_the_lock_on() {
    let scene = Scene::new();
    let held = scene.there().acquire().await.unwrap();
    let lock = scene.here();
    let waiting = tokio::spawn(async move { lock.acquire_timeout(KEPT / 4).await });
    scene.faults.reached(Op::Acquire, 2).await;
    scene.faults.every(Op::Woken, Fault::Delay(2 * SECOND));
    let next = tokio::spawn(scene.there().acquire());
    sleep(SECOND / 2).await;
    held.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    at_once(next).await.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

/// Its request is on its way when the message comes.
#[tokio::test(start_paused = true)]
async fn one_that_asks_meanwhile_has_one_hold() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    let asked = scene.asked();
    scene.faults.every(Op::Acquire, Fault::DelayReply(SECOND / 2));
    scene.faults.reached(Op::Acquire, asked + 1).await;
    held.release().await.unwrap();
    let start = Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() <= SECOND / 2 + MILLISECOND, "{:?}", start.elapsed());
    assert_eq!((scene.asked(), guard.hold_count()), (asked + 1, 1));
    assert_eq!(scene.there().state().await.unwrap().holders()[0].hold_count(), 1);
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_before_it_hears_frees_the_lock() {
    let scene = Scene::new();
    let (held, waiting) = scene.waits(scene.here()).await;
    scene.faults.every(Op::Woken, Fault::Delay(SECOND));
    held.release().await.unwrap();
    sleep(MILLISECOND).await;
    scene.here.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(LockError::Closed { .. })));
    scene.there().try_acquire().await.unwrap().expect("it was given back").release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn guards_of_one_owner_share_the_hold_that_it_was_told_of() {
    let scene = Scene::new();
    let owner = Owner::new();
    let (held, waiting) = scene.waits(scene.here().owned_by(&owner)).await;
    let another = tokio::spawn(scene.here().owned_by(&owner).acquire());
    sleep(MILLISECOND).await;
    held.release().await.unwrap();
    let (one, other) = (waiting.await.unwrap().unwrap(), another.await.unwrap().unwrap());
    assert_eq!((one.token(), one.hold_count()), (other.token(), 2));
    one.release().await.unwrap();
    other.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

/// The name is stored as the owner, and a fixed lease counts from the request.
#[tokio::test(start_paused = true)]
async fn named_owners_and_fixed_leases_ask_when_they_are_woken() {
    let scene = Scene::new();
    let owner = Owner::named("job-17");
    for lock in [scene.here().owned_by(&owner), scene.here().lease(60 * SECOND)] {
        let (held, waiting) = scene.waits(lock).await;
        let asked = scene.asked();
        held.release().await.unwrap();
        let guard = at_once(waiting).await;
        assert_eq!(scene.asked(), asked + 1);
        assert!(guard.remaining() > 29 * SECOND, "{:?}", guard.remaining());
        guard.release().await.unwrap();
    }
    assert_all_free(&scene.store).await;
}

/// A direct grant lasts as long as the place, and a holder that dies must not block others for
/// longer than its lease.
#[tokio::test(start_paused = true)]
async fn who_keeps_its_place_for_longer_than_its_lease_asks_when_it_is_woken() {
    let scene = Scene::new();
    let backend = Faulty::new(scene.store.clone());
    let faults = backend.faults();
    let brief = Locks::builder(backend).queue_timeout(KEPT).lease(KEPT / 2).build().unwrap();
    let held = scene.there().acquire().await.unwrap();
    let waiting = tokio::spawn(brief.fair_lock("a").acquire());
    faults.reached(Op::Acquire, 2).await;
    sleep(MILLISECOND).await;
    held.release().await.unwrap();
    let guard = at_once(waiting).await;
    assert_eq!(faults.calls(Op::Acquire), 3);
    assert!(guard.remaining() <= KEPT / 2, "{:?}", guard.remaining());
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

#[tokio::test(start_paused = true)]
async fn the_order_of_the_queue_is_kept_by_those_who_are_told_and_those_who_ask() {
    let scene = Scene::new();
    let held = scene.there().acquire().await.unwrap();
    let (sender, mut entered) = tokio::sync::mpsc::unbounded_channel();
    for turn in 0..6 {
        let lock = match turn % 3 {
            0 => scene.here(),
            1 => scene.there(),
            _ => scene.here().lease(60 * SECOND),
        };
        let sender = sender.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send((turn, guard.token())).unwrap();
            guard.release().await.unwrap();
        });
        sleep(MILLISECOND).await;
    }
    held.release().await.unwrap();
    let mut last = None;
    for expected in 0..6 {
        let (turn, token) = entered.recv().await.unwrap();
        assert!(turn == expected && Some(token) > last, "{turn} with {token} after {last:?}");
        last = Some(token);
    }
    assert_all_free(&scene.store).await;
}

/// The rest of the place would be over before the hold is renewed, if the server is far away.
#[tokio::test(start_paused = true)]
async fn a_hold_of_which_little_is_left_is_asked_for() {
    let scene = Scene::new();
    let held = scene.there().acquire().await.unwrap();
    let mut waiting = pin!(scene.here().acquire());
    assert!(timeout(SECOND / 2, waiting.as_mut()).await.is_err(), "it waits");
    scene.faults.every(Op::Woken, Fault::Delay(SECOND / 2));
    held.release().await.unwrap();
    assert!(timeout(SECOND / 4, waiting.as_mut()).await.is_err(), "the message is on its way");
    // Nobody polls it meanwhile.
    sleep(KEPT - SECOND).await;
    let guard = waiting.await.unwrap();
    assert_eq!(scene.asked(), 3);
    assert!(guard.remaining() > KEPT, "it has its whole lease: {:?}", guard.remaining());
    guard.release().await.unwrap();
    assert_all_free(&scene.store).await;
}

/// Places are kept for the shortest possible time.
#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_before_a_short_place_is_over() {
    let store = MemoryBackend::new();
    let build = || Locks::builder(store.clone()).queue_timeout(30 * MILLISECOND).build().unwrap();
    let (here, there) = (build(), build());
    let held = there.fair_lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(here.fair_lock("a").acquire());
    sleep(SECOND).await;
    held.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    sleep(SECOND).await;
    assert!(guard.is_held() && guard.remaining() > 15 * SECOND, "{:?}", guard.remaining());
    guard.release().await.unwrap();
    assert_all_free(&store).await;
}
