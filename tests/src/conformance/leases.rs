//! C3: a hold ends by itself when its lease has passed, and not before.

use std::time::Duration;

use tokio::time::Instant;

use lockcore::backend::Backend;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, state, stranger},
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// C3: when the lease has passed, the lock is free.
pub async fn a_hold_ends_with_its_lease<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() + MILLISECOND).await;
    scene.two(&holds[1]).enters().await;
}

/// C3: before the lease has passed, the lock is not free.
pub async fn a_hold_does_not_end_before_its_lease<F: Fixture>(fixture: &F) {
    let (scene, hold, lease) = (Scene::of(fixture).await, stranger(), fixture.short_lease());
    let sent = Instant::now();
    scene.one(&hold).enters_for(lease).await;
    while state(&scene.two, &scene.name).await.is_held() {
        assert!(sent.elapsed() < lease * 20, "the hold does not end");
        fixture.pass(lease / 40).await;
    }
    let lasted = sent.elapsed();
    assert!(lasted + MILLISECOND >= lease, "a lease of {lease:?} ended after {lasted:?}");
}

/// C3: a renewed hold does not end before the renewed lease, and ends with it.
pub async fn a_renewed_hold_lasts_as_long_as_its_renewed_lease<F: Fixture>(fixture: &F) {
    let (scene, hold, lease) = (Scene::of(fixture).await, stranger(), fixture.short_lease());
    scene.one(&hold).enters_for(lease * 4).await;
    fixture.pass(lease / 2).await;
    let sent = Instant::now();
    scene.one(&hold).renews(lease * 5).await;
    while state(&scene.two, &scene.name).await.is_held() {
        assert!(sent.elapsed() < lease * 50, "the hold does not end");
        fixture.pass(lease / 10).await;
    }
    let lasted = sent.elapsed();
    assert!(lasted + MILLISECOND >= lease * 5, "a lease of {:?} ended after {lasted:?}", lease * 5);
}

/// C3: each grant sets its own end, whatever came before under the same name.
pub async fn every_hold_of_a_name_has_an_end_of_its_own<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(LASTING).await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).enters_for(fixture.short_lease()).await;
    let (_, remaining) = scene.two(&holds[1]).holds().await;
    assert!(
        remaining <= fixture.short_lease(),
        "{remaining:?} is left of the released hold's lease"
    );
    fixture.pass(fixture.short_lease() + MILLISECOND).await;
    scene.one(&holds[2]).enters_for(LASTING).await;
    let (_, remaining) = scene.one(&holds[2]).holds().await;
    assert!(remaining > LASTING / 2, "{remaining:?} is left of the expired hold's lease");
}

/// C3: the shortest lease ends too, and is not taken for an absent one.
pub async fn the_shortest_lease_ends<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let lease = scene.one.limits().shortest_lease;
    scene.one(&holds[0]).enters_for(lease).await;
    fixture.pass(lease + 4 * MILLISECOND).await;
    scene.two(&holds[1]).enters().await;
}

/// C3: the longest lease is kept in full.
pub async fn a_lease_of_a_year_is_kept_whole<F: Fixture>(fixture: &F) {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters_for(365 * DAY).await;
    let (_, remaining) = scene.one(&hold).holds().await;
    assert!(remaining > 364 * DAY && remaining <= 365 * DAY, "{remaining:?}");
    scene.one(&hold).releases().await;
}

/// C3: an expired hold can be neither renewed nor released, not even if it has no successor.
pub async fn an_ended_hold_cannot_be_revived<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let holder = scene.one(&hold);
    holder.enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() + MILLISECOND).await;
    holder.cannot_renew().await;
    holder.cannot_grow().await;
    holder.cannot_release().await;
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the hold was revived");
}
