//! C13: the forced release, for operators.

use lockcore::backend::HoldId;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, named, state, stranger},
};

/// C13: a forced release frees the lock, whoever holds it, from any client.
pub async fn a_forced_release_frees_the_lock_whoever_holds_it<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let holds: [HoldId; 3] = [stranger(), named("job-17"), stranger()];
    for hold in &holds {
        scene.one(hold).enters().await;
        assert!(force(&scene.two, &scene.name).await, "the lock was held");
        assert!(!state(&scene.one, &scene.name).await.is_held(), "it still is");
    }
}

/// C13: a forced release frees a nested hold as a whole.
pub async fn a_forced_release_frees_a_nested_hold_as_a_whole<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    assert!(force(&scene.two, &scene.name).await);
    scene.two(&holds[1]).enters().await;
}

/// C13: a forced release of a free lock says that it was not held, and so does a second one.
pub async fn a_forced_release_of_a_free_lock_says_so<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    assert!(!force(&scene.one, &scene.name).await, "nobody has ever held it");
    scene.one(&hold).enters().await;
    assert!(force(&scene.one, &scene.name).await);
    assert!(!force(&scene.one, &scene.name).await, "it was free already");
}

/// C13: an expired hold counts as not held.
pub async fn a_forced_release_of_an_expired_hold_says_that_it_was_free<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    assert!(!force(&scene.two, &scene.name).await, "the hold had ended");
}

/// C13: an owner that was forced out has no hold left.
pub async fn who_was_forced_out_has_nothing_left<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    assert!(force(&scene.two, &scene.name).await);
    scene.one(&hold).cannot_renew().await;
    scene.one(&hold).cannot_release().await;
    scene.one(&hold).holds_nothing().await;
}
