//! C32: the opening of a latch wakes its subscribers.

use crate::{
    Fixture,
    conformance::{
        latch::{Latch, latch},
        scene::{Scene, nothing_is_left, soon},
        wakeups::{drain, drops_a_wait},
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// Waits as the core does.
async fn waits(latch: Latch<'_>) {
    let mut wakeups = latch.subscribes().await;
    while latch.left().await > 0 {
        wakeups.woken().await;
    }
}

/// C32: the last count wakes all subscribers, several at one client and those at others.
pub async fn the_last_count_wakes_the_subscribers_of_every_client<F: Fixture>(fixture: &F) {
    let (scene, third) = (Scene::of(fixture).await, Scene::of(fixture).await);
    let ([one, two], [three, _]) = (latch(&scene), latch(&third));
    one.sets(2).await;
    let mut subscriptions = Vec::new();
    for latch in [one, one, two, two, three.under(&scene.name)] {
        subscriptions.push(latch.subscribes().await);
    }
    two.counts_down().await;
    for wakeups in &mut subscriptions {
        drain(fixture, wakeups).await;
    }
    one.counts_down().await;
    for wakeups in &mut subscriptions {
        soon(wakeups.woken()).await;
    }
}

/// C32: opening a latch wakes its subscribers, whatever its count.
pub async fn the_opening_of_a_latch_wakes<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(9).await;
    let mut subscriptions = [one.subscribes().await, two.subscribes().await];
    for wakeups in &mut subscriptions {
        drain(fixture, wakeups).await;
    }
    one.opens().await;
    for wakeups in &mut subscriptions {
        soon(wakeups.woken()).await;
    }
}

/// C32: the last count wakes a sleeping subscriber.
pub async fn the_last_count_wakes_one_that_sleeps<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(1).await;
    let counted = async {
        fixture.pass(fixture.short_lease() / 4).await;
        one.counts_down().await;
    };
    soon(async { tokio::join!(waits(two), counted) }).await;
}

/// C32: every opening wakes, not only the first, including subscribers from before the count was
/// set.
pub async fn every_opening_wakes<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let mut wakeups = two.subscribes().await;
    for opens in [false, true, false] {
        one.sets(1).await;
        drain(fixture, &mut wakeups).await;
        if opens {
            one.opens().await
        } else {
            one.counts_down().await
        };
        soon(wakeups.woken()).await;
    }
}

/// C32: an opening that comes between two waits is kept.
pub async fn an_opening_between_two_waits_is_kept<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let mut wakeups = two.subscribes().await;
    one.sets(1).await;
    drain(fixture, &mut wakeups).await;
    one.counts_down().await;
    fixture.pass(fixture.short_lease() / 10).await;
    soon(wakeups.woken()).await;
}

/// C32: a wait that is dropped before it completes does not consume an opening, however often it
/// was polled.
pub async fn a_dropped_wait_takes_no_opening_with_it<F: Fixture>(fixture: &F) {
    for polls in 0..4 {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        let mut wakeups = two.subscribes().await;
        one.sets(1).await;
        let counted = async {
            one.counts_down().await;
        };
        if drops_a_wait(fixture, &mut wakeups, polls, counted).await {
            return;
        }
        soon(wakeups.woken()).await;
    }
}

/// C32: dropping a subscription does not take the wake-ups of the others.
pub async fn those_who_leave_a_latch_do_not_silence_the_others<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(1).await;
    let first = two.subscribes().await;
    let mut stays = two.subscribes().await;
    drop(first);
    drop(two.subscribes().await);
    drain(fixture, &mut stays).await;
    one.counts_down().await;
    soon(stays.woken()).await;
}

/// C32: a client that unsubscribes and subscribes again is woken again.
pub async fn a_subscription_to_a_latch_after_another_is_in_effect<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    for _ in 0..10 {
        drop(two.subscribes().await);
        one.sets(1).await;
        let mut wakeups = two.subscribes().await;
        one.counts_down().await;
        soon(wakeups.woken()).await;
    }
}

/// C32: a client that subscribes and then reads the count misses no opening, whenever it comes.
pub async fn who_subscribes_and_then_looks_misses_no_opening<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    for round in 0..10 {
        one.sets(1).await;
        let counted = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            one.counts_down().await;
        };
        soon(async { tokio::join!(waits(two), waits(one), counted) }).await;
    }
}

/// C32: nothing is left of a dropped subscription, whether the latch was ever closed or not.
pub async fn nothing_is_left_of_a_dropped_subscription_to_a_latch<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    drop(two.subscribes().await);
    nothing_is_left(fixture, &scene.name).await;
    one.sets(1).await;
    let (mut woken, unheard) = (two.subscribes().await, one.subscribes().await);
    one.counts_down().await;
    soon(woken.woken()).await;
    drop((woken, unheard));
    nothing_is_left(fixture, &scene.name).await;
}

/// C32 and C17: a subscription that is dropped before it takes effect leaves nothing behind and
/// does not disturb the next one.
pub async fn a_dropped_subscribe_leaves_no_subscription_to_a_latch<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        let ended = poll_times(polls, two.begins_to_subscribe()).await;
        nothing_is_left(fixture, &scene.name).await;
        one.sets(1).await;
        let mut wakeups = two.subscribes().await;
        one.counts_down().await;
        soon(wakeups.woken()).await;
        drop(wakeups);
        nothing_is_left(fixture, &scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}
