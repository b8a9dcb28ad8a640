//! C16: the backend does what it declares.

use lockcore::{Mode, backend::Backend};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, soon, stranger, unique_name},
};

/// All modes. Those with numbers have example values.
pub(crate) fn modes() -> [Mode; 6] {
    let permits = [Mode::permits(1, 2), Mode::plain_permits(1, 2)];
    [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, permits[0], permits[1]]
}

/// C16: exclusive locks, on which this kit relies, are declared and granted.
pub async fn exclusive_locks_are_declared_and_granted<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for client in [&scene.one, &scene.two] {
        assert!(client.capabilities().supports(Mode::Exclusive), "{:?}", client.capabilities());
    }
    scene.one(&hold).enters().await;
}

/// C16: every declared mode is granted on a free name.
pub async fn a_declared_mode_is_granted<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for mode in modes().into_iter().filter(|mode| scene.one.capabilities().supports(*mode)) {
        let name = unique_name("");
        let contender = scene.one(&hold).under(&name).in_mode(mode);
        let answer = soon(scene.one.acquire(&contender.acquire_request(LASTING))).await;
        let outcome = answer.expect("a declared mode was refused");
        assert!(outcome.token().is_some(), "{mode}: {outcome:?}");
        contender.releases().await;
    }
}

/// C16: all clients of a store declare the same capabilities.
pub async fn all_clients_declare_the_same<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    assert_eq!(scene.one.capabilities(), scene.two.capabilities());
    assert_eq!(scene.one.latches().is_some(), scene.two.latches().is_some(), "latches");
    assert_eq!(scene.one.conditions().is_some(), scene.two.conditions().is_some(), "conditions");
    assert_eq!(scene.one.directory().is_some(), scene.two.directory().is_some(), "directory");
}
