//! C5: a request that arrives twice has the effect of one.

use lockcore::backend::ReleaseOutcome;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, named, stranger},
};

/// C5: an acquire that arrives again gets the same token, and counts once.
pub async fn an_acquire_that_arrives_twice_is_one_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let holder = scene.one(&holds[0]);
    let token = holder.enters().await;
    assert_eq!(holder.enters().await, token, "the repetition is the same hold");
    assert_eq!(holder.holds().await.0, 1, "the repetition was counted");
    holder.releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C5: so does an acquire that arrives again over another connection.
pub async fn an_acquire_that_arrives_by_two_ways_is_one_hold<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let token = scene.one(&hold).enters().await;
    assert_eq!(scene.two(&hold).enters().await, token, "the repetition is the same hold");
    assert_eq!(scene.two(&hold).holds().await.0, 1, "the repetition was counted");
}

/// C5: so does an acquire of a named owner.
pub async fn an_acquire_of_a_named_owner_that_arrives_twice_is_one_hold<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, named("job-17"));
    let token = scene.one(&hold).enters().await;
    assert_eq!(scene.one(&hold).enters().await, token, "the repetition is the same hold");
    assert_eq!(scene.one(&hold).holds().await.0, 1, "the repetition was counted");
    scene.one(&hold).releases().await;
}

/// C5: a nested acquire sets the hold count to the requested one, however often it arrives.
pub async fn a_nested_acquire_sets_the_count_and_never_adds_to_it<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let holder = scene.one(&hold);
    let token = holder.enters().await;
    for count in [2, 2, 5, 5, 3] {
        assert_eq!(
            holder.grows_to(count, LASTING).await,
            token,
            "a nested acquire is the same hold"
        );
        assert_eq!(holder.holds().await.0, count);
    }
}

/// C5: a partial release sets the hold count to the requested one, however often it arrives.
pub async fn a_partial_release_that_arrives_twice_lowers_the_count_once<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let holder = scene.one(&hold);
    holder.enters().await;
    holder.grows_to(5, LASTING).await;
    for _ in 0..3 {
        holder.lowers_to(3).await;
        assert_eq!(holder.holds().await.0, 3);
    }
}

/// C5: a release that arrives again, when another owner has the lock, does not affect the new hold.
pub async fn a_release_that_arrives_twice_does_not_touch_the_next_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let (first, second) = (scene.one(&holds[0]), scene.two(&holds[1]));
    first.enters().await;
    first.releases().await;
    second.enters().await;
    assert_eq!(first.asks_to_release(0).await, ReleaseOutcome::NotHeld);
    assert_eq!(first.asks_to_release(1).await, ReleaseOutcome::NotHeld);
    assert_eq!(second.holds().await.0, 1);
}

/// C5: a renewal that arrives again renews again.
pub async fn a_renewal_that_arrives_twice_is_answered_twice<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    for _ in 0..2 {
        scene.one(&hold).renews(LASTING).await;
        let (count, remaining) = scene.one(&hold).holds().await;
        assert_eq!(count, 1);
        assert!(remaining <= LASTING, "renewals added up to {remaining:?}");
    }
    assert!(force(&scene.two, &scene.name).await);
    scene.one(&hold).cannot_renew().await;
}
