//! C15: names are independent of each other, and leave nothing behind.

use std::time::Duration;

use lockcore::LockName;
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, nothing_is_left, soon, stranger, unique_name},
};

/// Distinct valid names that a careless backend confuses, or takes for a pattern or for syntax.
pub(super) fn look_alikes() -> Vec<LockName> {
    let stem = Uuid::new_v4();
    let ends = [
        "a",
        "A",
        "a ",
        " a",
        "a:",
        "a:b",
        "a*",
        "?",
        "[a]",
        "a\nb",
        "a\r\n",
        "a\tb",
        "a\"b",
        "a'b",
        "a\\b",
        "a%s",
        "{a}",
        "{a}b",
        "{a}:token",
        "a:token",
        "a:1",
        "ä",
        "a\u{308}",
        "😀",
        "../a",
        "a/b",
        "${a}",
        "a$",
        "a;b",
    ];
    let long = format!("{stem}{}", "x".repeat(LockName::MAX_LEN - 1 - stem.to_string().len()));
    let long = ["y", "z"].map(|end| format!("{long}{end}"));
    let names = ends.iter().map(|end| format!("{stem}{end}")).chain([stem.to_string()]).chain(long);
    names.map(|name| LockName::new(name).expect("a valid name")).collect()
}

/// C15: locks of different names can have different owners at the same time, whatever characters
/// the names contain.
pub async fn names_that_look_alike_are_different_locks<F: Fixture>(fixture: &F) {
    let (scene, names) = (Scene::of(fixture).await, look_alikes());
    let holds: Vec<_> = names.iter().map(|_| stranger()).collect();
    for (name, hold) in names.iter().zip(&holds) {
        scene.one(hold).under(name).enters().await;
    }
    let other = stranger();
    for (name, hold) in names.iter().zip(&holds) {
        assert_eq!(scene.two(hold).under(name).holds().await.0, 1);
        scene.two(&other).under(name).is_refused().await;
        scene.one(hold).under(name).releases().await;
    }
    for name in &names {
        nothing_is_left(fixture, name).await;
    }
}

/// C15: operations on one name do not affect another.
pub async fn what_is_done_to_one_name_is_not_done_to_another<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let other = unique_name(":other");
    let untouched = scene.one(&holds[1]).under(&other);
    let token = untouched.enters_for(LASTING / 10).await;
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(3, LASTING).await;
    scene.one(&holds[0]).renews(LASTING).await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[0]).enters().await;
    assert!(force(&scene.two, &scene.name).await);
    let (count, remaining) = untouched.holds().await;
    assert!(count == 1 && remaining <= LASTING / 10, "{count}, {remaining:?}");
    assert_eq!(untouched.enters().await, token);
}

/// C15: one owner may hold several names, each independently of the others.
pub async fn one_owner_holds_each_name_by_itself<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let other = unique_name(":other");
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).under(&other).cannot_renew().await;
    scene.one(&holds[0]).under(&other).cannot_release().await;
    scene.two(&holds[1]).under(&other).enters().await;
    scene.one(&holds[0]).under(&other).is_refused().await;
}

/// C15: nothing is left of a name after its release, whatever happened before.
pub async fn nothing_is_left_of_a_released_name<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).is_refused().await;
    scene.one(&holds[0]).grows_to(2, LASTING).await;
    scene.one(&holds[0]).renews(LASTING).await;
    scene.one(&holds[0]).lowers_to(1).await;
    scene.one(&holds[0]).releases().await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C15: nothing is left of a name whose hold expired or was force-released.
pub async fn nothing_is_left_of_a_hold_that_ended_otherwise<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let forced = unique_name(":forced");
    scene.one(&hold).enters_for(scene.brief()).await;
    scene.one(&hold).under(&forced).enters().await;
    assert!(force(&scene.two, &forced).await);
    fixture.pass(scene.brief() + Duration::from_millis(5)).await;
    nothing_is_left(fixture, &scene.name).await;
    nothing_is_left(fixture, &forced).await;
}

/// C15: nothing is left of requests without effect.
pub async fn nothing_is_left_of_requests_that_were_for_nothing<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).cannot_renew().await;
    scene.one(&hold).cannot_release().await;
    scene.one(&hold).cannot_grow().await;
    scene.one(&hold).holds_nothing().await;
    assert!(!force(&scene.one, &scene.name).await);
    nothing_is_left(fixture, &scene.name).await;
}

/// C15: nothing is left of a dropped subscription, whether it was ever woken or not.
pub async fn nothing_is_left_of_a_dropped_subscription<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let mut woken = scene.two(&holds[1]).subscribes().await;
    let unheard = scene.two(&holds[2]).subscribes().await;
    scene.one(&holds[0]).releases().await;
    soon(woken.woken()).await;
    drop((woken, unheard));
    nothing_is_left(fixture, &scene.name).await;
}
