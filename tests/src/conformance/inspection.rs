//! C14: inspection reports what is stored.

use lockcore::Mode;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, named, state, stranger},
};

/// C14: both clients report owner, mode, count and lease of a hold.
pub async fn a_hold_is_reported_with_owner_mode_count_and_lease<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    for hold in [stranger(), named("job-17")] {
        scene.one(&hold).enters().await;
        for client in [&scene.one, &scene.two] {
            let state = state(client, &scene.name).await;
            let [holder] = state.holders() else { panic!("there should be one holder: {state:?}") };
            assert_eq!(holder.owner(), hold.owner());
            assert_eq!(holder.mode(), Mode::Exclusive);
            assert_eq!(holder.hold_count(), 1);
            let remaining = state.remaining().expect("a hold has a lease");
            assert!(
                remaining > LASTING / 2 && remaining <= LASTING,
                "{remaining:?} of {LASTING:?}"
            );
        }
        scene.one(&hold).releases().await;
    }
}

/// C14: a free lock is reported as free, before its first hold and after each way in which a hold
/// can end.
pub async fn a_free_lock_is_reported_as_free<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    assert!(!state(&scene.one, &scene.name).await.is_held());
    scene.one(&hold).enters().await;
    scene.one(&hold).releases().await;
    let after_release = state(&scene.two, &scene.name).await;
    assert!(!after_release.is_held() && after_release.remaining().is_none(), "{after_release:?}");
    scene.one(&hold).enters().await;
    assert!(force(&scene.one, &scene.name).await);
    assert!(!state(&scene.two, &scene.name).await.is_held());
}

/// C14: an expired hold is reported as absent.
pub async fn an_expired_hold_is_reported_as_absent<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    for client in [&scene.one, &scene.two] {
        let state = state(client, &scene.name).await;
        assert!(!state.is_held() && state.remaining().is_none(), "{state:?}");
    }
}

/// C14: the count follows growth and partial release.
pub async fn the_reported_count_is_the_stored_one<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    scene.one(&hold).grows_to(4, LASTING).await;
    assert_eq!(scene.two(&hold).holds().await.0, 4);
    scene.one(&hold).lowers_to(2).await;
    assert_eq!(scene.two(&hold).holds().await.0, 2);
}

/// C14: the remaining lease shrinks as time passes, and inspection does not extend it.
pub async fn the_reported_lease_shrinks<F: Fixture>(fixture: &F) {
    let (scene, hold, pause) = (Scene::of(fixture).await, stranger(), fixture.short_lease() / 2);
    scene.one(&hold).enters().await;
    let (_, before) = scene.two(&hold).holds().await;
    fixture.pass(pause).await;
    let (_, after) = scene.two(&hold).holds().await;
    let passed = before.saturating_sub(after);
    assert!(
        passed.as_millis() + 5 >= pause.as_millis(),
        "{before:?}, and {pause:?} later {after:?}"
    );
}

/// C14: inspection creates nothing.
pub async fn looking_does_not_disturb<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for _ in 0..3 {
        assert!(!state(&scene.two, &scene.name).await.is_held());
    }
    let token = scene.one(&holds[0]).enters().await;
    for _ in 0..3 {
        scene.two(&holds[0]).holds().await;
    }
    assert_eq!(scene.one(&holds[0]).enters().await, token);
    scene.one(&holds[0]).releases().await;
}
