//! C8 and C9: a lease is extended by its owner only, and never shortened.

use lockcore::backend::{Backend, Limits, RenewOutcome};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, soon, state, stranger, unique_name},
};

/// C8: a renewed hold outlives its first lease.
pub async fn a_renewed_hold_outlives_its_first_lease<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let token = scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    scene.one(&holds[0]).renews(LASTING).await;
    fixture.pass(fixture.short_lease() * 2).await;
    scene.two(&holds[1]).is_refused().await;
    let (_, remaining) = scene.one(&holds[0]).holds().await;
    assert!(
        remaining > LASTING / 2 && remaining <= LASTING,
        "{remaining:?} is left of {LASTING:?}"
    );
    assert_eq!(scene.one(&holds[0]).enters().await, token, "a renewal is no new hold");
}

/// C8: a stranger cannot extend somebody else's lease.
pub async fn a_stranger_cannot_renew<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(LASTING / 10).await;
    scene.two(&holds[1]).cannot_renew().await;
    let (_, remaining) = scene.one(&holds[0]).holds().await;
    assert!(remaining <= LASTING / 10, "a stranger's renewal extended the lease to {remaining:?}");
}

/// C8: a renewal without a hold creates none.
pub async fn renewing_nothing_makes_no_hold<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).cannot_renew().await;
    assert!(!state(&scene.two, &scene.name).await.is_held(), "the renewal made a hold");
}

/// C8: a stale owner that has a successor cannot renew.
pub async fn a_stale_holder_cannot_renew_a_newer_hold<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    fixture.pass(fixture.short_lease() * 2).await;
    scene.two(&holds[1]).enters_for(LASTING / 10).await;
    scene.one(&holds[0]).cannot_renew().await;
    assert!(scene.two(&holds[1]).holds().await.1 <= LASTING / 10, "the newer hold was renewed");
}

/// C8: the requests of a batch are answered one by one and in order, however many there are.
pub async fn each_renewal_of_a_batch_is_answered_in_its_place<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let most = scene.one.limits().largest_renewal.min(Limits::LARGEST_RENEWAL);
    let names: Vec<_> = (0..most).map(|number| unique_name(&format!(":{number}"))).collect();
    let held = |number: usize| number.is_multiple_of(3) || number.is_multiple_of(7);
    let mut requests = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let contender = scene.one(&hold).under(name);
        if held(number) {
            contender.enters_for(LASTING / 10).await;
        }
        requests.push(contender.renew_request(LASTING));
    }
    let outcomes = soon(scene.one.renew(&requests)).await.expect("renew failed");
    assert_eq!(outcomes.len(), names.len(), "one answer to each request");
    for (number, outcome) in outcomes.iter().enumerate() {
        let expected = if held(number) { "Renewed" } else { "NotHeld" };
        assert_eq!(format!("{outcome:?}"), expected, "the answer to request {number}");
    }
    let last = (0..most).rev().find(|number| held(*number)).unwrap_or_default();
    let (_, remaining) = scene.one(&hold).under(&names[last]).holds().await;
    assert!(remaining > LASTING / 2, "the last renewal has no effect");
}

/// C8: one batch may contain requests for one name by different owners.
pub async fn a_batch_tells_the_owners_of_one_name_apart<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [(); 3].map(|()| stranger()));
    scene.one(&holds[1]).enters().await;
    let requests = [0, 1, 2].map(|at| scene.one(&holds[at]).renew_request(LASTING));
    let outcomes = soon(scene.one.renew(&requests)).await.expect("renew failed");
    use RenewOutcome::{NotHeld, Renewed};
    assert!(matches!(outcomes[..], [NotHeld, Renewed, NotHeld]), "{outcomes:?}");
}

/// C8: a batch without requests has no answers.
pub async fn an_empty_batch_has_no_answers<F: Fixture>(fixture: &F) {
    let client = fixture.client().await;
    let outcomes = soon(client.renew(&[])).await.expect("renew failed");
    assert!(outcomes.is_empty(), "{outcomes:?}");
}

/// C9: a renewal shorter than the remaining lease leaves it as it is.
pub async fn a_shorter_renewal_does_not_shorten_the_lease<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    scene.one(&hold).renews(fixture.short_lease()).await;
    let (_, remaining) = scene.one(&hold).holds().await;
    assert!(remaining > LASTING / 2, "a renewal shortened the lease to {remaining:?}");
}

/// C9: a repeated acquire with a shorter lease leaves the remaining one as it is.
pub async fn a_repeated_acquire_does_not_shorten_the_lease<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    scene.one(&hold).enters_for(fixture.short_lease()).await;
    let (_, remaining) = scene.one(&hold).holds().await;
    assert!(remaining > LASTING / 2, "a repeated acquire shortened the lease to {remaining:?}");
}

/// C9: a nested acquire with a shorter lease leaves the remaining one as it is.
pub async fn a_nested_acquire_does_not_shorten_the_lease<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    scene.one(&hold).grows_to(2, fixture.short_lease()).await;
    let (_, remaining) = scene.one(&hold).holds().await;
    assert!(remaining > LASTING / 2, "a nested acquire shortened the lease to {remaining:?}");
}
