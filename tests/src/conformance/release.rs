//! C10: only the owner releases, and only the named hold.

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, stranger},
};

/// C10: a late owner, whose lease has ended and who has a successor, frees nothing.
pub async fn a_stale_holder_cannot_release_a_newer_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_release().await;
    scene.two(&holds[1]).holds().await;
    scene.two(&holds[1]).releases().await;
}

/// C10: an owner that never held the lock cannot release it.
pub async fn a_stranger_cannot_release<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).cannot_release().await;
    scene.one(&holds[1]).cannot_release().await;
    scene.one(&holds[0]).renews(LASTING).await;
    assert_eq!(scene.one(&holds[0]).holds().await.0, 1);
}

/// C10: undoing a refused request does not release another owner's hold.
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

/// C10: releasing a free lock says that there is nothing to release.
pub async fn releasing_a_free_lock_is_answered_so<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).cannot_release().await;
    scene.one(&hold).enters().await;
    scene.one(&hold).releases().await;
    scene.one(&hold).cannot_release().await;
}

/// C10: a full release frees the lock, whatever its count.
pub async fn a_full_release_frees_the_lock_whatever_its_count<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C10: a hold can be released from another client than the one that acquired it.
pub async fn a_hold_can_be_released_from_another_client<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C10: a hold that was released by force cannot be released again, and does not release its
/// successor.
pub async fn a_forced_holder_cannot_release_a_newer_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    assert!(force(&scene.two, &scene.name).await);
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[0]).cannot_release().await;
    scene.two(&holds[1]).holds().await;
}
