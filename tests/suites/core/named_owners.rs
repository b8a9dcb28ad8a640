//! A named owner that requests one name several times at once, in one client.

use lockcore::{Lock, Owner};
use lockcore_testkit::{Fault, Op};

use super::{MS, SECOND, Scene, within};

/// Requests both before either is granted, and asserts that they are one hold.
async fn are_one_hold(scene: &Scene, first: Lock, second: Lock, releases_first: bool) {
    scene.faults.every(Op::Acquire, Fault::DelayReply(10 * MS));
    let both = async { tokio::join!(first.acquire(), second.acquire()) };
    let (first, second) = within(SECOND, "both acquisitions", both).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.is_held() && second.is_held());
    let stranger = scene.other.lock("a");
    let (goes, stays) = if releases_first { (first, second) } else { (second, first) };
    goes.release().await.expect("it is held");
    assert!(stays.is_held(), "the other guard is there");
    let inside = stranger.try_acquire().await.unwrap();
    assert!(inside.is_none(), "a stranger is inside beside {stays:?}");
    stays.release().await.expect("it is held");
    drop(stranger.try_acquire().await.unwrap().expect("both guards are gone"));
    scene.faults.heal();
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_named_owner_that_asks_for_lock_and_fair_lock_at_once_has_one_hold() {
    for is_fair_first in [false, true] {
        for releases_first in [false, true] {
            let (scene, owner) = (Scene::new(), Owner::named("job-17"));
            let lock = scene.locks.lock("a").owned_by(&owner);
            let fair = scene.locks.fair_lock("a").owned_by(&owner);
            let (first, second) = if is_fair_first { (fair, lock) } else { (lock, fair) };
            are_one_hold(&scene, first, second, releases_first).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_owner_that_waits_for_lock_and_fair_lock_at_once_has_one_hold() {
    let (scene, owner) = (Scene::new(), Owner::named("job-17"));
    let held = scene.other.lock("a").acquire().await.unwrap();
    let lock = tokio::spawn(scene.locks.lock("a").owned_by(&owner).acquire());
    let fair = tokio::spawn(scene.locks.fair_lock("a").owned_by(&owner).acquire());
    tokio::time::sleep(SECOND).await;
    scene.faults.every(Op::Acquire, Fault::DelayReply(10 * MS));
    held.release().await.unwrap();
    let lock = within(SECOND, "the lock", lock).await.unwrap().unwrap();
    let fair = within(SECOND, "the fair lock", fair).await.unwrap().unwrap();
    assert_eq!((lock.token(), lock.hold_count()), (fair.token(), 2), "they are two holds");
    lock.release().await.unwrap();
    let inside = scene.other.lock("a").try_acquire().await.unwrap();
    assert!(inside.is_none(), "a stranger is inside beside {fair:?}");
    fair.release().await.unwrap();
    scene.nothing_is_left().await;
}
