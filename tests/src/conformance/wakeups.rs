//! C12: a subscriber is woken by every end of a hold, and by every grant that ends earlier than was
//! announced.

use std::{future::Future, pin::pin};

use lockcore::backend::Wakeups;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Rival, Scene, force, named, soon, stranger},
    poll_times,
};

/// Takes all pending wake-ups, of any kind: waking too often is allowed.
pub(crate) async fn drain<F: Fixture>(fixture: &F, wakeups: &mut Box<dyn Wakeups>) {
    const AT_MOST: usize = 20;
    for _ in 0..AT_MOST {
        tokio::select! {
            biased;
            _ = wakeups.woken() => {}
            () = fixture.pass(fixture.short_lease() / 10) => return,
        }
    }
}

/// Waits, and drops the wait after `polls` polls since `event`. Returns `true` if it had completed
/// by then.
pub(super) async fn drops_a_wait<F: Fixture>(
    fixture: &F,
    wakeups: &mut Box<dyn Wakeups>,
    polls: usize,
    event: impl Future<Output = ()>,
) -> bool {
    drain(fixture, wakeups).await;
    let mut dropped = pin!(wakeups.woken());
    let too_early = tokio::select! {
        biased;
        _ = dropped.as_mut() => true,
        () = fixture.pass(fixture.short_lease() / 10) => false,
    };
    event.await;
    !too_early && poll_times(polls, dropped).await.is_some()
}

/// Sleeps until it is woken and the lock is free.
async fn enters_when_woken(contender: Rival<'_>, mut wakeups: Box<dyn Wakeups>) {
    while contender.asks().await.token().is_none() {
        wakeups.woken().await;
    }
}

/// C12: a release wakes all subscribers, at the same client and at another.
pub async fn a_release_wakes_the_subscribers_of_every_client<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let mut here = scene.one(&holds[1]).subscribes().await;
    let mut there = scene.two(&holds[2]).subscribes().await;
    scene.one(&holds[0]).releases().await;
    soon(here.woken()).await;
    soon(there.woken()).await;
}

/// C12: a sleeping waiter is woken by the release, not by the end of the lease.
pub async fn a_release_wakes_one_that_sleeps<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let wakeups = scene.two(&holds[1]).subscribes().await;
    let released = async {
        fixture.pass(fixture.short_lease() / 2).await;
        scene.one(&holds[0]).releases().await;
    };
    soon(async { tokio::join!(enters_when_woken(scene.two(&holds[1]), wakeups), released) }).await;
}

/// C12: a forced release wakes as well.
pub async fn a_forced_release_wakes<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    drain(fixture, &mut wakeups).await;
    assert!(force(&scene.one, &scene.name).await);
    soon(wakeups.woken()).await;
}

/// C12: every release wakes, not only the first.
pub async fn every_release_wakes<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    for _ in 0..3 {
        let hold = stranger();
        scene.one(&hold).enters().await;
        drain(fixture, &mut wakeups).await;
        scene.one(&hold).releases().await;
        soon(wakeups.woken()).await;
    }
}

/// C12: the full release of a nested hold wakes, whatever its count was.
pub async fn the_release_of_a_nested_hold_wakes<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    scene.one(&holds[0]).lowers_to(1).await;
    drain(fixture, &mut wakeups).await;
    scene.one(&holds[0]).releases().await;
    soon(wakeups.woken()).await;
}

/// C12: a wake-up that comes between two waits is kept.
pub async fn a_wakeup_between_two_waits_is_kept<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    scene.one(&holds[0]).enters().await;
    drain(fixture, &mut wakeups).await;
    scene.one(&holds[0]).releases().await;
    fixture.pass(fixture.short_lease() / 4).await;
    soon(wakeups.woken()).await;
}

/// C12: a wait that is dropped before it completes does not consume a wake-up, however often it was
/// polled.
pub async fn a_dropped_wait_takes_no_wakeup_with_it<F: Fixture>(fixture: &F) {
    for polls in 0..4 {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let mut wakeups = scene.two(&holds[1]).subscribes().await;
        scene.one(&holds[0]).enters().await;
        if drops_a_wait(fixture, &mut wakeups, polls, scene.one(&holds[0]).releases()).await {
            return;
        }
        soon(wakeups.woken()).await;
    }
}

/// C12: dropping a subscription does not take the wake-ups of the others.
pub async fn subscribers_that_leave_do_not_silence_those_who_stay<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger(), stranger()]);
    let leaving = scene.two(&holds[1]);
    let first = leaving.subscribes().await;
    let mut stays = scene.two(&holds[2]).subscribes().await;
    drop(first);
    drop(leaving.subscribes().await);
    scene.one(&holds[0]).enters().await;
    drain(fixture, &mut stays).await;
    scene.one(&holds[0]).releases().await;
    soon(stays.woken()).await;
}

/// C12: a client that unsubscribes and subscribes again is woken again.
pub async fn a_subscription_after_another_is_in_effect<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for _ in 0..10 {
        drop(scene.two(&holds[1]).subscribes().await);
        let hold = stranger();
        scene.one(&hold).enters().await;
        let mut wakeups = scene.two(&holds[1]).subscribes().await;
        scene.one(&hold).releases().await;
        soon(wakeups.woken()).await;
    }
}

/// C12 and C6: a takeover that ends before the hold that it replaces wakes waiters that were told
/// the later end.
pub async fn a_takeover_that_ends_earlier_wakes<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17"), stranger()]);
    scene.one(&holds[0]).enters().await;
    let waiter = scene.two(&holds[2]);
    let before = waiter.is_refused().await;
    let mut wakeups = waiter.subscribes().await;
    drain(fixture, &mut wakeups).await;
    scene.one(&holds[1]).enters_for(LASTING / 10).await;
    soon(wakeups.woken()).await;
    let after = waiter.is_refused().await;
    assert!(after < before / 2, "the waiter was told {before:?} before and {after:?} now");
}
