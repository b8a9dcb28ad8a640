//! C38: a subscriber to the demand for a lock is woken by refused requests.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{Awaited, Backend, SubscribeRequest},
};

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, nothing_is_left, soon, stranger, unique_name},
        wakeups::{drain, drops_a_wait},
    },
    poll_times,
};

/// C38: a refusal wakes every subscriber to the demand, at the same client and at another. So does
/// a refusal in fair mode.
pub async fn a_refusal_wakes_those_who_await_the_demand<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    let mut here = scene.one(&hold).awaits_demand().await;
    let mut there = scene.two(&hold).awaits_demand().await;
    let modes = [Mode::Exclusive, Mode::Fair];
    for mode in modes.into_iter().filter(|mode| scene.one.capabilities().supports(*mode)) {
        drain(fixture, &mut here).await;
        drain(fixture, &mut there).await;
        scene.two(&stranger()).in_mode(mode).is_refused().await;
        soon(here.woken()).await;
        soon(there.woken()).await;
    }
}

/// C38: every refusal wakes, not only the first, even from one hold to the next.
pub async fn every_refusal_wakes<F: Fixture>(fixture: &F) {
    let (scene, other) = (Scene::of(fixture).await, stranger());
    let mut demand = scene.one(&other).awaits_demand().await;
    for _ in 0..2 {
        let hold = stranger();
        scene.one(&hold).enters().await;
        for _ in 0..2 {
            drain(fixture, &mut demand).await;
            scene.two(&other).is_refused().await;
            soon(demand.woken()).await;
        }
        scene.one(&hold).releases().await;
    }
}

/// C38: a refusal that comes between two waits is not lost.
pub async fn a_refusal_between_two_waits_is_heard_of<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let mut demand = scene.one(&holds[0]).awaits_demand().await;
    drain(fixture, &mut demand).await;
    scene.two(&holds[1]).is_refused().await;
    fixture.pass(fixture.short_lease() / 4).await;
    soon(demand.woken()).await;
}

/// C38: a wait that is dropped before it completes does not consume a wake-up.
pub async fn a_dropped_wait_takes_no_demand_with_it<F: Fixture>(fixture: &F) {
    for polls in 0..4 {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        scene.one(&holds[0]).enters().await;
        let mut demand = scene.one(&holds[0]).awaits_demand().await;
        let refused = async { _ = scene.two(&holds[1]).is_refused().await };
        if drops_a_wait(fixture, &mut demand, polls, refused).await {
            return;
        }
        soon(demand.woken()).await;
    }
}

/// C38: a waiter that was refused before the subscription is reported at once.
pub async fn one_who_waits_already_is_heard_of_at_once<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).is_refused().await;
    let _waits = scene.two(&holds[1]).subscribes().await;
    let mut demand = scene.one(&holds[0]).awaits_demand().await;
    soon(demand.woken()).await;
}

/// C38: subscribers to the demand and subscribers to the end of holds are each woken.
pub async fn demand_and_ends_are_both_heard_of<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let mut demand = scene.one(&holds[0]).awaits_demand().await;
    let mut ends = scene.one(&holds[1]).subscribes().await;
    drain(fixture, &mut demand).await;
    drain(fixture, &mut ends).await;
    scene.two(&holds[1]).is_refused().await;
    soon(demand.woken()).await;
    drain(fixture, &mut ends).await;
    scene.one(&holds[0]).releases().await;
    soon(ends.woken()).await;
}

/// C38: one client is woken by the demand for each of its locks.
pub async fn the_demand_for_every_name_is_heard_of<F: Fixture>(fixture: &F) {
    let (scene, other) = (Scene::of(fixture).await, stranger());
    let names = ["", ":wanted", ":a", ":A"].map(unique_name);
    let mut demands = Vec::new();
    for name in &names {
        let holder = stranger();
        scene.one(&holder).under(name).enters().await;
        demands.push(scene.one(&holder).under(name).awaits_demand().await);
    }
    for (name, demand) in names.iter().zip(&mut demands) {
        drain(fixture, demand).await;
        scene.two(&other).under(name).is_refused().await;
        soon(demand.woken()).await;
    }
}

/// C38: dropping a subscription to the demand does not silence the others.
pub async fn those_who_leave_do_not_silence_the_demand<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let first = scene.one(&holds[0]).awaits_demand().await;
    let mut stays = scene.one(&holds[0]).awaits_demand().await;
    drop(first);
    drop(scene.one(&holds[1]).subscribes().await);
    drain(fixture, &mut stays).await;
    scene.two(&holds[1]).is_refused().await;
    soon(stays.woken()).await;
}

/// C38: demand does not affect the hold, however many requests and subscribers there are.
pub async fn the_demand_changes_nothing_of_the_hold<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let token = scene.one(&hold).enters().await;
    scene.one(&hold).grows_to(2, LASTING).await;
    let mut demand = scene.one(&hold).awaits_demand().await;
    for _ in 0..3 {
        let other = stranger();
        scene.two(&other).is_refused().await;
        soon(demand.woken()).await;
        scene.two(&other).cannot_release().await;
    }
    let (count, remaining) = scene.two(&hold).holds().await;
    assert!(count == 2 && remaining > LASTING / 2 && remaining <= LASTING, "{count} {remaining:?}");
    assert_eq!(scene.one(&hold).grows_to(2, LASTING).await, token);
    scene.one(&hold).renews(LASTING).await;
    scene.one(&hold).releases().await;
    drop(demand);
    nothing_is_left(fixture, &scene.name).await;
}

/// C38: a subscription to the demand in another mode than exclusive is refused.
pub async fn the_demand_in_other_modes_is_refused<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let modes = [Mode::Fair, Mode::Read, Mode::Write, Mode::permits(1, 1)];
    for mode in modes.into_iter().filter(|mode| scene.one.capabilities().supports(*mode)) {
        let request = SubscribeRequest::new(scene.name.clone(), hold.clone()).mode(mode);
        let answer = soon(scene.one.subscribe(&request.awaited(Awaited::Demand))).await;
        let error = answer.expect_err("this mode has no demand");
        assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{mode}: {error}");
    }
    nothing_is_left(fixture, &scene.name).await;
}

/// C17: a subscription to the demand that is dropped before it takes effect leaves nothing behind.
pub async fn a_dropped_subscribe_to_the_demand_leaves_none<F: Fixture>(fixture: &F) {
    const POLLS: usize = 8;
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let request = SubscribeRequest::new(scene.name.clone(), holds[0].clone());
        let request = request.awaited(Awaited::Demand);
        let answer = poll_times(polls, scene.one.subscribe(&request)).await.map(drop);
        nothing_is_left(fixture, &scene.name).await;
        scene.one(&holds[0]).enters().await;
        let mut demand = scene.one(&holds[0]).awaits_demand().await;
        drain(fixture, &mut demand).await;
        scene.two(&holds[1]).is_refused().await;
        soon(demand.woken()).await;
        drop(demand);
        scene.one(&holds[0]).releases().await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}
