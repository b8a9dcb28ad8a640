//! C6: a named owner takes over its own hold.

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, named, stranger},
};

/// C6: the current owner enters at once under a new id, from another client, with a greater token.
pub async fn a_named_owner_takes_over_its_own_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17")]);
    let before = scene.one(&holds[0]).enters().await;
    let after = scene.two(&holds[1]).enters().await;
    assert!(after > before, "the takeover has token {after}, the hold before it {before}");
    assert_eq!(scene.two(&holds[1]).holds().await.0, 1, "a takeover is a new hold");
}

/// C6: a hold that was taken over can be neither renewed nor grown.
pub async fn a_hold_that_was_taken_over_cannot_be_renewed<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17")]);
    scene.one(&holds[0]).enters_for(LASTING / 10).await;
    scene.two(&holds[1]).enters_for(LASTING / 10).await;
    scene.one(&holds[0]).cannot_renew().await;
    scene.one(&holds[0]).cannot_grow().await;
    let (count, remaining) = scene.two(&holds[1]).holds().await;
    assert_eq!(count, 1, "the old hold's growth was counted");
    assert!(remaining <= LASTING / 10, "the old hold's renewal extended the new one");
}

/// C6: releasing a hold that was taken over frees nothing.
pub async fn a_hold_that_was_taken_over_cannot_release<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17"), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_release().await;
    scene.one(&holds[2]).is_refused().await;
    scene.two(&holds[1]).renews(LASTING).await;
    scene.two(&holds[1]).releases().await;
}

/// C6: a takeover starts with a hold count of one, and one release frees it.
pub async fn a_takeover_does_not_inherit_the_count<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-17"), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    scene.two(&holds[1]).enters().await;
    assert_eq!(scene.two(&holds[1]).holds().await.0, 1);
    scene.two(&holds[1]).releases().await;
    scene.one(&holds[2]).enters().await;
}

/// C6: another name is another owner.
pub async fn a_named_owner_excludes_everybody_else<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [named("job-17"), named("job-18"), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).is_refused().await;
    scene.two(&holds[2]).is_refused().await;
}

/// C6: nobody takes over the hold of an owner without a name.
pub async fn an_owner_without_a_name_is_not_taken_over<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let pretender = named("job-17");
    scene.one(&hold).enters().await;
    scene.two(&pretender).is_refused().await;
    scene.one(&hold).renews(LASTING).await;
}
