//! Nested acquisitions that need more from the backend than the hold has.

use std::time::Duration;

use lockcore::{BackendErrorKind, Lock, LockError, LockGuard, LockName, Owner};
use lockcore_testkit::{Fault, Op, poll_times};
use tokio::{task::JoinHandle, time::Instant};

use super::{MS, SECOND, Scene, within};

/// The time that the growth of the lease takes to arrive.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Releases the last guard of a hold while the request of a nested acquisition for a longer lease
/// is on its way. `nested` spawns that acquisition.
async fn outrun<T: Send + 'static>(
    scene: &Scene,
    nested: impl AsyncFnOnce(Lock) -> JoinHandle<T>,
) -> JoinHandle<T> {
    let lock = scene.locks.lock("a").owned_by(&Owner::new());
    let outer: LockGuard = lock.clone().lease(10 * SECOND).acquire().await.unwrap();
    scene.faults.next(Op::Acquire, Fault::Delay(ON_ITS_WAY));
    let nested = nested(lock.lease(60 * SECOND)).await;
    within(SECOND, "the growth of the lease", scene.faults.reached(Op::Acquire, 2)).await;
    outer.release().await.unwrap();
    nested
}

#[tokio::test(start_paused = true)]
async fn a_nested_acquisition_that_meets_the_last_release_acquires_anew() {
    let scene = Scene::new();
    let nested = outrun(&scene, async |lock| tokio::spawn(lock.acquire())).await;
    let guard = within(SECOND, "the nested acquisition", nested).await.unwrap();
    let guard = guard.expect("nothing was lost: the outer guard was released");
    assert_eq!((guard.hold_count(), guard.is_held()), (1, true));
    assert!(guard.remaining() > 50 * SECOND, "it has the lease that was asked for");
    assert!(scene.other.lock("a").try_acquire().await.unwrap().is_none(), "it is really held");
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_try_that_meets_the_last_release_acquires_anew() {
    let scene = Scene::new();
    let nested = outrun(&scene, async |lock| tokio::spawn(lock.try_acquire())).await;
    let guard = within(SECOND, "the nested attempt", nested).await.unwrap();
    let guard = guard.expect("nothing was lost: the outer guard was released");
    let guard = guard.expect("the lock is free");
    assert_eq!((guard.hold_count(), guard.is_held()), (1, true));
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

/// As above, but another client has acquired the lock by the time the growth arrives.
#[tokio::test(start_paused = true)]
async fn a_nested_acquisition_that_meets_the_last_release_waits_for_the_next_holder() {
    let scene = Scene::new();
    let nested = outrun(&scene, async |lock| tokio::spawn(lock.acquire())).await;
    let next = scene.other.lock("a").try_acquire().await.unwrap().expect("it was released");
    tokio::time::sleep(ON_ITS_WAY + MS).await;
    assert!(!nested.is_finished(), "it has to wait: {:?}", nested.await);
    next.release().await.unwrap();
    let guard = within(SECOND, "the nested acquisition", nested).await.unwrap();
    let guard = guard.expect("nothing was lost: the outer guard was released");
    assert_eq!((guard.hold_count(), guard.is_held()), (1, true));
    guard.release().await.unwrap();
    scene.nothing_is_left().await;
}

/// `acquire` promises to retry for a while, and a nested acquisition is no exception.
#[tokio::test(start_paused = true)]
async fn a_nested_acquisition_bears_the_failures_that_an_outermost_one_bears() {
    for fault in [Fault::Refuse(BackendErrorKind::Connection), Fault::LostRequest, Fault::LostReply]
    {
        let scene = Scene::new();
        let lock = scene.locks.lock("a").owned_by(&Owner::new());
        let outer = lock.clone().lease(10 * SECOND).acquire().await.unwrap();
        scene.faults.next(Op::Acquire, fault);
        scene.faults.next(Op::Acquire, fault);
        let nested = lock.lease(60 * SECOND).acquire();
        let nested = within(5 * SECOND, "the nested acquisition", nested).await;
        let nested = nested.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!((nested.hold_count(), nested.token()), (2, outer.token()), "{fault:?}");
        nested.release().await.unwrap();
        outer.release().await.unwrap();
        scene.nothing_is_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_nested_acquisition_that_nobody_polls_holds_up_the_next_one_for_six_seconds_at_most() {
    let scene = Scene::new();
    let lock = scene.locks.lock("a").owned_by(&Owner::new());
    let outer = lock.clone().lease(10 * SECOND).acquire().await.unwrap();
    scene.faults.next(Op::Acquire, Fault::Delay(ON_ITS_WAY));
    let mut kept = Box::pin(lock.clone().lease(60 * SECOND).acquire());
    assert!(poll_times(1, kept.as_mut()).await.is_none());

    let start = Instant::now();
    let next = within(7 * SECOND, "the next one", lock.lease(60 * SECOND).try_acquire()).await;
    let Err(LockError::Backend(error)) = next else { panic!("{next:?}") };
    assert_eq!(error.kind(), BackendErrorKind::Timeout);
    assert_eq!(error.lock().map(LockName::as_str), Some("a"));
    assert!(start.elapsed() >= 5 * SECOND, "it may still be answered: {:?}", start.elapsed());
    drop(kept);
    outer.release().await.unwrap();
    scene.nothing_is_left().await;
}
