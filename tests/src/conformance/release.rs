//! C10: only the holder releases, and only the hold that is named.

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, stranger},
};

/// C10: a holder that is late, whose lease ended and whose successor is inside, frees nothing.
pub async fn a_stale_holder_cannot_release_a_newer_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_release().await;
    scene.two(&holds[1]).holds().await;
    scene.two(&holds[1]).releases().await;
}

/// C10: who never held the lock cannot release it.
pub async fn a_stranger_cannot_release<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).cannot_release().await;
    scene.one(&holds[1]).cannot_release().await;
    scene.one(&holds[0]).renews(LASTING).await;
    assert_eq!(scene.one(&holds[0]).holds().await.0, 1);
}

/// C10: the undoing of a request that was refused releases nobody else's hold.
pub async fn undoing_what_was_refused_releases_nothing<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [(); 3].map(|()| stranger()));
    let holder = scene.one(&holds[0]);
    holder.enters().await;
    for other in [scene.one(&holds[1]), scene.two(&holds[2])] {
        other.is_refused().await;
        other.undoes().await;
        assert_eq!(holder.holds().await.0, 1);
    }
    holder.renews(LASTING).await;
    holder.releases().await;
}

/// C10: there is nothing to release where nobody holds.
pub async fn releasing_a_free_lock_is_answered_so<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).cannot_release().await;
    scene.one(&hold).enters().await;
    scene.one(&hold).releases().await;
    scene.one(&hold).cannot_release().await;
}

/// C10: a release frees the lock whatever its count was.
pub async fn a_full_release_frees_the_lock_whatever_its_count<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C10: the hold may be released from another client than the one that got it.
pub async fn a_hold_can_be_released_from_another_client<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C10: what was force-released cannot be released again, nor can its successor by it.
pub async fn a_forced_holder_cannot_release_a_newer_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    assert!(force(&scene.two, &scene.name).await);
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_release().await;
    scene.two(&holds[1]).holds().await;
}
