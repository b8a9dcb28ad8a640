//! C7 and C11: hold counts that grow and shrink.

use lockcore::backend::AcquireOutcome;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, named, state, stranger},
};

/// C7: a released hold cannot grow, and is not granted again.
pub async fn a_released_hold_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    scene.one(&hold).releases().await;
    scene.one(&hold).cannot_grow().await;
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the growth was granted");
}

/// C7: an expired hold cannot grow.
pub async fn an_expired_hold_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    scene.one(&holds[0]).cannot_grow().await;
    scene.two(&holds[1]).enters().await;
}

/// C7: a hold that was released by force cannot grow.
pub async fn a_forced_hold_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    assert!(force(&scene.two, &scene.name).await);
    scene.one(&hold).cannot_grow().await;
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the growth was granted");
}

/// C7: a hold that never existed cannot grow.
pub async fn a_hold_that_never_was_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).cannot_grow().await;
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the growth was granted");
}

/// C7: if another owner holds the lock by now, the growth is refused like any other request.
pub async fn a_hold_that_was_succeeded_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
    let outcome = scene.one(&holds[0]).asks_for_count(2, LASTING).await;
    assert!(matches!(outcome, AcquireOutcome::Held { remaining: Some(_) }), "{outcome:?}");
    assert_eq!(scene.two(&holds[1]).holds().await.0, 1);
}

/// C7: if the same named owner has a newer hold, the growth neither joins nor takes over that hold.
pub async fn a_hold_that_was_taken_over_cannot_grow<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17")]);
    scene.one(&holds[0]).enters().await;
    let token = scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_grow().await;
    assert_eq!(scene.two(&holds[1]).holds().await.0, 1);
    assert_eq!(scene.two(&holds[1]).enters().await, token, "the newer hold was taken over");
}

/// C7: the growth of a live hold extends its lease to the requested one.
pub async fn a_live_hold_grows_in_count_and_lease<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let token = scene.one(&hold).enters_for(LASTING / 10).await;
    assert_eq!(scene.one(&hold).grows_to(2, LASTING).await, token, "the growth is the same hold");
    let (count, remaining) = scene.one(&hold).holds().await;
    assert_eq!(count, 2);
    assert!(remaining > LASTING / 2, "{remaining:?} is left, {LASTING:?} was asked for");
}

/// C11: a partial release sets the hold count, and the lock stays held.
pub async fn a_partial_release_keeps_the_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let holder = scene.one(&holds[0]);
    let token = holder.enters().await;
    holder.grows_to(3, LASTING).await;
    holder.lowers_to(1).await;
    assert_eq!(holder.holds().await.0, 1);
    scene.two(&holds[1]).is_refused().await;
    assert_eq!(holder.enters().await, token, "it is still the same hold");
    holder.releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C11: a partial release neither shortens the lease nor extends it.
pub async fn a_partial_release_keeps_the_lease<F: Fixture>(fixture: &F) {
    let (scene, hold, lease) = (Scene::of(fixture).await, stranger(), LASTING / 10);
    let holder = scene.one(&hold);
    holder.enters_for(lease).await;
    holder.grows_to(2, lease).await;
    holder.lowers_to(1).await;
    let (_, remaining) = holder.holds().await;
    assert!(remaining > lease / 2 && remaining <= lease, "{remaining:?} is left of {lease:?}");
}

/// C11: a partial release without a hold says so, and creates no hold.
pub async fn a_partial_release_of_nothing_makes_no_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let not_held = lockcore::backend::ReleaseOutcome::NotHeld;
    assert_eq!(scene.one(&holds[0]).asks_to_release(1).await, not_held);
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the release made a hold");
    scene.two(&holds[1]).enters().await;
    assert_eq!(scene.one(&holds[0]).asks_to_release(1).await, not_held);
    scene.two(&holds[1]).holds().await;
}
