//! C4: every grant has a greater token than all grants before it.

use std::time::Duration;

use lockcore::{FencingToken, backend::AcquireOutcome};

use crate::{
    Fixture,
    conformance::scene::{Scene, force, named, nothing_is_left, stranger},
};

fn assert_rising(tokens: &[FencingToken]) {
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens do not rise: {tokens:?}");
}

/// C4: tokens rise from hold to hold, whichever client it is at.
pub async fn tokens_rise_from_hold_to_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut tokens = Vec::new();
    for round in 0..10 {
        let hold = stranger();
        let holder = if round % 3 == 0 { scene.one(&hold) } else { scene.two(&hold) };
        tokens.push(holder.enters().await);
        holder.releases().await;
    }
    assert_rising(&tokens);
}

/// C4: tokens rise when the earlier hold expired.
pub async fn tokens_rise_after_an_expired_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let hold = stranger();
        tokens.push(scene.one(&hold).enters_for(scene.brief()).await);
        fixture.pass(scene.brief() + Duration::from_millis(5)).await;
    }
    assert_rising(&tokens);
}

/// C4: tokens rise when the earlier hold was released by force.
pub async fn tokens_rise_after_a_forced_release<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let hold = stranger();
        tokens.push(scene.one(&hold).enters().await);
        assert!(force(&scene.two, &scene.name).await);
    }
    assert_rising(&tokens);
}

/// C4: tokens rise even if nothing of the name was left in between, and at a client that has never
/// used it.
pub async fn tokens_rise_although_the_name_was_forgotten<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let first = scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).releases().await;
    nothing_is_left(fixture, &scene.name).await;
    let newcomer = fixture.client().await;
    let second = scene.one(&holds[1]).at(&newcomer).enters().await;
    assert_rising(&[first, second]);
}

/// C4: tokens rise for an owner that acquires again, named or not.
pub async fn tokens_rise_for_an_owner_that_comes_again<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let hold = named("job-17");
        tokens.push(scene.one(&hold).enters().await);
        scene.one(&hold).releases().await;
    }
    assert_rising(&tokens);
}

/// C4: refused and late requests in between do not disturb the order.
pub async fn tokens_rise_past_requests_that_were_not_granted<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger(), stranger()]);
    let first = scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).is_refused().await;
    scene.one(&holds[0]).releases().await;
    assert_eq!(
        scene.one(&holds[0]).asks_for_count(2, Duration::from_secs(1)).await,
        AcquireOutcome::NotHeld
    );
    let second = scene.two(&holds[1]).enters().await;
    scene.two(&holds[1]).releases().await;
    assert_rising(&[first, second, scene.one(&holds[2]).enters().await]);
}
